"""`reelpool doctor`: what this machine gives and lacks. It runs on a broken installation too."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import importlib
import json
import os
import platform
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import ReelpoolError, redact
from . import console, gpu, remote

DEMO = Path(__file__).resolve().parent.parent / "_demo"
# package: (lowest version that works, what it is needed for; None = always)
PACKAGES = {
    "numpy": ("1.26", None),
    "pyarrow": ("15", None),
    "huggingface_hub": ("0.34", None),
    "tqdm": ("4", None),
    "pillow": ("9", None),
    "torch": ("2.2", "tensors, DataLoader workers"),
    "lerobot": ("0.4", "the script you train with, the benchmark's baseline"),
}


@dataclass
class Line:
    """One finding."""

    section: str
    status: str  # ok, WARN, FAIL
    text: str
    fix: str | None = None


Findings = Iterator[tuple[str, str, str | None]]  # status, text, fix


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `doctor`."""
    console.dataset_options(parser, required=False, urls=True)
    parser.add_argument("--network", action="store_true", help="ask the Hub once")
    parser.add_argument("--out_dir", type=Path, help="write doctor.json there too")


def run(args: argparse.Namespace) -> int:
    """Print all findings; 1 if one of them is a FAIL."""
    lines = examine(args.dataset, args.root, args.verbose, args.network, args.revision)
    failed = sum(line.status == "FAIL" for line in lines)
    warned = sum(line.status == "WARN" for line in lines)
    verdict = f"{failed} FAIL, {warned} WARN, {len(lines) - failed - warned} ok"
    document = {"ok": not failed, "findings": [asdict(line) for line in lines]}
    console.show(args, "\n".join([*_text(lines), "", verdict]), document)
    if args.out_dir:
        console.prepare(args.out_dir)
        console.write(args.out_dir / "doctor.json", json.dumps(document, indent=1) + "\n")
    return console.CHECK_FAILED if failed else console.OK


def _text(lines: list[Line]) -> Iterator[str]:
    section = None
    for line in lines:
        if line.section != section:
            section = line.section
            yield section
        yield f"  {line.status:4}  {line.text}"
        if line.fix:
            yield f"        Fix: {line.fix}"


def examine(
    dataset: str | None = None,
    root: Path | None = None,
    verbose: bool = False,
    network: bool = False,
    revision: str | None = None,
) -> list[Line]:
    """Run every section; one that breaks becomes a FAIL line of its own."""
    sections: list[tuple[str, Callable[[], Findings]]] = [
        ("host", _host), ("native", _native), ("decode", _decode), ("gpu", gpu.examine),
        ("python", _python), ("caches", _caches),
        ("hub", lambda: _hub(dataset, root, network, revision)), ("ranks", _ranks),
    ]  # fmt: skip
    if root is None and remote.is_url(dataset or ""):
        url = str(dataset)
        sections.append(("root", lambda: remote.examine(url, revision)))
    if dataset is not None or root is not None:
        sections.append(("dataset", lambda: _dataset(dataset, root, revision)))
    lines = []
    for name, section in sections:
        try:
            lines += [Line(name, *finding) for finding in section()]
        except Exception as error:  # a section reports, whatever it meets
            if verbose:
                traceback.print_exc()
            lines.append(Line(name, "FAIL", *_said(error)))
    return lines


def _said(error: Exception) -> tuple[str, str | None]:
    """(what happened, what to do) of an error."""
    what, _, fix = str(error).partition("\n")
    if isinstance(error, console.Unusable):
        return what, fix.strip() or None
    if not isinstance(error, ReelpoolError):
        fix = "run it again with -v to see where"
    return f"{type(error).__name__}: {what}", fix.strip() or None


