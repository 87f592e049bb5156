"""An error inside a DataLoader worker reaches the parent with its class, builtin and file name."""

import shutil
import sys
import tempfile
from pathlib import Path

import reelpool
from _common import open_dataset
from torch.utils.data import DataLoader


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        shutil.copytree(sys.argv[1], root, copy_function=shutil.copyfile)
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        for path in root.rglob("*.mp4"):
            path.write_bytes(path.read_bytes()[:100])
        loader = DataLoader(
            open_dataset(root), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[2]
        )
        try:
            next(iter(loader))
        except reelpool.errors.FormatError as error:
            assert isinstance(error, ValueError)
            assert ".mp4" in str(error), error
        else:
            raise AssertionError("a worker read truncated files")
        try:
            next(iter(DataLoader(open_dataset(root), batch_size=2)))
        except reelpool.errors.FormatError as error:
            assert error.file, vars(error)
        else:
            raise AssertionError("truncated files were read")
    print("ok")


if __name__ == "__main__":
    main()
