"""Metadata of v3.0, v2.1 and v2.0: what it says, what it refuses, how it finds and opens files."""

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expected_items import DATA
from reelpool.errors import (
    BackwardCompatibilityError,
    FormatError,
    ForwardCompatibilityError,
    NotFoundError,
)
from reelpool.metadata import LeRobotDatasetMetadata
from written_datasets import (
    CAMERA,
    NUMBERS,
    STATE,
    edit_info,
    write_episodes,
    write_jsonl,
    write_v2,
    write_v30,
)

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no test data in {DATA}")
VIDEO_FEATURES = {"top": CAMERA, "state": STATE, **NUMBERS}


def meta_of(root, **options):
    return LeRobotDatasetMetadata("t/t", root, **options)


@pytest.fixture(params=["v3.0", "v2.1", "v2.0"])
def any_root(request, tmp_path):
    if request.param == "v3.0":
        return write_v30(tmp_path / "s", features=VIDEO_FEATURES, cameras=["top"])
    return write_v2(tmp_path / "s", request.param, features=VIDEO_FEATURES)


# -- what it says --


def test_attributes(any_root):
    meta = meta_of(any_root)
    assert meta.root == any_root and isinstance(meta.root, Path) and meta.repo_id == "t/t"
    assert (meta.fps, meta.total_episodes, meta.total_frames, meta.total_tasks) == (10, 3, 12, 2)
    assert (
        meta.video_keys == ["top"] == meta.camera_keys and meta.image_keys == meta.depth_keys == []
    )
    assert list(meta.features) == ["top", "state", *NUMBERS]
    assert meta.shapes["top"] == (4, 4, 3) and meta.features["state"]["shape"] == (2,)
    assert meta.names["top"] == ["height", "width", "channels"] and meta.names["state"] is None
    assert meta.chunks_size == 1000 and meta.robot_type is None and not meta.has_language_columns
    assert meta.get_chunk_settings()["chunks_size"] == 1000
    assert meta.url_root == "hf://datasets/t/t" and bool(meta)
    assert meta.tools[0]["function"]["name"] == "say"
    assert "12 frames" in repr(meta)


def test_flat_columns(any_root):
    columns = meta_of(any_root)._columns
    assert columns.length.tolist() == [3, 4, 5]
    assert columns.from_index.tolist() == [0, 3, 7] and columns.to_index.tolist() == [3, 7, 12]
    top = columns.video["top"]
    dtypes = [columns.length.dtype, columns.from_index.dtype, columns.data_file.dtype]
    assert dtypes == [np.int64] * 3 and top.file_id.dtype == np.int32
    assert top.from_timestamp.dtype == np.float64
    v3 = meta_of(any_root).is_v3
    assert top.from_timestamp.tolist() == ([0, 0.3, 0.7] if v3 else [0, 0, 0])
    assert top.file_id.tolist() == ([0, 0, 0] if v3 else [0, 1, 2])
    assert len(columns.video_files) == len(columns.data_files) == (1 if v3 else 3)


def test_episode_rows_have_the_columns_of_v30_in_every_version(any_root):
    episodes = meta_of(any_root).episodes
    wanted = {"episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index"}
    wanted |= {"data/chunk_index", "data/file_index", "videos/top/chunk_index"}
    wanted |= {f"videos/top/{name}" for name in ("file_index", "from_timestamp", "to_timestamp")}
    assert set(episodes.column_names) == wanted
    assert (
        len(episodes) == 3 and episodes[-1] == episodes[2] and episodes[np.int64(1)]["length"] == 4
    )
    assert np.asarray(episodes["dataset_from_index"], dtype=np.int64).tolist() == [0, 3, 7]
    assert all(type(tasks) is list for tasks in episodes["tasks"])
    assert episodes[1:]["length"] == [4, 5] and episodes[[2, -3]]["length"] == [5, 3]
    assert [row["length"] for row in episodes] == [3, 4, 5]
    assert len(episodes.filter(lambda row: row["length"] > 3)) == 2
    assert episodes.select_columns(["length"]).column_names == ["length"]
    with pytest.raises(IndexError):
        episodes[3]
    with pytest.raises(KeyError, match="colour"):
        episodes["colour"]


def test_paths(any_root):
    meta = meta_of(any_root)
    if meta.is_v3:
        want = ("data/chunk-000/file-000.parquet", "videos/top/chunk-000/file-000.mp4")
    else:
        want = (
            "data/chunk-000/episode_000002.parquet",
            "videos/chunk-000/top/episode_000002.mp4",
        )
    assert (str(meta.get_data_file_path(2)), str(meta.get_video_file_path(-1, "top"))) == want
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            meta.get_data_file_path(wrong)
    with pytest.raises(KeyError):
        meta.get_video_file_path(0, "state")


