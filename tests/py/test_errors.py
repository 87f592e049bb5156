"""Error classes: what they derive from, how they are built, what they say and carry."""

import copy
import pickle

import pytest
from reelpool import errors
from reelpool.errors import from_core, make_error, redact

CLASSES = {
    "FrameTimestampError": ValueError,
    "FormatError": ValueError,
    "UnsupportedMediaError": NotImplementedError,
    "DecodeError": RuntimeError,
    "TooManyBadSamplesError": errors.DecodeError,
    "DatasetChangedError": RuntimeError,
    "StorageError": OSError,
    "NotFoundError": FileNotFoundError,
    "AuthError": PermissionError,
    "RemoteError": OSError,
    "RemoteTimeoutError": TimeoutError,
    "LoaderStalledError": TimeoutError,
    "ClosedError": RuntimeError,
    "CudaError": RuntimeError,
    "OfflineError": ConnectionError,
    "StateError": ValueError,
    "CompatibilityError": ValueError,
    "BackwardCompatibilityError": errors.CompatibilityError,
    "ForwardCompatibilityError": errors.CompatibilityError,
    "SharedMemoryError": OSError,
    "MissingExtraError": ImportError,
}
CODES = {
    "TIMESTAMP": errors.FrameTimestampError,
    "FORMAT": errors.FormatError,
    "UNSUPPORTED": errors.UnsupportedMediaError,
    "DECODE": errors.DecodeError,
    "CHANGED": errors.DatasetChangedError,
    "IO": errors.StorageError,
    "NOT_FOUND": errors.NotFoundError,
    "AUTH": errors.AuthError,
    "HTTP": errors.RemoteError,
    "TIMEOUT": errors.RemoteTimeoutError,
    "STALLED": errors.LoaderStalledError,
    "CLOSED": errors.ClosedError,
    "CUDA": errors.CudaError,
    "NOMEM": MemoryError,
    "ARG": ValueError,
}


@pytest.mark.parametrize("name", CLASSES)
def test_class_derives_from_its_builtin_and_pickles_with_its_coordinates(name):
    cls = getattr(errors, name)
    assert issubclass(cls, (errors.ReelpoolError)) and issubclass(cls, CLASSES[name])
    error = make_error(cls, "it broke", file="videos/a.mp4", episode=4, time=1.5)
    for again in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls and str(again) == "it broke" and again.args == ("it broke",)
        assert (again.file, again.episode, again.time) == ("videos/a.mp4", 4, 1.5)
        assert again.camera is None and again.dataset is None and again.status is None


def test_every_class_is_listed():
    classes = {
        n for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, Exception)
    }
    assert classes == set(CLASSES) | {"ReelpoolError"}


def test_unknown_coordinate_is_refused():
    with pytest.raises(TypeError, match="colour"):
        make_error(errors.FormatError, "x", colour="red")


@pytest.mark.parametrize("code", CODES)
def test_core_code_maps_to_its_class(code):
    error = from_core(code, "what happened", {"file": "f.mp4"})
    assert type(error) is CODES[code]
    assert str(error).startswith("what happened")


def test_core_message_names_the_place_and_what_to_do():
    where = {"dataset": "a/b", "file": "videos/f.mp4", "camera": "top", "episode": 41}
    where |= {"frame": 812, "offset": 18_200_000}
    error = from_core("DECODE", "av1: invalid data", where)
    first, second = str(error).split("\n")
    assert first == (
        "av1: invalid data, frame 812, camera top, episode 41, a/b videos/f.mp4 @ 18.2 MB"
    )
    assert second.startswith("  Run: reelpool verify a/b --episode 41 --level decode")
    assert (error.frame, error.offset, error.camera) == (812, 18_200_000, "top")


def test_core_place_is_not_repeated_but_a_longer_number_is_no_repeat():
    text = str(from_core("DECODE", "bad data at frame 812", {"frame": 812, "camera": "top"}))
    assert text.count("frame 812") == 1
    error = from_core("DECODE", "bad data at frame 812", {"frame": 8, "file": "a.mp4"})
    assert str(error).startswith("bad data at frame 812, frame 8, a.mp4\n")


def test_unknown_core_coordinates_stay_none():
    nothing = {"file": "", "episode": -1, "frame": -1, "offset": -1, "length": -1, "camera": None}
    nothing |= {"time": float("nan"), "nearest": float("nan"), "status": -1}
    error = from_core("FORMAT", "broken", nothing)
    assert all(getattr(error, name) is None for name in errors.COORDINATES)
    assert str(error).startswith("broken\n")


def test_timestamp_error_tells_both_times():
    error = from_core("TIMESTAMP", "no frame", {"time": 1.25, "nearest": 1.3})
    assert "time 1.250000 s (nearest 1.300000 s)" in str(error)
    assert isinstance(error, ValueError) and error.nearest == 1.3


def test_unknown_code_is_still_ours():
    assert type(from_core("NEW", "x", {})) is errors.ReelpoolError


def test_urls_lose_query_and_user():
    url = "https://me:secret@host.org/a/b.mp4?X-Amz-Signature=abc#f"
    assert redact(f"GET {url} failed") == "GET https://host.org/a/b.mp4 failed"
    error = make_error(errors.RemoteError, f"no answer from {url}", file=url)
    assert "secret" not in str(error) + error.file and "abc" not in str(error) + error.file
    assert "secret" not in str(pickle.dumps(error))


def test_torch_can_raise_it_again_from_a_worker():
    pytest.importorskip("torch")
    from torch._utils import ExceptionWrapper

    for name in CLASSES:
        cls = getattr(errors, name)
        try:
            raise make_error(cls, "in the worker", episode=3)
        except errors.ReelpoolError:
            wrapped = pickle.loads(pickle.dumps(ExceptionWrapper(where="in worker")))
        with pytest.raises(cls, match="in the worker"):
            wrapped.reraise()
