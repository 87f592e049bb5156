"""Selections by their own functions: rounding of deltas, order, messages."""

import types

import pytest
from reelpool.selection import delta_rows, select_cameras, target_sizes

VIDEO = {"dtype": "video", "shape": (4, 4, 3)}
META = types.SimpleNamespace(
    repo_id="a/b",
    fps=30,
    features={
        "top": VIDEO,
        "depth": VIDEO,
        "cam": {"dtype": "image", "shape": (4, 4, 3)},
        "action": {"dtype": "float32", "shape": (2,)},
        "note": {"dtype": "string", "shape": (1,)},
        "language_events": {"dtype": "language", "shape": (1,)},
    },
    camera_keys=["top", "depth", "cam"],
    video_keys=["top", "depth"],
    image_keys=["cam"],
    depth_keys=["depth"],
)


def rows_of(seconds, fps=30, tolerance=1e-4):
    meta = types.SimpleNamespace(**{**vars(META), "fps": fps})
    return delta_rows(meta, {"action": seconds}, tolerance, [])["action"]


@pytest.mark.parametrize("fps", [10, 15, 24, 30, 50, 60])
def test_multiples_of_the_frame_time(fps):
    offsets = list(range(-200, 200))
    assert rows_of([n / fps for n in offsets], fps) == tuple(offsets)
    assert rows_of([round(n / fps, 4) for n in offsets], fps, 1e-4) == tuple(offsets)


def test_halves_go_to_even():
    assert rows_of([0.05, 0.15, 0.25, -0.05], 10, 1) == (0, 2, 2, 0)


def test_order_and_repeats_are_the_callers():
    rows = delta_rows(META, {"top": [0.1, 0.0, 0.1], "action": [0]}, 1e-4, ["top"])
    assert list(rows.items()) == [("top", (3, 0, 3)), ("action", (0,))]
    assert delta_rows(META, None, 1e-4, []) == delta_rows(META, {}, 1e-4, []) == {}


@pytest.mark.parametrize(
    "key, match",
    [("none", "there are top"), ("note", "window"), ("language_events", "window"),
     ("top", "cameras=")],
)  # fmt: skip
def test_keys_without_window(key, match):
    with pytest.raises(ValueError, match=match):
        delta_rows(META, {key: [0.0]}, 1e-4, [])


def test_cameras():
    assert select_cameras(META, None) == (("top", "depth"), frozenset())
    assert select_cameras(META, ["cam", "depth"]) == (("depth",), frozenset())
    assert select_cameras(META, "top") == (("top",), frozenset({"cam"}))
    with pytest.raises(ValueError, match="wrist"):
        select_cameras(META, ["top", "wrist"])


def test_sizes():
    assert target_sizes(META, (2, 3), ["top", "depth"]) == {"top": (2, 3)}
    assert target_sizes(META, {"top": [2, 3]}, ["top"]) == {"top": (2, 3)}
    assert target_sizes(META, None, ["top"]) == {}
    for bad in ({"depth": (2, 3)}, {"cam": (2, 3)}, {"top": (2,)}):
        with pytest.raises(ValueError, match="resize"):
            target_sizes(META, bad, ["top", "depth"])