def test_filter_episodes(any_root):
    meta = meta_of(any_root)
    assert meta.filter_episodes(lambda row: row["length"] != 4) == [0, 2]
    assert meta.filter_episodes(lambda row: row["length"] != 4, [2, 1, 2, 77, -1]) == [2]
    with pytest.raises(TypeError):
        meta.filter_episodes("length")


def test_tasks_with_and_without_pandas(any_root, monkeypatch):
    meta = meta_of(any_root)
    assert meta.get_task_index("task 1") == 1 and meta.get_task_index("no") is None
    for blocked in (True, False):
        with monkeypatch.context() as patch:
            if blocked:
                patch.setitem(sys.modules, "pandas", None)
            tasks = meta_of(any_root).tasks
        assert list(tasks.index) == ["task 0", "task 1"] and len(tasks) == 2
        assert list(tasks["task_index"]) == [0, 1]
        assert tasks.iloc[1].name == "task 1" and tasks.loc["task 1"].task_index == 1


def test_tasks_of_a_pandas_frame_with_unnamed_index(tmp_path):
    root = write_v30(tmp_path / "s")
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"task_index": [1, 0]}, index=["b", "a"]).to_parquet(
        root / "meta/tasks.parquet"
    )
    assert meta_of(root)._task_names == {0: "a", 1: "b"}


def test_pickle_and_copy_read_again_but_keep_changed_statistics(any_root):
    (any_root / "meta/stats.json").write_text(json.dumps({"state": {"mean": [1, 2]}}))
    meta = meta_of(any_root)
    data = pickle.dumps(meta)
    assert len(data) < 4096
    meta.stats["state"]["mean"] = np.array([7.0])
    for again in (pickle.loads(pickle.dumps(meta)), copy.deepcopy(meta)):
        assert again.total_frames == 12 and again.episodes[1] == meta.episodes[1]
        assert again.stats["state"]["mean"].tolist() == [7.0]
    assert pickle.loads(data).stats["state"]["mean"].tolist() == [1, 2]
    with pytest.raises(AttributeError):
        _ = pickle.loads(data).colour


def test_info_by_attribute_and_by_key(any_root):
    info = meta_of(any_root).info
    with pytest.warns(DeprecationWarning):
        assert info["fps"] == 10
    with pytest.warns(DeprecationWarning), pytest.raises(KeyError):
        info["colour"]
    with pytest.warns(DeprecationWarning):
        info["robot_type"] = "arm"
    assert info.robot_type == "arm" == info.get("robot_type") and info.get("colour", 3) == 3
    assert "fps" in info and "colour" not in info
    assert info.to_dict()["features"]["state"]["shape"] == [2] and "tools" not in info.to_dict()


def test_unknown_info_fields_are_dropped_with_one_warning(tmp_path, caplog):
    root = write_v2(tmp_path / "s", info={"colour": 1, "total_videos": 3, "total_chunks": 1})
    assert not hasattr(meta_of(root).info, "colour")
    assert [r.message for r in caplog.records] == [
        "meta/info.json: unknown fields are ignored: colour"
    ]


def test_empty_dataset(tmp_path):
    root = write_v30(tmp_path / "s", (1,))
    edit_info(root, total_episodes=0, total_frames=0, total_tasks=0)
    meta = meta_of(root)
    assert meta.episodes is None and meta.tasks is None and meta.stats is None
    assert len(meta._columns.length) == 0 and meta.filter_episodes(lambda row: True) == []


def test_depth_keys_and_statistics_follow_the_unit(tmp_path, caplog):
    depth = {**CAMERA, "info": {"is_depth_map": True, "depth_unit": "m"}}
    old = {**CAMERA, "video_info": {"video.is_depth_map": True}}
    features = {"depth": depth, "old": old, "top": CAMERA, **NUMBERS}
    root = write_v2(tmp_path / "s", "v2.0", features=features)
    stats = {k: {"mean": [2.0], "count": [5]} for k in ("depth", "old", "top")}
    (root / "meta/stats.json").write_text(json.dumps(stats))
    for read_first in (True, False):
        meta = meta_of(root)
        assert meta.depth_keys == ["depth", "old"]
        if read_first:
            assert meta.stats["depth"]["mean"] == [2]
        caplog.clear()
        meta.rescale_depth_stats("mm")
        assert [r.levelname for r in caplog.records] == ["WARNING"] and "old" in caplog.text
        assert meta.stats["depth"]["mean"] == [2000] and meta.stats["depth"]["count"] == [5]
        assert meta.stats["old"]["mean"] == [2] == meta.stats["top"]["mean"]
    with pytest.raises(ValueError):
        meta.rescale_depth_stats("inch")


