"""What the tests of the Hub share: a stand-in for it, and a home without a trace of the user's."""

import gc
import importlib
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants as constants
import huggingface_hub.utils as utils
import numpy as np
import pytest
from demo_sets import ROOT, array
from reelpool import LeRobotDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))
from hub_stand_in import StandIn, files_of

CANARY = "-".join(["hf_Canary", "that", "must", "not", "sing"])
FILES = [p for p in files_of(ROOT) if not p.startswith("meta/")]


@pytest.fixture(name="hub")
def hub_fixture(tmp_path, monkeypatch):
    """A stand-in for the Hub that HF_ENDPOINT names, with the demo set as o/n, tag v3.0."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
                 "HF_HUB_DISABLE_IMPLICIT_TOKEN", "REELPOOL_CACHE", "LEROBOT_HOME"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    for name, folder in (("HF_HOME", "home"), ("HF_LEROBOT_HOME", "lerobot"),
                         ("HF_HUB_CACHE", "hub")):  # fmt: skip
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    # huggingface_hub reads these when it is imported.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    new_session()  # old versions build it into the client
    # Its waits of seconds are short here, so that calls left behind end with their test.
    clock = SimpleNamespace(sleep=lambda s: time.sleep(min(s, 0.05)), time=time.time)
    for module in ("huggingface_hub.utils._http", "huggingface_hub.file_download"):
        monkeypatch.setattr(importlib.import_module(module), "time", clock)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home/token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "home/tokens"))
    with StandIn(page=3) as stand_in:
        monkeypatch.setenv("HF_ENDPOINT", stand_in.endpoint)
        stand_in.add("o/n", ROOT)
        stand_in.repos["o/n"].tags["v3.0"] = stand_in.repos["o/n"].branches["main"]
        yield stand_in
    left = [thread for thread in threading.enumerate() if thread.name == "reelpool-hub"]
    for thread in left:
        thread.join(20)
    if not left:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # their sockets
        new_session()
        gc.collect()


def new_session():
    """Make huggingface_hub forget its HTTP client."""
    for name in ("reset_sessions", "close_session"):
        getattr(utils, name, int)()


def open_hub(repo_id="o/n", **options):
    """A dataset by its repo id: uint8 pictures, one thread."""
    options = {"return_uint8": True, "num_threads": 1, **options}
    options.setdefault("storage_options", {"network_timeout": 60})
    return LeRobotDataset(repo_id, **options)


def same_items(one, other, rows):
    """True if the items of some rows are equal, key by key, in the same order."""
    for a, b in zip(one.__getitems__(rows), other.__getitems__(rows)):
        if list(a) != list(b):
            return False
        for key in a:
            equal = (
                a[key] == b[key] if key == "task" else np.array_equal(array(a[key]), array(b[key]))
            )
            if not equal:
                return False
    return True
