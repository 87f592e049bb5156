"""The files go away while they are read: frames or a typed error with the file's name, no crash."""

import shutil
import sys
import tempfile
from pathlib import Path

import reelpool
from _common import open_dataset, pixels

with tempfile.TemporaryDirectory() as folder:
    root = Path(folder) / "copy"
    shutil.copytree(sys.argv[1], root, copy_function=shutil.copyfile)
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    dataset = open_dataset(root)
    step = max(1, len(dataset) // 40)
    order = list(range(0, len(dataset), step))
    want = {i: pixels(open_dataset()[i]) for i in order[:2] + order[-2:]}
    assert pixels(dataset[order[0]]) == want[order[0]]
    loader = iter(reelpool.Loader(dataset, 4, sampler=order))
    next(loader)
    shutil.rmtree(root / "videos")

    failures = 0
    for i in order:
        try:
            item = dataset[i]
        except reelpool.errors.ReelpoolError as error:
            assert isinstance(error, (OSError, RuntimeError)), error
            assert ".mp4" in str(error), error
            failures += 1
        else:
            assert i not in want or pixels(item) == want[i]
    assert failures > 0
    try:
        for _ in loader:
            pass
    except reelpool.errors.ReelpoolError as error:
        assert ".mp4" in str(error), error
    else:
        raise AssertionError("the loader read files that are gone")
print("ok")