@needs_data
def test_v21_statistics_are_pooled_as_the_converter_does():
    pooled = LeRobotDatasetMetadata("a", DATA / "g1_small_v21").stats
    stored = LeRobotDatasetMetadata("a", DATA / "g1_small_v30").stats
    assert set(pooled) == set(stored)
    for key, entry in stored.items():
        for name, want in entry.items():
            assert pooled[key][name].ndim >= 1
            np.testing.assert_allclose(pooled[key][name], want, rtol=1e-12)


@needs_data
@pytest.mark.parametrize("name", ["g1_small_v30", "g1_small_v21", "cam3"])
def test_every_file_named_by_real_metadata_exists(name):
    meta = LeRobotDatasetMetadata("a", DATA / name)
    assert meta._columns.length.sum() == meta.total_frames
    for rel in meta._columns.data_files + meta._columns.video_files:
        assert Path(meta._files.resolve(rel)).is_file()
    assert set(meta.stats) >= set(meta.camera_keys)
    for key in meta.video_keys:
        columns = meta._columns.video[key]
        assert (columns.to_timestamp > columns.from_timestamp).all()


def test_many_episode_files_in_any_order(tmp_path):
    root = write_v30(tmp_path / "s")
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    stats = pa.array([[0.0]] * 3)
    table = table.append_column("stats/state/mean", stats)
    write_episodes(root, table.take([2]).to_pydict(), file=0)
    write_episodes(root, table.take([1, 0]).to_pydict(), file=1)
    meta = meta_of(root)
    assert meta._columns.length.tolist() == [3, 4, 5]
    assert list(meta.episodes["episode_index"]) == [0, 1, 2]
    assert not any(name.startswith("stats/") for name in meta.episodes.column_names)


def test_import_is_light():
    code = (
        "import sys, reelpool.metadata, reelpool.tables, reelpool.sampler, reelpool.errors\n"
        "heavy = {'pyarrow', 'pandas', 'torch', 'huggingface_hub', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


# -- what it refuses --


@pytest.mark.parametrize("version", ["v1.6", "v0.1", "1.0"])
def test_older_formats(tmp_path, version):
    root = write_v30(tmp_path / "s", info={"codebase_version": version})
    with pytest.raises(BackwardCompatibilityError, match=version):
        meta_of(root)


def test_newer_formats(tmp_path):
    root = write_v30(tmp_path / "s", info={"codebase_version": "v4.0"})
    with pytest.raises(ForwardCompatibilityError, match=r"v4\.0"):
        meta_of(root)
    edit_info(root, codebase_version="v3.1")
    assert meta_of(root).total_episodes == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"codebase_version": None},
        {"codebase_version": "new"},
        {"fps": 0},
        {"fps": "30"},
        {"fps": True},
        {"total_episodes": -1},
        {"total_episodes": 2},
        {"total_episodes": 4},
        {"total_frames": 11},
        {"total_frames": 1.5},
        {"chunks_size": 0},
        {"features": []},
        {"features": {"x": {}}},
        {"features": {"x": {"dtype": "float32"}}},
        {"features": {"x": {"dtype": "float32", "shape": [-1]}}},
        {"features": {"x": {"dtype": "float32", "shape": "2"}}},
        {"features": {"x": {"dtype": "float32", "shape": [1], "info": 3}}},
    ],
)
@pytest.mark.parametrize("write", [write_v30, write_v2])
def test_nonsense_in_info(tmp_path, changes, write):
    root = write(tmp_path / "s")
    edit_info(root, **changes)
    with pytest.raises(FormatError):
        meta_of(root)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"[" * 100_000, b"\xff", b" " * (5 << 20)])
def test_info_that_is_no_object(tmp_path, content):
    root = write_v30(tmp_path / "s")
    (root / "meta/info.json").write_bytes(content)
    with pytest.raises(FormatError, match=r"meta/info\.json"):
        meta_of(root)


@pytest.mark.parametrize("field", ["fps", "features", "codebase_version"])
def test_info_without_a_needed_field(tmp_path, field):
    root = write_v30(tmp_path / "s")
    path = root / "meta/info.json"
    path.write_text(
        json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != field})
    )
    with pytest.raises(FormatError, match=field):
        meta_of(root)


HOSTILE = [
    "../../{chunk_index}/{file_index}",
    "data/../../{file_index}",
    "/etc/{file_index}",
    "data\\{file_index}",
    "data\0{file_index}",
    "data\n{file_index}",
    "C:/{file_index}",
    "data/{file_index.__class__}",
    "data/{file_index!r}",
    "data/{file_index:>99999999d}",
    "data/{file_index:999d}",
    "data/{0}",
    "data/{}",
    "data/{unknown}",
    "data/{file_index",
    "data/}{",
    "data/{{file_index}}",
    "x" * 5000,
    "",
    7,
    None,
]


