"""Makes damaged MP4 files with known causes, for tests and scores of corruption handling.

    python tests/data/make_damaged.py SEED N OUT [--codec h264 --codec av1 ...]

Writes OUT/clean/<clip>.mp4 (made here with the ffmpeg program), N files OUT/damaged/<number>.mp4
and OUT/manifest.json: a list of {file, source, codec, kind, detail, expect}. The same SEED and N
give the same damage to the same clean bytes; clean bytes depend on the encoders installed.

`expect` is what a reader may do: "intact" must read everything and equal the source; "damaged" must
give for each frame either the source's pixels or a typed error, never other pixels.
Kinds in each ten files: 4 flip (four bits of mdat), 1 zeros (4 KiB of mdat), 1 cut (end missing),
1 moov (four bytes of moov), 2 structural (see STRUCTURAL, in turn), 1 intact.
"""

import argparse
import json
import random
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = "testsrc2=size={size}:rate=30:duration={seconds}"
QUIET_X265 = "log-level=none"

# name: (codec, lavfi size, seconds, ffmpeg encoder arguments)
CLIPS = {
    "av1_g2": ("av1", "320x240", 2, "-c:v libsvtav1 -preset 10 -g 2 -pix_fmt yuv420p"),
    "av1_g30": ("av1", "320x240", 2, "-c:v libsvtav1 -preset 10 -g 30 -pix_fmt yuv420p"),
    "h264_g2": ("h264", "320x240", 2, "-c:v libx264 -g 2 -bf 0 -pix_fmt yuv420p"),
    "h264_g30_b": ("h264", "320x240", 2, "-c:v libx264 -g 30 -bf 3 -pix_fmt yuv420p"),
    "hevc_g2_open": ("hevc", "320x240", 2, f"-c:v libx265 -x265-params {QUIET_X265}:keyint=2"
                     ":min-keyint=2 -pix_fmt yuv420p"),
    "hevc_g30_10bit": ("hevc", "320x240", 2, f"-c:v libx265 -x265-params {QUIET_X265}:keyint=30"
                       " -pix_fmt yuv420p10le"),
    "vp9_g30": ("vp9", "320x240", 2, "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -g 30"
                " -b:v 400k -pix_fmt yuv420p"),
}  # fmt: skip
ODD = {
    "vfr": "-c:v libx264 -g 10 -pix_fmt yuv420p -vf select=mod(n\\,3) -vsync vfr",
    "one_frame": "-c:v libx264 -pix_fmt yuv420p -frames:v 1",
    "odd_size": "-c:v libx264 -g 10 -pix_fmt yuv444p -vf scale=101:67",
    "gray12": f"-c:v libx265 -x265-params {QUIET_X265}:keyint=10 -pix_fmt gray12le",
}
CONTAINERS = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"dinf"}


def boxes(data, start=0, end=None, path=""):
    """(path, start of payload, end) of every box, depth first."""
    end = len(data) if end is None else end
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, start + 8)
            head = 16
        stop = end if size == 0 else start + size
        if stop > end or (size != 0 and size < head):
            return
        name = path + "/" + kind.decode("latin1")
        yield name, start + head, stop
        if kind in CONTAINERS:
            yield from boxes(data, start + head, stop, name)
        start = stop


def find(data, name):
    """(start, end) of the payload of the first box whose path ends with `name`."""
    for path, start, end in boxes(data):
        if path.endswith("/" + name):
            return start, end
    raise ValueError(f"no box {name}")


def samples(data):
    """(offset, size) of every sample, in decode order."""
    at, _ = find(data, "stsz")
    fixed, count = struct.unpack_from(">II", data, at + 4)
    sizes = [fixed] * count if fixed else list(struct.unpack_from(f">{count}I", data, at + 12))
    at, _ = find(data, "stco")
    (chunks,) = struct.unpack_from(">I", data, at + 4)
    offsets = struct.unpack_from(f">{chunks}I", data, at + 8)
    at, _ = find(data, "stsc")
    (runs,) = struct.unpack_from(">I", data, at + 4)
    table = [struct.unpack_from(">III", data, at + 8 + 12 * i) for i in range(runs)]
    out = []
    for chunk, offset in enumerate(offsets, 1):
        per_chunk = next(n for first, n, _ in reversed(table) if first <= chunk)
        for _ in range(per_chunk):
            out.append((offset, sizes[len(out)]))
            offset += out[-1][1]
    return out


def keys(data):
    """Decode indices of the sync samples."""
    try:
        at, _ = find(data, "stss")
    except ValueError:
        return list(range(len(samples(data))))
    (count,) = struct.unpack_from(">I", data, at + 4)
    return [n - 1 for n in struct.unpack_from(f">{count}I", data, at + 8)]


# Damage: each takes (rng, bytearray), changes it in place and says what it did.


def flip(rng, data):
    start, end = find(data, "mdat")
    places = [(rng.randrange(start, end), rng.randrange(8)) for _ in range(4)]
    for at, bit in places:
        data[at] ^= 1 << bit
    return f"bits flipped at {places}"


