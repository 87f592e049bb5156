"""What a conversion makes: the same items, LeRobot's metadata, one result for any workers."""

import contextlib
import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reelpool
from convert_sets import MIXED, options, png, tree, write_clips
from demo_sets import array
from reelpool.__main__ import main
from reelpool.convert.copies import video_digest
from reelpool.convert.job import Job
from reelpool.convert.run import convert
from written_datasets import edit_info, write_v2

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

TOP, LEFT, WRIST = MIXED


def same_items(one, other, step=1):
    """Every `step`th item of two datasets holds the same keys, types and values."""
    one = reelpool.LeRobotDataset("test/one", root=one, return_uint8=True)
    other = reelpool.LeRobotDataset("test/other", root=other, return_uint8=True)
    assert len(one) == len(other) > 0
    for i in range(0, len(one), step):
        a, b = one[i], other[i]
        assert list(a) == list(b)
        for key, value in a.items():
            assert type(value) is type(b[key])
            if isinstance(value, str):
                assert value == b[key]
            else:
                assert array(value).dtype == array(b[key]).dtype
                np.testing.assert_array_equal(array(value), array(b[key]), f"{key} of {i}")


@pytest.fixture
def root(tmp_path):
    return write_clips(tmp_path / "arm")


def episodes(root):
    return pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet")


