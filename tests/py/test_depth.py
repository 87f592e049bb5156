"""Depth: the table of values, and depth videos through items, batches and single files."""

import json
import math
import shutil
import subprocess

import numpy as np
import pytest
import reelpool
from demo_sets import array, open_demo
from reelpool.depth import CODES, _numpy_table, depth_table
from reelpool.errors import FormatError
from written_datasets import NUMBERS, STATE, write_v30

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

INFO = {"video.depth_min": 0.1, "video.depth_max": 4.0, "video.shift": 2.0, "video.use_log": True}


@pytest.mark.parametrize("info", [None, {}, INFO, {**INFO, "video.use_log": False}])
def test_the_table_is_the_formula(info):
    p = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}
    p |= {name: (info or {}).get(f"video.{name}", value) for name, value in p.items()}
    low, high, shift = p["depth_min"], p["depth_max"], p["shift"]
    x = np.arange(CODES) / (CODES - 1)
    if p["use_log"]:
        a, b = math.log(low + shift), math.log(high + shift)
        metres = np.exp(a + x * (b - a)) - shift
    else:
        metres = low + x * (high - low)
    table = depth_table(info, "m")
    assert table.dtype == np.float32 and table.shape == (CODES,)
    assert np.abs(table - metres).max() < 5e-6 * high
    assert table.min() >= np.float32(low) and table.max() <= np.float32(high)
    millimetres = depth_table(info, "mm")
    assert np.array_equal(millimetres, np.rint(millimetres)) and (np.diff(millimetres) >= 0).all()
    assert np.abs(millimetres - table * 1000).max() <= 0.501


def test_without_torch_at_most_two_codes_differ():
    a, b = math.log(0.01 + 3.5), math.log(10 + 3.5)
    scale = (b - a) / (CODES - 1)
    own = _numpy_table(scale, a, 3.5, 0.01, 10.0, "mm")
    difference = np.abs(own - depth_table(None, "mm"))
    assert difference.max() <= 1 and (difference > 0).sum() <= 2


def test_parameters_without_logarithm():
    with pytest.raises(FormatError, match="shift"):
        depth_table({**INFO, "video.shift": -0.1}, "m", "depth")


@pytest.fixture(scope="module")
def depth_set(tmp_path_factory):
    """(root, codes): 12 random pictures as lossless 12-bit HEVC, in a v3.0 set of 3 episodes."""
    if shutil.which("ffmpeg") is None:
        pytest.skip("needs ffmpeg")
    root = tmp_path_factory.mktemp("depth") / "set"
    codes = np.random.default_rng(1).integers(0, CODES, (12, 64, 96), np.uint16)
    codes[:, 0, :2] = 0, CODES - 1
    feature = {"dtype": "video", "shape": [64, 96, 1], "names": ["height", "width", "channels"],
               "info": {**INFO, "is_depth_map": True, "video.is_depth_map": True}}  # fmt: skip
    write_v30(root, features={"depth": feature, "state": STATE, **NUMBERS}, cameras=["depth"])
    path = root / "videos/depth/chunk-000/file-000.mp4"
    path.parent.mkdir(parents=True)
    command = ["ffmpeg", "-v", "error", "-f", "rawvideo", "-pix_fmt", "gray12le", "-s", "96x64",
               "-r", "10", "-i", "-", "-c:v", "libx265", "-x265-params",
               "lossless=1:keyint=2:log-level=none", "-pix_fmt", "gray12le", str(path)]  # fmt: skip
    done = subprocess.run(command, input=codes.tobytes(), capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"this ffmpeg writes no 12-bit HEVC: {done.stderr[-200:]!r}")
    return root, codes


@pytest.mark.parametrize("unit", ["m", "mm"])
def test_items(depth_set, unit):
    root, codes = depth_set
    dataset = open_demo(root, depth_output_unit=unit)  # return_uint8 is for colour
    assert dataset.meta.depth_keys == ["depth"] and dataset.depth_output_unit == unit
    table = depth_table(INFO, unit)
    for row in (0, 5, 11):
        picture = dataset[row]["depth"]
        assert picture.shape == (1, 64, 96) and picture.dtype == torch.float32
        assert np.array_equal(array(picture)[0], table[codes[row]])


def test_windows_and_batches(depth_set):
    root, codes = depth_set
    table = depth_table(INFO, "mm")
    dataset = open_demo(root, delta_timestamps={"depth": [-0.1, 0.0]})
    dataset.set_image_transforms(lambda picture: picture * 0)  # never on depth
    with reelpool.Loader(dataset, 3, sampler=[3, 4, 11], num_threads=1) as loader:
        (batch,) = loader
    want = table[codes[[[3, 3], [3, 4], [10, 11]]]][:, :, None]
    assert batch["depth"].shape == (3, 2, 1, 64, 96)
    assert np.array_equal(array(batch["depth"]), want)


def test_codes_of_single_files(depth_set):
    root, codes = depth_set
    path = root / "videos/depth/chunk-000/file-000.mp4"
    got = reelpool.decode_video_frames(path, [1.1, 0.0, 0.5], 1e-4, is_depth=True)
    assert got.dtype == torch.uint16 and got.shape == (3, 1, 64, 96)
    assert np.array_equal(array(got)[:, 0], codes[[11, 0, 5]])


def test_resize_is_for_colour(depth_set):
    root, _ = depth_set
    assert open_demo(root, resize=(32, 48))[0]["depth"].shape == (1, 64, 96)
    with pytest.raises(ValueError, match="resize"):
        open_demo(root, resize={"depth": (32, 48)})


def test_stats_follow_the_unit(depth_set, tmp_path):
    root = shutil.copytree(depth_set[0], tmp_path / "set")
    stats = {"depth": {"mean": [[[1.5]]], "min": [[[0.2]]], "max": [[[3.0]]], "std": [[[0.5]]]}}
    (root / "meta/stats.json").write_text(json.dumps(stats))
    metres, millimetres = (open_demo(root, depth_output_unit=u).meta.stats for u in ("m", "mm"))
    ratio = millimetres["depth"]["mean"] / metres["depth"]["mean"]
    assert np.all((ratio == 1000) | (ratio == 1))


def test_the_feature_is_found_by_either_flag(depth_set, tmp_path):
    root = shutil.copytree(depth_set[0], tmp_path / "set")
    info = json.loads((root / "meta/info.json").read_text())
    del info["features"]["depth"]["info"]["is_depth_map"]
    (root / "meta/info.json").write_text(json.dumps(info))
    assert open_demo(root).meta.depth_keys == ["depth"]


def test_a_mixture_reads_each_set_by_its_own_table(depth_set, tmp_path):
    root, codes = depth_set
    other = shutil.copytree(root, tmp_path / "set")
    info = json.loads((other / "meta/info.json").read_text())
    info["features"]["depth"]["info"]["video.depth_max"] = 9.0
    (other / "meta/info.json").write_text(json.dumps(info))
    sets = [open_demo(root), open_demo(other)]
    far = {**INFO, "video.depth_max": 9.0}
    with reelpool.Loader(sets, 4, shuffle=True, num_threads=1) as loader:
        for batch in loader:
            for d, row, picture in zip(batch["dataset_index"], batch["index"], batch["depth"]):
                table = depth_table(far if d else INFO, "mm")
                assert np.array_equal(array(picture)[0], table[codes[int(row)]])
    with pytest.raises(
        ValueError, match=r"'depth' is float32 .* mm in .* m in .*depth_output_unit="
    ):
        reelpool.Loader([sets[0], open_demo(other, depth_output_unit="m")], 4)
