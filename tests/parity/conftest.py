"""Datasets for the comparison: two of real robots if present, three made here by LeRobot itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("REELPOOL_TEST_DATA", HERE.parents[1].parent / "shared" / "data"))
RECORDED = ("cam3", "g1_small_v30")
MADE = ("av1", "h264", "stills")


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Folder with the datasets of make_datasets.py."""
    folder = tmp_path_factory.mktemp("made")
    done = subprocess.run(
        [sys.executable, HERE / "make_datasets.py", folder],
        capture_output=True,
        text=True,
        env={**os.environ, "SVT_LOG": "0"},
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(params=RECORDED + MADE)
def root(request):
    """Root folder of one dataset."""
    if request.param in MADE:
        return request.getfixturevalue("made") / request.param
    folder = DATA / request.param
    if not folder.is_dir():
        pytest.skip(f"no {request.param} (set REELPOOL_TEST_DATA to the folder that holds it)")
    return folder
