"""Damaged, missing and hostile files: a typed error with its place, never other pixels."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reelpool
from demo_sets import (
    FRAMES,
    FRONT,
    STARTS,
    WRIST,
    array,
    check_pixels,
    copy_demo,
    ids,
    open_demo,
    truth,
    video,
)
from reelpool.errors import (
    DatasetChangedError,
    DecodeError,
    FormatError,
    FrameTimestampError,
    NotFoundError,
    ReelpoolError,
    StorageError,
    UnsupportedMediaError,
)
from written_datasets import edit_info

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
import make_damaged  # noqa: E402

SECOND = {FRONT: STARTS[2], WRIST: STARTS[3]}  # first rows of each camera's second file


@pytest.fixture
def root(tmp_path):
    return copy_demo(tmp_path / "set")


def ffmpeg(*arguments):
    if shutil.which("ffmpeg") is None:
        pytest.skip("needs ffmpeg")
    subprocess.run(["ffmpeg", "-v", "error", "-y", *map(str, arguments)], check=True)


# Ways to break the first file of the H.264 camera, and what reading it must raise.


def cut_half(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def cut_tail(path):
    data = bytearray(path.read_bytes())
    start, end = make_damaged.find(bytes(data), "mdat")
    moov = bytes(data[end:])
    if len(moov) < 100:  # moov first: the file simply ends early
        path.write_bytes(data[: start + (end - start) // 2])
    else:
        path.write_bytes(moov[:0] + bytes(data[: len(data) - 200]))


def fragmented(path):
    ffmpeg("-i", path, "-c", "copy", "-movflags", "frag_keyframe+empty_moov", f"{path}.f.mp4")
    os.replace(f"{path}.f.mp4", path)


def other_size(path):
    ffmpeg("-f", "lavfi", "-i", "testsrc2=size=64x48:rate=10:duration=9.2", "-c:v", "libx264",
           "-g", "2", "-pix_fmt", "yuv420p", f"{path}.f.mp4")  # fmt: skip
    os.replace(f"{path}.f.mp4", path)


def sound_only(path):
    ffmpeg("-f", "lavfi", "-i", "sine=duration=2", "-c:a", "aac", f"{path}.f.mp4")
    os.replace(f"{path}.f.mp4", path)


def folder(path):
    path.unlink()
    path.mkdir()


BROKEN = {
    "empty": (lambda p: p.write_bytes(b""), FormatError),
    "text": (lambda p: p.write_text("<html>404 not found</html>" * 50), FormatError),
    "cut in half": (cut_half, FormatError),
    "cut tail": (cut_tail, FormatError),
    "missing": (lambda p: p.unlink(), NotFoundError),
    "folder": (folder, (StorageError, FormatError)),
    "dangling link": (lambda p: (p.unlink(), p.symlink_to("nowhere")), NotFoundError),
    "fragmented": (fragmented, UnsupportedMediaError),
    "other size": (other_size, (DecodeError, FormatError)),
    "no video": (sound_only, FormatError),
}


def check_place(error, camera, file, episode):
    assert error.dataset == "reelpool/demo" and error.camera == camera
    assert Path(error.file).name == file.name and error.episode == episode
    assert camera in str(error) and file.name in str(error)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_video(root, name):
    path = video(root, WRIST)
    damage, kind = BROKEN[name]
    damage(path)
    dataset = open_demo(root)  # a broken video is no error of the constructor
    for row, episode in ((3, 0), (50, 1)):
        with pytest.raises(kind) as caught:
            dataset[row]
        check_place(caught.value, WRIST, path, episode)
    with pytest.raises(kind):
        dataset.__getitems__([SECOND[WRIST], 5])
    items = dataset.__getitems__([SECOND[WRIST], FRAMES - 1])  # the intact files stay readable
    for item, row in zip(items, (SECOND[WRIST], FRAMES - 1)):
        assert np.array_equal(array(item[WRIST]), truth()[WRIST][row])
    assert np.array_equal(array(open_demo(root, cameras=[FRONT])[3][FRONT]), truth()[FRONT][3])


def test_unreadable_files(root):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    video(root, WRIST).chmod(0)
    with pytest.raises((StorageError, PermissionError)):
        open_demo(root)[0]


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_a_loaders_error_comes_with_its_batch(root, threads):
    video(root, FRONT, 1).unlink()
    dataset = open_demo(root, num_threads=threads)
    order = [*range(20), SECOND[FRONT] + 3, *range(20, 30)]
    with reelpool.Loader(dataset, 5, sampler=order, num_threads=threads) as loader:
        stream = iter(loader)
        batches = [next(stream) for _ in range(4)]
        assert ids(batches) == order[:20]
        for batch in batches:
            check_pixels(batch)
        with pytest.raises(NotFoundError) as caught:
            next(stream)
        check_place(caught.value, FRONT, video(root, FRONT, 1), 2)
        assert caught.value.frame == 3
        assert list(stream) == [] and loader.state_dict()["samples_done"] == 20
        loader.load_state_dict(loader.state_for_step(0))
        assert ids([next(iter(loader))]) == order[:5]


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_cross_dataloader_workers(root, workers):
    path = video(root, WRIST)
    cut_half(path)
    loader = torch.utils.data.DataLoader(
        open_demo(root), batch_size=2, sampler=[FRAMES - 2, FRAMES - 1, 4, 5], num_workers=workers
    )
    stream = iter(loader)
    check_pixels(next(stream))
    with pytest.raises(FormatError) as caught:
        next(stream)
    assert path.name in str(caught.value) and WRIST in str(caught.value)


def test_a_file_replaced_while_in_use(root):
    dataset = open_demo(root)
    dataset[0]
    path = video(root, WRIST)
    shutil.copy(video(root, FRONT), f"{path}.new")
    os.replace(f"{path}.new", path)
    try:
        item = dataset[60]
    except (DatasetChangedError, FormatError, DecodeError):
        return
    # The old file is still open: its pixels, then.
    assert np.array_equal(array(item[WRIST]), truth()[WRIST][60])


# -- damage inside the coded pictures --


def outcomes(root, camera, rows):
    """{row: "right", "wrong" or the error} of some rows of the first file."""
    out = {}
    dataset = open_demo(root, cameras=[camera])
    for row in rows:
        try:
            picture = array(dataset[row][camera])
        except ReelpoolError as error:
            assert error.camera == camera and error.file and error.episode is not None, error
            out[row] = error
        else:
            out[row] = "right" if np.array_equal(picture, truth()[camera][row]) else "wrong"
    dataset.close()
    return out


def touched(intact, damaged):
    """Frames of a file whose GOP has changed bytes up to them (decode order is display order)."""
    keys, changed, dirty = set(make_damaged.keys(intact)), set(), False
    for number, (offset, size) in enumerate(make_damaged.samples(intact)):
        dirty = dirty and number not in keys
        dirty = dirty or intact[offset : offset + size] != damaged[offset : offset + size]
        if dirty:
            changed.add(number)
    return changed


@pytest.mark.parametrize("camera", [FRONT, WRIST])
def test_damage_stays_in_its_gop_and_is_reported(root, camera):
    """Bits that still make a valid stream cannot be told without sums over the bytes
    (docs/decoding.md); what must hold: no intact picture suffers, lost ones are typed errors.
    """
    path = video(root, camera)
    intact, failed = path.read_bytes(), 0
    for number in range(9):
        rng, data = random.Random(number), bytearray(intact)
        damage = (make_damaged.flip, make_damaged.zeros, make_damaged.lose_key)[number % 3]
        damage(rng, data)
        path.write_bytes(data)
        suspects = touched(intact, bytes(data))
        near = {n + d for n in suspects for d in (-1, 0, 1)} | {0, SECOND[camera] - 1}
        found = outcomes(root, camera, sorted(n for n in near if 0 <= n < SECOND[camera]))
        for row, outcome in found.items():
            assert outcome == "right" or row in suspects, (number, row, outcome)
            if damage is make_damaged.lose_key and row in suspects:
                assert isinstance(outcome, DecodeError), (number, row, outcome)
        errors = [o for o in found.values() if isinstance(o, ReelpoolError)]
        for e in errors:
            assert isinstance(e, DecodeError), repr(e)
            assert None not in (e.frame, e.offset, e.length), repr(e)
        failed += bool(errors)
    assert failed >= 7


@pytest.mark.parametrize("seed", range(12))
def test_damaged_indexes(root, seed):
    path = video(root, WRIST)
    intact, rng = path.read_bytes(), random.Random(seed)
    data = bytearray(intact)
    # Swapped samples and changed durations make a valid file of other contents.
    damages = (make_damaged.false_key, make_damaged.foreign_offset, make_damaged.no_frames)
    (damages[seed] if seed < 3 else make_damaged.moov)(rng, data)
    path.write_bytes(data)
    found = outcomes(root, WRIST, range(0, SECOND[WRIST], 7))
    assert "wrong" not in found.values()


# -- tables and metadata --


def data_file(root, file=0):
    return root / f"data/chunk-000/file-{file:03d}.parquet"


def rewrite(path, change):
    pq.write_table(change(pq.read_table(path)), path)


def test_timestamps_off_by_half_a_frame(root):
    def shift(table):
        seconds = table["timestamp"].to_numpy() + np.float32(0.05)
        at = table.column_names.index("timestamp")
        return table.set_column(at, "timestamp", pa.array(seconds, pa.float32()))

    rewrite(data_file(root), shift)
    dataset = open_demo(root)
    with pytest.raises(FrameTimestampError) as caught:
        dataset[7]
    error = caught.value
    assert isinstance(error, ValueError) and (error.episode, error.frame) == (0, 7)
    assert error.time == pytest.approx(0.75, abs=1e-5) and error.nearest is not None
    assert error.camera in (FRONT, WRIST) and error.file
    loose = open_demo(root, tolerance_s=0.06)
    assert loose[7][WRIST].shape == (3, 144, 192)


@pytest.mark.parametrize("column", ["action", "timestamp", "task_index"])
def test_a_missing_column(root, column):
    rewrite(data_file(root), lambda t: t.drop_columns([column]))
    with pytest.raises(FormatError, match=column) as caught:
        open_demo(root)
    assert Path(caught.value.file).name == "file-000.parquet"


def test_a_null_number(root):
    def null(table):
        values = table["task_index"].to_pylist()
        values[3] = None
        return table.set_column(
            table.column_names.index("task_index"), "task_index", pa.array(values, pa.int64())
        )

    rewrite(data_file(root), null)
    with pytest.raises(FormatError, match="task_index"):
        open_demo(root)


def test_a_task_without_name(root):
    def other(table):
        at = table.column_names.index("task_index")
        return table.set_column(at, "task_index", pa.array([7] * len(table), pa.int64()))

    rewrite(data_file(root), other)
    with pytest.raises(FormatError, match="task"):
        open_demo(root, cameras=[])[0]


@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_broken_tables(root, damage):
    path = data_file(root, 1)
    if damage == "missing":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(b"" if damage == "empty" else data[: len(data) // 2])
    with pytest.raises((FormatError, NotFoundError)) as caught:
        open_demo(root)
    assert Path(caught.value.file).name == path.name
    assert len(open_demo(root, episodes=[0])) == 48  # other files are not asked for


@pytest.mark.parametrize(
    "changes",
    [
        {"video_path": "../../{video_key}/{chunk_index}/{file_index}.mp4"},
        {"video_path": "/etc/passwd"},
        {"video_path": "{video_key.__class__}"},
        {"video_path": "{video_key}/{nothing}.mp4"},
        {"data_path": "../x-{chunk_index}-{file_index}.parquet"},
        {"data_path": "{chunk_index:9999999999d}"},
        {"fps": 0},
        {"fps": "fast"},
        {"features": []},
        {"total_frames": -1},
    ],
)
def test_hostile_info(root, changes):
    edit_info(root, **changes)
    with pytest.raises((FormatError, NotFoundError)) as caught:
        open_demo(root)[0]
    assert "root:" not in str(caught.value)


def test_hostile_shapes(root):
    import json

    info = json.loads((root / "meta/info.json").read_text())
    for shape in ([], [3], [1 << 40, 1 << 40, 3], [-240, 320, 3], ["240", 320, 3], None, [0, 0, 3]):
        info["features"][WRIST]["shape"] = shape
        (root / "meta/info.json").write_text(json.dumps(info))
        with pytest.raises((ReelpoolError, ValueError, MemoryError)):
            open_demo(root)[0]


def test_a_task_number_without_end(root):
    edit_info(root, total_episodes=10**9)
    with pytest.raises(FormatError):
        open_demo(root)
