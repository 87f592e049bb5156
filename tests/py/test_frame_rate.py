"""`fps` of info.json against the times of the rows: a window never holds rows of other times."""

import json
import logging

import numpy as np
import pyarrow as pa
import pytest
import reelpool
from reelpool import verify
from reelpool.__main__ import main
from reelpool.errors import FormatError
from reelpool.frame_rate import contradiction, seconds_per_row
from written_datasets import edit_info, rows, write_v2, write_v30

KINDS = [reelpool.LeRobotDataset, reelpool.StreamingLeRobotDataset]


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.mark.parametrize("write", [write_v30, write_v2])
@pytest.mark.parametrize("kind", KINDS)
def test_windows_that_would_hold_other_rows_are_an_error(tmp_path, kind, write):
    root = write(tmp_path / "set", info={"fps": 30})  # its rows are 0.1 s apart
    with pytest.raises(FormatError) as caught:
        kind("t/x", root, delta_timestamps={"timestamp": [0.0], "state": [0.0, 0.1, 0.2]})
    text = str(caught.value)
    assert "fps is 30, but the rows' timestamps are 0.1 s apart, 10 fps" in text
    assert "delta_timestamps['state']" in text and f"reelpool verify {root}" in text
    assert caught.value.file == "meta/info.json" and caught.value.dataset == "t/x"
    edit_info(root, fps=10)
    right = reelpool.LeRobotDataset("t/x", root, delta_timestamps={"timestamp": [0.0, 0.1]})
    assert np.allclose(np.asarray(right[0]["timestamp"]), [0.0, 0.1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deltas", [None, {"state": [0.0]}, {"state": [0.0, 0.0]}])
def test_what_needs_no_rate_is_read_with_one_warning(tmp_path, caplog, kind, deltas):
    root = write_v30(tmp_path / "set", info={"fps": 30})
    with caplog.at_level(logging.WARNING, "reelpool"):
        dataset = kind("t/x", root, delta_timestamps=deltas, num_threads=1)
        assert len(list(iter(dataset))) == 12
    assert len(warnings_of(caplog)) == 1 and "fps is 30" in caplog.text


def test_a_larger_tolerance_takes_rows_by_number(tmp_path, caplog):
    root = write_v30(tmp_path / "set", info={"fps": 30})
    with pytest.raises(FormatError, match=r"tolerance_s=(0\.0667) takes"):
        reelpool.LeRobotDataset("t/x", root, delta_timestamps={"state": [0.1]})
    options = {"delta_timestamps": {"timestamp": [0.1]}, "tolerance_s": 0.0667}
    with caplog.at_level(logging.WARNING, "reelpool"):
        assert float(reelpool.LeRobotDataset("t/x", root, **options)[0]["timestamp"][0]) > 0.2
    assert not caplog.records


def uneven(rng, scale):
    return np.cumsum(rng.normal(0.1, scale, 3000))


@pytest.mark.parametrize(
    ("fps", "times"),
    [
        (10, uneven(np.random.default_rng(1), 0.02)),  # a clock
        (10, np.round(np.arange(3000) / 10, 2)),
        (30, np.arange(3000) / 29.97),
        (10, np.arange(3000) * 0.1005),
        (30, np.round(np.arange(3000) / 30, 4)),
        (30, 1e5 + np.arange(3000) / 30),  # float32 tells 8 ms apart there
        (30, 1e9 + np.arange(3000) / 30),  # and nothing there
        (10, np.repeat(np.nan, 8)),
        (10, np.append(np.arange(99) / 10, [np.nan, np.inf, -np.inf])),
        (10, np.zeros(8)),
        (10, np.arange(9.0)[::-1]),
        (10, [0.0]),
        (10, []),
    ],
)
def test_times_that_do_not_contradict(fps, times):
    times = np.asarray(times, np.float32)
    with np.errstate(all="raise"):
        assert contradiction(fps, times, np.zeros(len(times), np.int64), 1e-4) is None


def test_steps_are_those_inside_episodes():
    lengths = (2, 1, 1, 1, 3)
    columns = rows(lengths, fps=20)
    times, episode = (columns[k].to_numpy() for k in ("timestamp", "episode_index"))
    assert seconds_per_row(times, episode) == pytest.approx(0.05)
    assert seconds_per_row(times[2:5], episode[2:5]) is None
    times = np.append(np.arange(20) / 20, np.repeat(np.nan, 40)).astype(np.float32)
    assert seconds_per_row(times, np.zeros(60, np.int64)) == pytest.approx(0.05)
    assert contradiction(10, times, np.zeros(60, np.int64), 1e-4) == pytest.approx(0.05)
    gaps = np.arange(100, dtype=np.float32) / 20
    gaps[40:] += 7  # some frames are missing
    assert seconds_per_row(gaps, np.zeros(100, np.int64)) == pytest.approx(0.05, abs=1e-6)
    assert contradiction(10, gaps, np.zeros(100, np.int64), 1e-4) == pytest.approx(0.05, abs=1e-6)


def test_verify_tells(tmp_path, capsys):
    columns = rows((3, 4, 5))
    columns["timestamp"] = pa.array(columns["frame_index"].to_numpy() / 30, pa.float32())
    root = write_v30(tmp_path / "set", columns=columns)  # declares 10
    found = [f for f in verify.check(root).faults if "fps" in f.what]
    assert not [f for f in verify.check(root, tolerance_s=0.07).faults if "fps" in f.what]
    assert len(found) == 1 and found[0].level == "meta" and found[0].file == "meta/info.json"
    assert main(["verify", str(root), "--json", "--level", "meta"]) == 1
    told = json.loads(capsys.readouterr().out)["faults"]
    assert [f["episode"] for f in told if "fps is 10, but" in f["what"]] == [0]
    edit_info(root, fps=30)
    assert not [f for f in verify.check(root).faults if "fps" in f.what]


def test_recorded_sets_agree(data_root, caplog):
    roots = [p.parent.parent for p in sorted(data_root.glob("*/meta/info.json"))]
    if not roots:
        pytest.skip("no test data")
    with caplog.at_level(logging.WARNING, "reelpool"):
        for root in roots:
            reelpool.LeRobotDataset("t/x", root, cameras=[])
    assert not [text for text in warnings_of(caplog) if "fps" in text]