def _core() -> Any:
    return importlib.import_module("reelpool._core")


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def _host() -> Findings:
    from .. import env

    cpus, memory = env.granted_cpus(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    granted = min(env.granted_memory(), memory)
    yield "ok", f"{platform.machine()}, {_cpu_model()}", None
    yield "ok", f"{cpus} of {os.cpu_count()} CPUs and {_gib(granted)} of memory granted", None
    if granted < 2 << 30:
        yield "WARN", "less than 2 GiB of memory", "use a smaller memory_budget= and batch_size="
    shm = shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else 0
    if shm < 1 << 30:
        yield ("WARN", f"/dev/shm holds {_gib(shm)}: DataLoader workers may fail with a bus error",
               "docker run --shm-size=8g; or use Loader, which needs no workers")  # fmt: skip
    else:
        yield "ok", f"/dev/shm holds {_gib(shm)}", None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024:
        yield "WARN", f"only {soft} open files allowed", f"ulimit -n {min(4096, hard)}"
    else:
        yield "ok", f"{soft} open files allowed", None


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "CPU model unknown"


def _native() -> Findings:
    try:
        core = _core()
    except ImportError as error:
        fix = "pip install --force-reinstall --no-binary reelpool reelpool"
        if not list(Path(__file__).resolve().parent.parent.glob("_core*.so")):
            fix = "pip install -e .  (needs a C compiler, pkg-config and FFmpeg's headers)"
        yield "FAIL", f"reelpool._core does not load: {error}", fix
        return
    found = core.describe()
    yield "ok", f"_core loads, CPU tier {found.get('cpu_tier', 'unknown')}", None
    yield "ok", str(found.get("libraries", "library versions unknown")), None
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as stream:
        paths = {line.split(maxsplit=5)[-1].strip() for line in stream if "libavcodec" in line}
    if len(paths) > 1:
        fix = "import one package with FFmpeg inside per process"
        yield "WARN", f"several libavcodec are loaded: {', '.join(sorted(paths))}", fix
    else:
        yield "ok", f"loaded from {', '.join(paths) or 'the extension itself'}", None
    for path in sorted(paths)[:1]:
        yield "ok", f"libavcodec's licence: {_licence(path)}", None
    yield _certificates()


def _licence(path: str) -> str:
    """What `avcodec_license()` of a library that is loaded says."""
    try:
        ask = ctypes.CDLL(path).avcodec_license
    except (OSError, AttributeError) as error:
        return f"unknown ({error})"
    ask.restype = ctypes.c_char_p
    return (ask() or b"unknown").decode()


def _certificates() -> tuple[str, str, str | None]:
    """Which certificate authorities https:// is checked by."""
    from .. import env
    from ..remote_options import certifi_file

    found = env.ca_file() or certifi_file()
    if found is None:
        return "ok", "CA certificates: the system's", None
    if not os.path.isfile(found):
        fix = "correct or unset SSL_CERT_FILE, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE"
        return "WARN", f"CA certificates: {redact(found)} is not there", fix
    return "ok", f"CA certificates: {redact(found)}", None


def _decode() -> Findings:
    """Decode the embedded clip of each codec and compare every frame's checksum."""
    import numpy as np

    record = json.loads((DEMO / "frames.json").read_text())
    try:
        from reelpool import decode_video_frames

        supports = _core().describe().get("supports", {})
    except ImportError as error:
        yield "FAIL", f"no decoder: {error}", "see section native"
        return
    package = "install an FFmpeg that has this decoder (AV1: libdav1d), then reinstall reelpool"
    for codec, digests in record["clips"].items():
        times = [i / record["fps"] for i in range(len(digests))]
        needed = codec in ("av1", "h264")
        try:
            frames = decode_video_frames(
                str(DEMO / "clips" / f"{codec}.mp4"), times, 1e-4, return_uint8=True
            )
        except Exception as error:  # any failure of a codec is this line's result
            absent = supports.get(codec) is False
            text = f"{codec}: {'no decoder in this FFmpeg' if absent else error}"
            yield "FAIL" if needed or not absent else "WARN", text, package
            continue
        pixels = [np.ascontiguousarray(np.asarray(f)).tobytes() for f in frames]
        wrong = sum(hashlib.sha256(p).hexdigest() != d for p, d in zip(pixels, digests))
        if wrong or len(pixels) != len(digests):
            yield "FAIL", f"{codec}: {wrong} of {len(digests)} frames have wrong pixels", package
        else:
            yield "ok", f"{codec}: {len(digests)} frames decoded, checksums right", None


def _number(version: str) -> tuple[int, ...]:
    parts = []
    for part in version.split("+")[0].split(".")[:3]:
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)


