"""The physical limit beside every result: how fast the bare decoder gives the same files' frames.

`decode_floor` (benchmarks/decode_floor.c, libavcodec only, packets in memory) is built on demand in
a source tree. Without a compiler or FFmpeg's headers, or from a wheel, our own decoder stands in,
which converts to RGB too; the report says which one was used.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "benchmarks/decode_floor.c"
PARSER = ("mp4_index", "mp4_box", "mp4_codec", "mp4_tables", "moov_search", "select_packets")
SHARED = (*(f"csrc/demux/{n}.c" for n in PARSER), "csrc/base/error.c", "csrc/base/memory.c")


def _build(target: Path) -> Path | None:
    """Compile `decode_floor` into `target`; None where something for it is missing."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if not SOURCE.is_file() or compiler is None or shutil.which("pkg-config") is None:
        return None
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "libavcodec", "libavutil"],
        capture_output=True,
        text=True,
    )
    if flags.returncode:
        return None
    target.mkdir(parents=True, exist_ok=True)
    binary = target / "decode_floor"
    sources = [SOURCE, *(ROOT / name for name in SHARED)]
    command = [
        compiler,
        "-O2",
        "-std=c11",
        "-D_GNU_SOURCE",
        f"-I{ROOT / 'csrc'}",
        "-o",
        str(binary),
    ]
    done = subprocess.run(
        [*command, *map(str, sources), *flags.stdout.split(), "-lpthread", "-lm"],
        capture_output=True,
        text=True,
    )
    return binary if done.returncode == 0 else None


class Floor:
    """Measures frames/s of a set of files, one per camera, with `threads` decoders side by side."""

    def __init__(self, files: list[str], threads: int, seconds: float) -> None:
        self.files, self.threads, self.seconds = files, threads, seconds
        self._folder = tempfile.TemporaryDirectory(prefix="reelpool-floor-")
        self.binary = _build(Path(self._folder.name))
        self.source = (
            "decode_floor: libavcodec alone, packets in memory, no conversion"
            if self.binary
            else "reelpool's own decoder in file order, with RGB conversion (decode_floor needs "
            "a source tree, a C compiler and FFmpeg's headers)"
        )

    def close(self) -> None:
        """Remove the built program."""
        self._folder.cleanup()

    def measure(self, kind: str) -> dict[str, float | None]:
        """{"frames_per_s", "cpu_ms"} per picture over all cameras, in equal numbers.

        `kind` is "seq" or "random"; cpu_ms is processor time, None where our own decoder stands in.
        """
        pairs = [self._one(kind, path) for path in self.files]
        rate = len(pairs) / sum(1 / rate for rate, _ in pairs)
        times = [ms for _, ms in pairs if ms is not None]
        mean = sum(times) / len(times) if len(times) == len(pairs) else None
        return {"frames_per_s": rate, "cpu_ms": mean}

    def _one(self, kind: str, path: str) -> tuple[float, float | None]:
        if self.binary is None:
            return self._own(path), None
        command = [str(self.binary), "--mode", kind, "--threads", str(self.threads)]
        command += ["--seconds", f"{self.seconds:g}", "--json", path]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"decode_floor failed on {path}: {done.stderr.strip()}")
        found = json.loads(done.stdout)
        return found["per_s"], found["cpu_ms"]

    def _own(self, path: str) -> float:
        import reelpool

        def work(_: int) -> int:
            decoder = reelpool.VideoDecoderCache().get_decoder(path)
            count, done, end = decoder.metadata.num_frames, 0, time.perf_counter() + self.seconds
            while time.perf_counter() < end or not done:
                for first in range(0, count, 32):
                    decoder.get_frames_at(list(range(first, min(first + 32, count))))
                done += count
            return done

        start = time.perf_counter()
        with ThreadPoolExecutor(self.threads) as pool:
            total = sum(pool.map(work, range(self.threads)))
        return total / (time.perf_counter() - start)


def warm_page_cache(files: list[str], limit: int = 4 << 30) -> int:
    """Read the files once, so that every case finds them in memory; bytes read, at most `limit`."""
    total = 0
    for path in files:
        with open(path, "rb") as stream:
            while total < limit and (block := stream.read(1 << 20)):
                total += len(block)
    if total >= limit:
        print(f"reelpool: only the first {limit >> 30} GiB were read ahead", file=sys.stderr)
    return total
