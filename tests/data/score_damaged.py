"""Scores how reads meet damaged files, with and without check sums made of the intact ones.

    python tests/data/score_damaged.py OUT...      (folders of make_damaged.py)

Each damaged file is read picture by picture at the times of its intact source. A picture is right,
refused (a typed error) or wrong (other pixels, no error). Prints one table; exit status 1 if sums
let a wrong picture through, or an intact file was refused.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from reelpool import errors, sums
from reelpool.engine import U8, U16
from reelpool.video import VideoDecoder

TOLERANCE_S = 1e-4


def read(path, times, pixel):
    """Per time: the picture, or the error."""
    try:
        decoder = VideoDecoder(path)
    except errors.ReelpoolError as error:
        return [error] * len(times)
    try:
        return list(decoder.read(decoder.nearest(times, TOLERANCE_S), pixel))
    except errors.ReelpoolError:
        pass  # which pictures fail is seen one by one
    found = []
    for time in times:
        try:
            found.append(decoder.read(decoder.nearest([time], TOLERANCE_S), pixel)[0])
        except errors.ReelpoolError as error:
            found.append(error)
    return found


def judge(found, wanted):
    """Counts of right, refused and wrong pictures."""
    counts = Counter()
    for got, want in zip(found, wanted):
        if isinstance(got, Exception):
            counts["refused"] += 1
        else:
            counts["right" if np.array_equal(got, want) else "wrong"] += 1
    return counts


class Source:
    """An intact clip: its bytes, times and pictures."""

    def __init__(self, path):
        self.data = path.read_bytes()
        self.pixel = U16 if path.stem == "gray12" else U8
        decoder = VideoDecoder(path)
        self.times = list(decoder._times)
        self.pictures = decoder.read(np.arange(len(self.times)), self.pixel)


def score(entry, out, source, folder):
    """(counts without sums, counts with sums) of one damaged file."""
    path = folder / entry["file"]
    damaged = (out / "damaged" / entry["file"]).read_bytes()
    path.write_bytes(damaged)
    plain = judge(read(path, source.times, source.pixel), source.pictures)
    path.write_bytes(source.data)
    kept = sums.compute(path)
    sums.store(kept)
    path.write_bytes(damaged)
    os.utime(path, ns=(kept.mtime_ns, kept.mtime_ns))  # as when a disk rots
    checked = judge(read(path, source.times, source.pixel), source.pictures)
    sums.forget(path)
    path.unlink()
    return plain, checked


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="+")
    args = parser.parse_args()
    table, bad = {}, 0
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["REELPOOL_CACHE"] = str(Path(scratch) / "cache")
        for out in args.out:
            sources = {}
            for entry in json.loads((out / "manifest.json").read_text()):
                name = entry["source"]
                if name not in sources:
                    sources[name] = Source(out / "clean" / name)
                plain, checked = score(entry, out, sources[name], Path(scratch))
                intact = entry["expect"] == "intact"
                key = (entry["codec"], "intact" if intact else "damaged")
                files, a, b = table.setdefault(key, [0, Counter(), Counter()])
                table[key][0] = files + 1
                a.update(plain, files=plain["wrong"] > 0)
                b.update(checked, files=checked["wrong"] > 0)
                if checked["wrong"] or (intact and (plain["refused"] or checked["refused"])):
                    bad += 1
                    print(f"{out.name}/{entry['file']} ({entry['kind']}): {dict(checked)}")
    print("| codec | files | pictures | without sums: right / refused / wrong (files) |"
          " with sums: right / refused / wrong |\n|---|---|---|---|---|")  # fmt: skip
    for (codec, kind), (files, a, b) in sorted(table.items()):
        total = a["right"] + a["refused"] + a["wrong"]
        print(f"| {codec}, {kind} | {files} | {total} | {a['right']} / {a['refused']} / "
              f"{a['wrong']} ({a['files']}) | "
              f"{b['right']} / {b['refused']} / {b['wrong']} |")  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