def _python() -> Findings:
    yield "ok", f"Python {platform.python_version()}, {sys.platform}", None
    for name, (lowest, purpose) in PACKAGES.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            if purpose is None:
                yield "FAIL", f"{name} is missing", f'pip install "{name}>={lowest}"'
            else:
                yield "ok", f"{name} is absent (only for {purpose})", None
            continue
        if _number(found) < _number(lowest):
            yield (
                "FAIL",
                f"{name} {found} is older than {lowest}",
                f'pip install "{name}>={lowest}"',
            )
        else:
            yield "ok", f"{name} {found}", None


def _caches() -> Findings:
    from .. import env

    for what, path in (("datasets", env.hf_lerobot_home()), ("hub cache", env.hf_hub_cache()),
                       ("temporary files", Path(tempfile.gettempdir()))):  # fmt: skip
        there = path
        while not there.exists():
            there = there.parent
        free = shutil.disk_usage(there).free
        if not os.access(there, os.W_OK):
            yield "WARN", f"{what}: {path} is not writable", "set HF_HOME to a folder of yours"
        elif free < 1 << 30:
            yield (
                "WARN",
                f"{what}: {_gib(free)} free in {path}",
                "free space, or move it by HF_HOME",
            )
        else:
            yield "ok", f"{what}: {path}, {_gib(free)} free", None


def _ranks() -> Findings:
    from .. import distributed

    rank, world = distributed.resolve_rank()
    yield "ok", f"rank {rank} of {world}, {distributed.local_world_size()} on this machine", None


def _hub(name: str | None, root: Path | None, network: bool, revision: str | None) -> Findings:
    from ..hub import Hub, Options
    from ..roots import parse_hub_url

    repo_id = None
    with contextlib.suppress(console.Unusable):  # section dataset says so
        repo_id, local = console.place(name, root, urls=True)
        repo_id, spelled = parse_hub_url(repo_id) or (repo_id, None)
        revision = revision or spelled
        repo_id = repo_id if local is None and "://" not in repo_id else None
    hub = Hub(repo_id or "", revision, None, options=Options(network_timeout=20.0))
    offline = ", switched off by HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE" if hub.offline else ""
    yield "ok", f"{hub.endpoint}{offline}, token: {hub.token_word()}", None
    if network and hub.offline:
        yield "WARN", "not asked: the network is switched off", "HF_HUB_OFFLINE=0"
    elif network:
        try:
            yield "ok", f"answers: {hub.facts()}", None
        except ReelpoolError as error:
            yield ("FAIL", *_said(error))


def _dataset(name: str | None, root: Path | None, revision: str | None) -> Findings:
    import reelpool

    repo_id, local = console.place(name, root, urls=True)
    stays: dict[str, Any] = {}
    if local is None and remote.is_url(repo_id):
        stays = {"download_videos": False, "storage_options": {"network_timeout": remote.TIMEOUT_S}}
    dataset = reelpool.LeRobotDataset(repo_id, local, revision=revision, return_uint8=True, **stays)
    meta = dataset.meta
    yield "ok", f"{repo_id}: {dataset.num_episodes} episodes, {len(dataset)} frames", None
    supports = _core().describe().get("supports", {})
    size = 0
    for camera in meta.camera_keys:
        feature = meta.features[camera]
        shape = tuple(feature["shape"])
        size += 64 * shape[0] * shape[1] * shape[2]
        codec = (feature.get("info") or {}).get("video.codec")
        if codec is not None and supports.get(codec) is False:
            yield "FAIL", f"{camera}: no decoder for {codec}", "install an FFmpeg that has it"
        else:
            yield "ok", f"{camera}: {codec or feature['dtype']}, {shape[1]}x{shape[0]}", None
    if not len(dataset):
        yield "WARN", "it has no episode: nothing to read", "record into it, or check the folder"
        return
    item = dataset[0]
    yield "ok", f"first item decoded: {len(item)} keys", None
    kept = 3 * size / 1e6
    yield (
        "ok",
        f"a batch of 64 uint8 takes {size / 1e6:.0f} MB, Loader keeps 3: {kept:.0f} MB",
        None,
    )