@pytest.mark.parametrize("template", HOSTILE)
@pytest.mark.parametrize("field", ["data_path", "video_path"])
@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_hostile_templates_name_file_and_field(tmp_path, template, field, version):
    if version == "v3.0":
        root = write_v30(tmp_path / "s", features=VIDEO_FEATURES, cameras=["top"])
    else:
        root = write_v2(tmp_path / "s", features=VIDEO_FEATURES)
        if isinstance(template, str):
            template = template.replace("file_index", "episode_index")
            template = template.replace("chunk_index", "episode_chunk")
    edit_info(root, **{field: template})
    with pytest.raises(FormatError, match=rf"meta/info\.json.*{field}") as caught:
        meta_of(root)
    assert caught.value.file == "meta/info.json"


@pytest.mark.parametrize("key", ["../../../x", "/x", "a/../../b", "a\\b", "a\0b"])
def test_hostile_camera_names(tmp_path, key):
    features = {key: CAMERA, **NUMBERS}
    root = write_v2(tmp_path / "s", features=features)
    edit_info(root, video_path="{video_key}/{episode_index:06d}.mp4")
    with pytest.raises(FormatError, match="video_path"):
        meta_of(root)


@pytest.mark.parametrize(
    "name, values, what",
    [
        ("episode_index", [0, 1, 3], "episode 2 is missing"),
        ("episode_index", [0, 1, 1], "episode 2 is missing or twice"),
        ("episode_index", [0, 1, None], "null"),
        ("length", [3, 4, 6], "episode 2 has length 6"),
        ("length", [3.5, 4, 5], "not integer"),
        ("dataset_to_index", [3, 7, 7], "episode 2"),
        ("data/file_index", [0, 0, -1], "is -1 for episode 2"),
        ("data/chunk_index", ["a", "b", "c"], "type string"),
        ("videos/top/from_timestamp", [0.0, float("nan"), 0.0], "nan for episode 1"),
        ("videos/top/file_index", None, "missing"),
        ("data/chunk_index", None, "missing"),
        ("dataset_from_index", None, "missing"),
    ],
)
def test_wrong_episode_columns(tmp_path, name, values, what):
    root = write_v30(tmp_path / "s", features=VIDEO_FEATURES, cameras=["top"])
    columns = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pydict()
    columns[name] = values
    write_episodes(root, {k: v for k, v in columns.items() if v is not None})
    with pytest.raises(FormatError, match=what) as caught:
        meta_of(root)
    assert caught.value.file.startswith("meta/episodes")


@pytest.mark.parametrize(
    "entries, what",
    [
        ([(0, 3), (1, 4), (3, 5)], "episode 2 is missing"),
        ([(0, 3), (1, 4), (1, 5)], "twice"),
        ([(0, 3), (1, 4)], "holds 2 episodes"),
        ([(0, 3), (1, 4), (2, 0)], "episode 2 has length 0"),
        ([(0, 3), (1, 4), (2, "5")], "length of entry 3"),
        ([(0, 3), (1, 4), (None, 5)], "episode_index of entry 3"),
    ],
)
def test_gaps_in_episodes_jsonl(tmp_path, entries, what):
    root = write_v2(tmp_path / "s")
    written = [{"episode_index": i, "tasks": [], "length": n} for i, n in entries]
    write_jsonl(root / "meta/episodes.jsonl", written)
    with pytest.raises(FormatError, match=what) as caught:
        meta_of(root)
    assert caught.value.file == "meta/episodes.jsonl"


@pytest.mark.parametrize("text", ["{\n", "[1]\n", '{"episode_index": 0}\n{]\n', "1,2\n"])
def test_broken_jsonl(tmp_path, text):
    root = write_v2(tmp_path / "s")
    (root / "meta/episodes.jsonl").write_text(text)
    with pytest.raises(FormatError, match=r"episodes\.jsonl"):
        meta_of(root)


@pytest.mark.parametrize("rel", ["meta/tasks.parquet", "meta/episodes/chunk-000/file-000.parquet"])
def test_missing_and_damaged_metadata_files(tmp_path, rel):
    root = write_v30(tmp_path / "s")
    (root / rel).write_bytes(b"PAR1 no")
    with pytest.raises(FormatError, match=rel.split("/")[1]):
        meta_of(root)
    (root / rel).unlink()
    with pytest.raises(NotFoundError, match=rel.split("/")[1].split(".")[0]):
        meta_of(root)


@pytest.mark.parametrize(
    "stats", ["[]", "{", '{"x": {"mean": ["a", null]}}', '{"x": {"m": [[1], 2]}}']
)
def test_broken_statistics(tmp_path, stats):
    root = write_v30(tmp_path / "s")
    (root / "meta/stats.json").write_text(stats)
    meta = meta_of(root)
    with pytest.raises(FormatError, match=r"stats\.json"):
        _ = meta.stats