def test_neither_it_nor_verify_loads_what_it_does_not_use(root):
    """torch alone takes longer than a conversion, and more memory than it may have."""
    script = (
        "import sys; from reelpool.__main__ import main\n"
        f"assert main(['convert', {str(root)!r}, '-q']) == main(['verify', {str(root)!r}]) == 0\n"
        "print([m for m in ('torch', 'pandas', 'pyarrow.dataset', 'av') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=-1, stderr=-1, text=True)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


# -- content --


@pytest.mark.parametrize("version", ["v2.1", "v2.0"])
def test_items_stay_the_same(tmp_path, version):
    root = write_clips(tmp_path / "arm", version=version, images=True)
    result = convert(options(root), threads=2)
    assert (result.episodes, result.frames, result.already) == (6, 48, False)
    assert list(result.phases) == ["read", "write", "check"]
    assert 0 < sum(result.phases.values()) <= result.seconds
    same_items(result.old, root)
    meta = reelpool.LeRobotDataset("test/arm", root=root).meta
    assert meta.info.codebase_version == "v3.0"
    assert not list(tmp_path.glob("_work*"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["arm", "arm_old"]


def test_real_data_equals_lerobots_conversion(tmp_path, data_root):
    """`g1_small_v30` was made of `g1_small_v21` by LeRobot 0.6.1."""
    source, judge = data_root / "g1_small_v21", data_root / "g1_small_v30"
    if not source.is_dir() or not judge.is_dir():
        pytest.skip("no test data: g1_small_v21, g1_small_v30")
    info = json.loads((judge / "meta/info.json").read_text())
    made = tmp_path / "made"
    sizes = {"data_mb": info["data_files_size_in_mb"], "video_mb": info["video_files_size_in_mb"]}
    convert(options(source, out=made, work_dir=tmp_path / "work", **sizes), threads=2)
    same_files = {p.relative_to(judge) for p in judge.rglob("*") if p.is_file()}
    assert {p.relative_to(made) for p in made.rglob("*") if p.is_file()} == same_files
    assert json.loads((made / "meta/info.json").read_text()) == info
    assert (
        json.loads((made / "meta/stats.json").read_text())
        == json.loads((judge / "meta/stats.json").read_text())
    )  # fmt: skip
    for rel in ("meta/tasks.parquet", "data/chunk-000/file-000.parquet"):
        ours, theirs = (pq.read_table(r / rel) for r in (made, judge))
        assert ours.to_pylist() == theirs.to_pylist(), rel
    ours, theirs = episodes(made), episodes(judge)
    assert set(ours.column_names) == set(theirs.column_names)
    for name in theirs.column_names:
        if name.endswith("_timestamp"):  # theirs are sums of rounded durations
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-9)
        else:
            assert ours[name].to_pylist() == theirs[name].to_pylist(), name
    same_items(judge, made, step=101)


def test_layout(root):
    """Names, row groups, types and metadata that readers of v3.0 count on."""
    convert(options(root))
    table = pq.ParquetFile(root / "data/chunk-000/file-000.parquet")
    assert [table.metadata.row_group(i).num_rows for i in range(table.num_row_groups)] == [8] * 6
    noted = json.loads(table.schema_arrow.metadata[b"huggingface"])["info"]["features"]
    inner = {"dtype": "float32", "_type": "Value"}
    assert noted["observation.state"] == {"feature": inner, "length": 3, "_type": "List"}
    assert noted["index"] == {"dtype": "int64", "_type": "Value"}
    tasks = pq.read_table(root / "meta/tasks.parquet")
    assert tasks.to_pydict() == {"task_index": [0, 1], "task": ["task 0", "task 1"]}
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    found = episodes(root)
    head = ["episode_index", "data/chunk_index", "data/file_index", "dataset_from_index"]
    assert found.column_names[:4] == head
    assert found.column_names[-2:] == ["meta/episodes/chunk_index", "meta/episodes/file_index"]
    assert found["dataset_to_index"].to_pylist() == [8, 16, 24, 32, 40, 48]
    assert found["stats/action/min"] if "action" in found.column_names else True
    assert found[f"stats/{TOP}/mean"].type == pa.list_(pa.list_(pa.list_(pa.float64())))
    info = json.loads((root / "meta/info.json").read_text())
    assert "total_videos" not in info and info["video_files_size_in_mb"] == 200
    assert info["features"]["index"]["fps"] == 10 and "fps" not in info["features"][TOP]


def test_other_codec_starts_a_new_file(root):
    convert(options(root))
    found = episodes(root)
    expected = {TOP: [0] * 6, LEFT: [0, 0, 1, 2, 3, 3], WRIST: [0, 1, 1, 2, 2, 3]}
    for camera, files in expected.items():
        assert found[f"videos/{camera}/file_index"].to_pylist() == files
        starts = found[f"videos/{camera}/from_timestamp"].to_pylist()
        place = [files[:i].count(f) for i, f in enumerate(files)]
        assert starts == [0.8 * n if n < 3 else 8 * n / 10 for n in place]
        assert len(list((root / f"videos/{camera}/chunk-000").iterdir())) == len(set(files))


def test_times_are_the_nearest_floats(tmp_path):
    """Sums of rounded durations drift; these are rounded once."""
    root = write_clips(tmp_path / "long", {TOP: ("h264",)}, repeat=40)
    convert(options(root), threads=2)
    found = episodes(root)
    wanted = [8 * i / 10 for i in range(41)]
    assert found[f"videos/{TOP}/from_timestamp"].to_pylist() == wanted[:-1]
    assert found[f"videos/{TOP}/to_timestamp"].to_pylist() == wanted[1:]


def test_statistics(root):
    """Pooled as LeRobot pools; per episode as they were."""
    before = reelpool.LeRobotDataset("test/arm", root=root).meta.stats
    rows = [json.loads(x) for x in (root / "meta/episodes_stats.jsonl").read_text().splitlines()]
    convert(options(root))
    after = reelpool.LeRobotDataset("test/arm", root=root).meta.stats
    assert set(before) == set(after)
    for key in before:
        for name, value in before[key].items():
            np.testing.assert_array_equal(value, after[key][name])
    found = episodes(root)
    for key, entry in rows[3]["stats"].items():
        for name, value in entry.items():
            assert found[f"stats/{key}/{name}"][3].as_py() == value
    assert found["stats/index/count"].to_pylist() == [[8]] * 6


def test_v20_keeps_the_statistics_of_the_set(tmp_path):
    root = write_clips(tmp_path / "arm", version="v2.0")
    stats = json.loads((root / "meta/stats.json").read_text())
    convert(options(root))
    assert json.loads((root / "meta/stats.json").read_text()) == stats
    assert not [n for n in episodes(root).column_names if n.startswith("stats/")]


def test_picture_columns_keep_their_bytes(tmp_path):
    """Also those of which the table holds the path only."""
    root = write_clips(tmp_path / "arm", {}, images=True)
    path = root / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    cells = table["still"].to_pylist()
    for frame, cell in enumerate(cells):
        (root / "images").mkdir(exist_ok=True)
        (root / f"images/{frame}.png").write_bytes(cell["bytes"])
        cells[frame] = {"bytes": None, "path": f"images/{frame}.png"}
    index = table.column_names.index("still")
    column = pa.array(cells, table.schema.field("still").type)
    pq.write_table(table.set_column(index, "still", column), path)
    convert(options(root))
    made = pq.ParquetFile(root / "data/chunk-000/file-000.parquet")
    noted = json.loads(made.schema_arrow.metadata[b"huggingface"])["info"]["features"]
    assert noted["still"] == {"_type": "Image"}
    cells = made.read_row_group(1)["still"].to_pylist()
    assert [c["bytes"] for c in cells] == [png(1, f) for f in range(8)]
    assert cells[3]["path"] == "3.png"
    same_items(root.with_name("arm_old"), root)


def test_without_cameras(tmp_path):
    root = write_v2(tmp_path / "numbers")
    path = root / "meta/episodes_stats.jsonl"
    path.write_text("".join(json.dumps({"episode_index": i, "stats": {}}) + "\n" for i in range(3)))
    edit_info(root, video_path=None)
    result = convert(options(root))
    assert "no statistics of state" in result.notes[0]  # they never had any
    same_items(root.with_name("numbers_old"), root)


def test_loose_files_come_along(root):
    (root / "README.md").write_text("of the arm")
    (root / "notes.tmp").write_text("not of the dataset")
    convert(options(root))
    assert (root / "README.md").read_text() == "of the arm"
    assert not (root / "notes.tmp").exists()


def test_extra_fields_of_episodes_come_along(root):
    path = root / "meta/episodes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[2]["operator"] = "kim"
    path.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    convert(options(root))
    assert episodes(root)["operator"].to_pylist() == [None, None, "kim", None, None, None]


# -- packing --


def sizes_of(root):
    return {p: n.stat().st_size for p, n in ((p.as_posix(), p) for p in root.rglob("*.mp4"))}


def test_files_fill_by_lerobots_rule(tmp_path):
    """A file ends before it would reach the limit; one episode may exceed it."""
    from reelpool.convert.plan import _cut

    kinds = [0] * 6
    assert _cut([4, 4, 4, 4, 4, 4], 9, kinds) == [(0, 2), (2, 4), (4, 6)]
    assert _cut([4, 4, 4, 4, 4, 4], 8, kinds) == [(i, i + 1) for i in range(6)]
    assert _cut([9, 1, 1, 20, 1, 1], 5, kinds) == [(0, 1), (1, 3), (3, 4), (4, 6)]
    assert _cut([1] * 6, 100, [0, 0, 1, 1, 0, 0]) == [(0, 2), (2, 4), (4, 6)]


def test_thousand_files_to_a_chunk():
    from reelpool.convert.plan import _FIELDS, _outputs
    from reelpool.metadata_info import DATA_TEMPLATE
    from reelpool.roots import PathTemplate

    template = PathTemplate(DATA_TEMPLATE, "data_path", _FIELDS)
    cuts = [(i, i + 1) for i in range(1002)]
    found = _outputs(template, "data", None, cuts, [1] * 1002)
    assert found[999].path == "data/chunk-000/file-999.parquet"
    assert (found[1001].chunk, found[1001].file) == (1, 1)
    assert len({o.item for o in found}) == 1002


# -- one result --


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """(source, files of its conversion by one thread)."""
    base = tmp_path_factory.mktemp("reference")
    source = write_clips(base / "arm", images=True)
    convert(options(source, out=base / "out", episodes_per_batch=1))
    return source, tree(base / "out")


@pytest.mark.parametrize("batch", [2, 100])
@pytest.mark.parametrize("threads, processes", [(1, 1), (2, 0), (4, 0), (8, 0), (1, 2), (2, 4)])
def test_any_workers_make_the_same_bytes(tmp_path, reference, threads, processes, batch):
    source, wanted = reference
    made = options(source, out=tmp_path / "out", episodes_per_batch=batch)
    convert(made, threads, processes)
    assert tree(tmp_path / "out") == wanted
    assert len(wanted) == 14


def test_in_place_makes_the_same_bytes(tmp_path, reference):
    source, wanted = reference
    shutil.copytree(source, tmp_path / "arm")
    before = tree(source)
    convert(options(tmp_path / "arm"))
    assert tree(tmp_path / "arm") == wanted
    assert tree(tmp_path / "arm_old") == before


def test_again_is_no_work(root):
    convert(options(root))
    before = tree(root)
    result = convert(options(root))
    assert result.already and result.old == root.with_name("arm_old")
    assert tree(root) == before


# -- a plan at work --


def prepared(root, **changes):
    """A job whose sources are read and whose plan is settled."""
    job = Job(options(root, **changes))
    assert job.begin()
    for item in job.scan_steps():
        job.scan(item)
    job.settle_plan()
    return job


def test_finished_files_are_kept(root, monkeypatch):
    first = prepared(root)
    for item in first.write_steps()[:5]:
        first.write(item)
    first.folder.close()
    made = {p: p.stat().st_ino for p in root.with_name("arm_v30").rglob("*.*") if p.is_file()}
    assert len(made) == 5
    convert(options(root))
    kept = {p.stat().st_ino for p in root.rglob("*") if p.is_file()}
    assert set(made.values()) <= kept


def test_a_shortened_output_is_made_again(tmp_path, reference):
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    job = prepared(root)
    for item in job.write_steps():
        job.write(item)
    job.folder.close()
    victim = root.with_name("arm_v30") / f"videos/{LEFT}/chunk-000/file-001.mp4"
    victim.write_bytes(victim.read_bytes()[:-1])
    convert(options(root))
    assert tree(root) == wanted


def test_the_manifest_names_every_input(root):
    job = prepared(root)
    manifest = json.loads((job.options.work / "manifest.json").read_text())
    files = {rel: (size, digest) for e in manifest["inputs"] for rel, size, digest in e}
    digests = {r: d for r, d in tree(root).items() if not r.startswith("meta/")}
    for rel in [r for r in digests if r.startswith("videos/")]:
        header = reelpool._core.video_info(str(root / rel))["header"]
        digests[rel] = video_digest(str(root / rel), header)
    assert {r: d for r, (_, d) in files.items()} == digests
    assert all((root / rel).stat().st_size == size for rel, (size, _) in files.items())
    assert {rel: d for rel, d in tree(root).items() if rel.startswith("meta/")} == manifest[
        "metadata"
    ]


def test_other_options_do_not_mix(root):
    prepared(root).folder.close()
    with pytest.raises(reelpool.errors.StateError, match="not the same options"):
        convert(options(root, video_mb=7))


def test_an_input_that_changes_is_seen(root):
    job = prepared(root)
    path = root / f"videos/chunk-000/{TOP}/episode_000003.mp4"
    path.write_bytes(path.read_bytes() + b"\0\0\0\x08free")
    with pytest.raises(reelpool.errors.ReelpoolError, match=r"episode_000003.*changed"):
        for item in job.write_steps():
            job.write(item)
    job.folder.close()


def test_command_without_work(root, capsys):
    assert main(["convert", str(root), "--tolerance-s", "nan"]) == 2
    convert(options(root))
    capsys.readouterr()
    assert main(["convert", str(root), "--dry-run"]) == 0
    assert capsys.readouterr().out == f"{root} is v3.0\n"
    (root / "meta/info.json").write_text('{"x": 1')
    assert main(["convert", str(root), "--out-dir", f"{root}_new"]) == 3
    assert f"Run: reelpool verify {root}" in capsys.readouterr().err


def test_command(root, capsys):
    assert main(["convert", str(root), "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert len(planned["outputs"]) == 10
    assert [p.name for p in root.parent.iterdir()] == ["arm"]
    words = ["--no-push", "--orchestrate", "--num_workers=2", "--episodes-per-batch", "2"]
    assert main(["convert", str(root), *words]) == 0
    shown = capsys.readouterr()
    assert "is v3.0 now: 6 episodes, 48 frames" in shown.out
    assert f"Undo: rm -r {root} && mv {root}_old {root}" in shown.out
    assert "read: " in shown.err
    assert main(["convert", "--root", str(root), "-q"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{root} is v3.0\n" and shown.err == ""


@pytest.mark.parametrize("size", [(24, 100), (0, 0)])
def test_progress_on_a_terminal(root, size):
    """Bars with rate and time left, also where the terminal has no size; only the result stays."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))
    words = [sys.executable, "-m", "reelpool", "convert", root]
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    with subprocess.Popen(words, stdout=-1, stderr=theirs, text=True, env=env) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal's end, when the process has left it
            while piece := os.read(ours, 4096):
                shown += piece
        assert "is v3.0 now" in process.stdout.read()
    os.close(ours)
    text = shown.decode()
    assert process.returncode == 0 and "0/6 [" in text and "episodes/s]" in text
    assert "write:" in text and "B/s]" in text and "check:" in text
    assert "\n" not in text and text.rpartition("\r")[2].strip() == ""
