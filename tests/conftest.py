"""What all Python tests share: the report's header, the real data, and REELPOOL_REQUIRE.

A test that cannot run here skips and names the reason. REELPOOL_REQUIRE=torch,data,lerobot makes
failures of the skips whose reason names one of the words: a CI job must not pass by skipping.
"""

import atexit
import importlib.metadata
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test asks the real Hub
if "REELPOOL_CACHE" not in os.environ:  # none reads or writes the user's own check sums
    os.environ["REELPOOL_CACHE"] = tempfile.mkdtemp(prefix="reelpool-tests-")
    atexit.register(shutil.rmtree, os.environ["REELPOOL_CACHE"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell started us in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPO = Path(__file__).resolve().parents[1]
REQUIRED = [word for word in os.environ.get("REELPOOL_REQUIRE", "").split(",") if word]


def pytest_report_header():
    """Versions of what the results depend on."""
    versions = []
    for name in ("numpy", "pyarrow", "torch", "lerobot"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    return [", ".join(versions), core_header(), f"test data: {find_data() or 'none'}"]


def core_header():
    """Build and run-time facts of reelpool._core, or why it cannot be imported."""
    try:
        from reelpool import _core
    except ImportError as error:
        return f"reelpool._core: {error}"
    describe = getattr(_core, "build_info", None)
    return f"reelpool._core: {describe() if describe else _core.__file__}"


def find_data():
    """Folder of the real data sets, or None."""
    root = Path(os.environ.get("REELPOOL_TEST_DATA", REPO.parent / "shared" / "data"))
    return root if root.is_dir() else None


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the real data sets (read-only); skips where there is none."""
    root = find_data()
    if root is None:
        pytest.skip("no test data: set REELPOOL_TEST_DATA to its folder")
    return root


def forbid_skip(report):
    """Make a skip whose reason names a required word a failure."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    for word in REQUIRED:
        if re.search(rf"\b{re.escape(word)}\b", reason):
            report.outcome = "failed"
            report.longrepr = f"REELPOOL_REQUIRE names {word}, but: {reason}"
            return


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    forbid_skip(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    outcome = yield
    forbid_skip(outcome.get_result())