def zeros(rng, data):
    start, end = find(data, "mdat")
    at = rng.randrange(start, max(start + 1, end - 4096))
    stop = min(end, at + 4096)
    data[at:stop] = bytes(stop - at)
    return f"zeros in {at}..{stop}"


def cut(rng, data):
    at = rng.randrange(len(data) // 10, len(data) - 1)
    del data[at:]
    return f"cut at {at}"


def moov(rng, data):
    start, end = find(data, "moov")
    places = [(rng.randrange(start, end), rng.randrange(256)) for _ in range(4)]
    for at, value in places:
        data[at] = value
    return f"moov bytes set {places}"


def swap_ranges(rng, data):
    table = samples(data)
    i, j = rng.sample(range(len(table)), 2)
    (a, n), (b, m) = table[i], table[j]
    n = min(n, m)
    data[a : a + n], data[b : b + n] = data[b : b + n], data[a : a + n]
    return f"{n} bytes of samples {i} and {j} swapped"


def lose_key(rng, data):
    offset, size = samples(data)[rng.choice(keys(data))]
    data[offset : offset + size] = bytes(size)
    return f"key sample at {offset} zeroed"


def false_key(rng, data):
    at, _ = find(data, "stss")
    (count,) = struct.unpack_from(">I", data, at + 4)
    i = rng.randrange(1, count)
    (number,) = struct.unpack_from(">I", data, at + 8 + 4 * i)
    struct.pack_into(">I", data, at + 8 + 4 * i, number - 1)
    return f"sync sample {number} moved to {number - 1}"


def foreign_offset(rng, data):
    at, _ = find(data, "stco")
    (count,) = struct.unpack_from(">I", data, at + 4)
    i = rng.randrange(count)
    (offset,) = struct.unpack_from(">I", data, at + 8 + 4 * i)
    struct.pack_into(">I", data, at + 8 + 4 * i, offset + rng.choice([1, 7, 64, 1000]))
    return f"chunk {i} displaced from {offset}"


def pts_jump(rng, data):
    at, _ = find(data, "stts")
    count, delta = struct.unpack_from(">II", data, at + 8)
    struct.pack_into(">I", data, at + 12, delta * rng.choice([3, 1000]) + 1)
    return f"duration of {count} samples changed from {delta}"


def no_frames(rng, data):
    at, _ = find(data, "stsz")
    struct.pack_into(">I", data, at + 8, 0)
    return "sample count set to 0"


STRUCTURAL = [swap_ranges, lose_key, false_key, foreign_offset, pts_jump, no_frames, *ODD]
TEN = [flip, flip, flip, flip, zeros, cut, moov, None, None, "intact"]


def encode(path, size, seconds, arguments):
    """Make one clip unless it is there."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.mp4")
    source = SOURCE.format(size=size, seconds=seconds)
    command = ["ffmpeg", "-v", "error", "-y", "-f", "lavfi", "-i", source, "-map_metadata", "-1",
               "-fflags", "+bitexact", *arguments.split(), str(part)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{path.name}: ffmpeg failed: {done.stderr.strip()}")
    part.rename(path)


def damage(rng, number, chosen, structural, clean, out):
    """Write damaged file `number`; its manifest entry."""
    kind = TEN[number % len(TEN)]
    if kind is None:
        kind = STRUCTURAL[structural % len(STRUCTURAL)]
    target = out / "damaged" / f"{number:04d}.mp4"
    if isinstance(kind, str) and kind in ODD:
        source = clean / f"{kind}.mp4"
        encode(source, "320x240", 2, ODD[kind])
        target.write_bytes(source.read_bytes())
        codec = "hevc" if kind == "gray12" else "h264"
        entry = {
            "source": source.name,
            "codec": codec,
            "kind": kind,
            "detail": "",
            "expect": "intact",
        }
    else:
        name = rng.choice(chosen)
        if kind is false_key:  # needs a clip whose GOPs have inner samples
            name = rng.choice([c for c in chosen if "g30" in c] or chosen)
        source = clean / f"{name}.mp4"
        data = bytearray(source.read_bytes())
        intact = kind == "intact"
        detail = "" if intact else kind(rng, data)
        target.write_bytes(data)
        entry = {"source": source.name, "codec": CLIPS[name][0],
                 "kind": kind if intact else kind.__name__, "detail": detail,
                 "expect": "intact" if intact else "damaged"}  # fmt: skip
    return {"file": target.name, **entry}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("n", type=int)
    parser.add_argument("out", type=Path)
    codecs = sorted({c[0] for c in CLIPS.values()})
    parser.add_argument("--codec", action="append", choices=codecs, help="default: all")
    args = parser.parse_args()

    chosen = [n for n, c in CLIPS.items() if args.codec is None or c[0] in args.codec]
    clean = args.out / "clean"
    for name in chosen:
        encode(clean / f"{name}.mp4", *CLIPS[name][1:])
    (args.out / "damaged").mkdir(parents=True, exist_ok=True)
    manifest, structural = [], 0
    for number in range(args.n):
        rng = random.Random(args.seed * 1_000_003 + number)
        manifest.append(damage(rng, number, chosen, structural, clean, args.out))
        structural += TEN[number % len(TEN)] is None
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    print(f"{len(manifest)} files in {args.out / 'damaged'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
