"""What cannot be converted: one typed error that lists every bad episode, the source untouched."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from convert_sets import CLIPS, MIXED, options, tree, write_clips
from reelpool.__main__ import main
from reelpool.convert.run import convert, dry_run
from reelpool.errors import CompatibilityError, FormatError, NotFoundError, StateError
from written_datasets import edit_info, write_jsonl

TOP, LEFT, WRIST = MIXED


@pytest.fixture
def root(tmp_path):
    return write_clips(tmp_path / "arm")


def data(root, episode):
    return root / f"data/chunk-000/episode_{episode:06d}.parquet"


def video(root, episode, camera=TOP):
    return root / f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4"


def change_column(path, name, change):
    table = pq.read_table(path)
    index = table.column_names.index(name)
    values = change(table[name].to_pylist())
    kind = table.schema.field(name).type
    pq.write_table(table.set_column(index, name, pa.array(values, kind)), path)


def lines(root, rel):
    return [json.loads(line) for line in (root / rel).read_text().splitlines()]


def truncate(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


def missing_data(root):
    data(root, 1).unlink()
    data(root, 4).unlink()
    return {1: "episode_000001.parquet is missing", 4: "episode_000004.parquet is missing"}


def broken_data(root):
    truncate(data(root, 2), 700)
    return {2: "episode_000002.parquet"}


def other_columns(root):
    path = data(root, 3)
    pq.write_table(pq.read_table(path).drop_columns(["observation.state"]), path)
    return {3: "other columns than episode 0: observation.state"}


def short_data(root):
    path = data(root, 5)
    pq.write_table(pq.read_table(path).slice(0, 7), path)
    return {5: "7 rows, episodes.jsonl says 8"}


def wrong_episode_number(root):
    shutil.copyfile(data(root, 0), data(root, 2))
    return {2: "episode_index of row 0 is 0, not 2"}


def index_gap(root):
    change_column(data(root, 1), "index", lambda v: [x + (x > 12) for x in v])
    return {1: "index of row 5 is 14, not 13"}


def null_number(root):
    change_column(data(root, 1), "index", lambda v: [*v[:-1], None])
    return {1: "null"}


def missing_videos(root):
    video(root, 0).unlink()
    video(root, 3, WRIST).unlink()
    return {0: f"{TOP}/episode_000000.mp4 is missing", 3: f"{WRIST}/episode_000003.mp4 is missing"}


def broken_video(root):
    truncate(video(root, 1), 300)
    video(root, 2, LEFT).write_bytes(b"")
    return {1: f"{TOP}/episode_000001.mp4", 2: f"{LEFT}/episode_000002.mp4"}


def other_rate(root):
    change_column(data(root, 4), "timestamp", lambda v: [x * 2 for x in v])
    return {4: "frame 4 at 0.800000 s has no picture"}


def other_size(root):
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][LEFT]["shape"] = [128, 200, 3]
    edit_info(root, features=info["features"])
    return dict.fromkeys(range(6), "pictures of 192 x 128, meta/info.json says [128, 200, 3]")


def gaps_in_numbers(root):
    rows = lines(root, "meta/episodes.jsonl")
    write_jsonl(root / "meta/episodes.jsonl", [rows[0], rows[2], rows[5], rows[5]])
    listed = dict.fromkeys((1, 3, 4), "missing in episodes.jsonl")
    return listed | {5: "listed twice in episodes.jsonl"}


def missing_statistics(root):
    rows = lines(root, "meta/episodes_stats.jsonl")
    write_jsonl(root / "meta/episodes_stats.jsonl", [r for r in rows if r["episode_index"] % 3])
    return {0: "no statistics", 3: "no statistics"}


EPISODE_FAULTS = [missing_data, broken_data, other_columns, short_data, wrong_episode_number]
EPISODE_FAULTS += [index_gap, null_number, missing_videos, broken_video, other_rate, other_size]
EPISODE_FAULTS += [gaps_in_numbers, missing_statistics]


@pytest.mark.parametrize("fault", EPISODE_FAULTS)
def test_every_bad_episode_is_named(root, fault):
    wanted = fault(root)
    before = tree(root.parent)
    with pytest.raises(FormatError) as dry:
        dry_run(options(root))
    assert tree(root.parent) == before
    with pytest.raises(FormatError) as caught:
        convert(options(root, episodes_per_batch=1), threads=2)
    text = str(caught.value)
    assert text == str(dry.value)
    assert f"{len(wanted)} episode" in text and "nothing was changed" in text
    assert caught.value.episode == min(wanted)
    for episode, what in wanted.items():
        line = next(x for x in text.splitlines() if x.startswith(f"  episode {episode}: "))
        assert what in line
    assert {int(line.split()[1][:-1]) for line in text.splitlines()[1:]} == set(wanted)
    assert tree(root) == {p[4:]: d for p, d in before.items()}
    assert not root.with_name("arm_v30").exists()


def test_several_faults_of_one_episode(root):
    video(root, 2).unlink()
    video(root, 2, WRIST).unlink()
    with pytest.raises(FormatError, match=r"1 episode cannot(.|\n)*top/ep(.|\n)*wrist/ep"):
        convert(options(root))


def test_a_mended_source_is_looked_at_again(root):
    good = video(root, 2).read_bytes()
    truncate(video(root, 2), 100)
    with pytest.raises(FormatError, match="episode 2"):
        convert(options(root))
    video(root, 2).write_bytes(good)
    assert convert(options(root)).episodes == 6


def test_a_video_that_is_one_frame_short(root):
    """All rows need a picture; pictures that no row wants are no fault."""
    for episode in range(6):
        path = data(root, episode)
        table = pq.read_table(path).slice(0, 7)
        pq.write_table(table, path)
        change_column(path, "index", lambda v, e=episode: [x - e for x in v])
    rows = lines(root, "meta/episodes.jsonl")
    write_jsonl(root / "meta/episodes.jsonl", [r | {"length": 7} for r in rows])
    edit_info(root, total_frames=42)
    assert convert(options(root)).frames == 42
    assert json.loads((root / "meta/info.json").read_text())["total_frames"] == 42


def test_types_that_can_be_cast_are_no_fault(root):
    path = data(root, 3)
    table = pq.read_table(path)
    index = table.column_names.index("task_index")
    pq.write_table(table.set_column(index, "task_index", table["task_index"].cast("int32")), path)
    convert(options(root))
    made = pq.read_table(root / "data/chunk-000/file-000.parquet")
    assert made.schema.field("task_index").type == pa.int64()


@pytest.mark.parametrize(
    "change, error, text",
    [
        ({"codebase_version": "v1.6"}, CompatibilityError, "v1.6"),
        ({"total_episodes": 0}, FormatError, "no episodes"),
        ({"total_frames": 47}, FormatError, "47"),
        ({"video_path": None}, FormatError, "video_path is null"),
        ({"video_path": "../{video_key}.mp4"}, FormatError, "holds '..'"),
        ({"fps": 0}, FormatError, "fps"),
    ],
)
def test_bad_info(root, change, error, text):
    edit_info(root, **change)
    with pytest.raises(error, match=text):
        convert(options(root))
    assert sorted(p.name for p in root.parent.iterdir()) == ["arm"]


def test_bad_tasks(root):
    write_jsonl(root / "meta/tasks.jsonl", [{"task_index": 0, "task": "a"}] * 2)
    with pytest.raises(FormatError, match=r"tasks\.jsonl"):
        convert(options(root))


def test_nothing_to_convert(tmp_path, capsys):
    assert main(["convert", str(tmp_path / "nowhere")]) == 3
    assert "no such folder" in capsys.readouterr().err
    with pytest.raises(NotFoundError):
        convert(options(tmp_path))
    assert main(["convert"]) == 3
    assert "no DATASET" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["arm_old", "arm_v30", "out"])
def test_what_is_in_the_way_stays(root, name):
    """Copies of a dataset that nobody vouched for are never touched."""
    there = root.with_name(name)
    there.mkdir()
    (there / "precious").write_text("!")
    out = there if name == "out" else None
    with pytest.raises(StateError, match=f"{name} exists"):
        convert(options(root, out=out))
    assert (there / "precious").read_text() == "!"
    assert (root / "meta/episodes.jsonl").exists()


def test_faults_of_the_result_stop_the_swap(root, monkeypatch):
    """Here: a file that turns bad after it was written."""
    from reelpool import verify

    real, rel = verify.Check.videos, f"videos/{TOP}/chunk-000/file-000.mp4"

    def videos(self, progress=None, files=None):
        if rel in files:
            clip = root.with_name(f"{root.name}_v30") / rel
            clip.write_bytes((CLIPS / "av1.mp4").read_bytes())
        real(self, progress, files)

    before = tree(root)
    monkeypatch.setattr(verify.Check, "videos", videos)
    with pytest.raises(FormatError, match=r"nothing was replaced(.|\n)*observation\.images\.top"):
        convert(options(root))
    assert tree(root) == before
    monkeypatch.undo()
    assert convert(options(root)).episodes == 6  # the file's size tells: it is made again
