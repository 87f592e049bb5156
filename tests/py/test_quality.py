"""How well the orders mix: the gate on the test set, the figures against their definitions."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from reelpool import __main__, order
from reelpool.bench import quality, quality_plot, scenarios

GATE = {  # figure: (least, most); live is in windows
    "frac": (0.98, 1.0),
    "nd1_pct": (0.0, 0.2),
    "var": (0.9, 1.1),
    "v100": (0.0, 9.0),
    "ac1": (-0.15, 0.15),
    "ks": (0.0, 0.36),
    "burst": (1.0, 1.3),
    "live": (0.0, 1.1),
}
SMALL = quality.Layout("small", np.array([40, 7, 93, 1, 61, 130, 22, 66]), gop=4)


def missed(figures: dict) -> list[str]:
    """Figures that are not within the gate."""
    found = figures | {"live": figures["live"] / quality.WINDOW}
    return [k for k, (low, high) in GATE.items() if not low <= found[k] <= high]


@pytest.fixture(scope="module")
def whole() -> quality.Layout:
    return quality.test_set()


def test_the_test_set_is_the_one_that_the_figures_speak_of(whole):
    drawn = np.exp(np.random.default_rng(0).normal(5.6, 0.45, 2000))
    assert whole.lengths.tolist() == np.clip(drawn, 60, 1200).astype(int).tolist()
    assert whole.count == 589_485


@pytest.mark.parametrize("locality", [False, True], ids=["k = 1", "default"])
def test_gate(whole, locality):
    params = quality.lane_params(whole, 64, quality.WINDOW, locality)
    wanted = (64, 64, 75_454, 2, 2, 16) if locality else (64, 64, 75_454, 1, 1, 0)
    assert params == order.OrderParams(*wanted)
    figures = quality.measure(whole, quality.ours(whole, params, 42, 0), 64)
    assert missed(figures) == []


def test_the_gate_refuses_whole_episodes_and_other_loaders(whole):
    params = order.OrderParams(64, 0, quality.WINDOW)
    figures = quality.measure(whole, quality.ours(whole, params, 0, 0), 64)
    assert missed(figures) == ["v100", "ac1", "ks", "burst"]
    figures = quality.measure(whole, quality.lerobot_stream(whole, np.random.default_rng(0)), 64)
    assert {"frac", "nd1_pct", "var", "ks"} <= set(missed(figures))
    assert figures["frac"] == pytest.approx(0.332, abs=0.005)
    assert figures["acts_like"] == pytest.approx(15.8, abs=0.6)


def test_defaults_follow_gop_batch_and_window():
    def of(gop, batch, window, locality=True):
        layout = quality.Layout("x", np.array([300_000]), gop)
        return quality.lane_params(layout, batch, window, locality)

    assert of(2, 64, None) == order.OrderParams(64, 64, 65_536, 2, 2, 16)
    assert of(30, 48, 5000) == order.OrderParams(96, 64, 5000, 8, 30, 16)
    assert of(None, 1024, None) == order.OrderParams(1024, 64, 262_144)
    assert of(1, 64, None) == of(2, 64, None, False) == order.OrderParams(64, 64, 65_536)
    assert of(2, 64, 300_000).C == 1


# ---- figures against their definitions ----


def dense(layout, rows, batch):
    """Episode shares of each full batch, (batches, episodes)."""
    count = len(rows) // batch
    shares = np.zeros((count, len(layout.lengths)))
    for b in range(count):
        for row in rows[b * batch : (b + 1) * batch]:
            shares[b, layout.episode[row]] += 1 / batch
    return shares


@pytest.fixture(scope="module")
def measured():
    params = order.OrderParams(8, 16, 200, 2, 4, 3)
    epoch = quality.ours(SMALL, params, 3, 1)
    return epoch.rows, quality.measure(SMALL, epoch, 12)


def test_batch_figures_by_their_definition(measured):
    rows, figures = measured
    shares = dense(SMALL, rows, 12)
    share = SMALL.lengths / SMALL.count
    assert figures["frac"] == pytest.approx((shares > 0).sum(1).mean() / 12)
    # The expectation over features f ~ N(0, 1) of (shares f - share f)^2, and of f's own variance.
    own = 1 - (share**2).sum()
    spread = (shares**2).sum(1).mean() - (share**2).sum()
    assert figures["var"] == pytest.approx(spread * 12 / own)
    assert figures["acts_like"] == pytest.approx(12 / figures["var"])
    products = (shares[1:] * shares[:-1]).sum(1).mean() - (share**2).sum()
    assert figures["ac1"] == pytest.approx(products / spread)
    lag = dict(map(tuple, figures["lags"]))[6]
    assert lag == pytest.approx(
        ((shares[6:] * shares[:-6]).sum(1).mean() - (share**2).sum()) / spread
    )
    long = shares[:32].reshape(2, 16, -1).mean(1)
    assert figures["eff16_episodes"] == pytest.approx((1 / (long**2).sum(1)).mean())


def test_variance_is_what_random_features_show():
    """1.0 for a uniform order; four times the batch's for batches of fourfold samples."""
    layout = quality.Layout("x", np.full(400, 50))
    rows = np.random.default_rng(1).permutation(layout.count)
    features = np.random.default_rng(2).normal(size=(400, 200))
    for taken, wanted in ((rows, 1.0), (np.repeat(rows[: len(rows) // 4], 4), 4.0)):
        found = quality._Batches(layout, taken, 40).variance(1)
        means = features[layout.episode[taken]].reshape(-1, 40, 200).mean(1)
        sampled = (means.var(0) * 40 / features.var(0)).mean()
        assert found == pytest.approx(wanted, rel=0.08)
        assert found == pytest.approx(sampled, rel=0.08)


def test_near_duplicates_by_their_definition(measured):
    rows, figures = measured
    near = 0
    for b in range(len(rows) // 12):
        batch = rows[b * 12 : (b + 1) * 12]
        for row in batch:
            same = batch[SMALL.episode[batch] == SMALL.episode[row]]
            near += (np.abs(same - row) <= 30).sum() > 1
    assert near > 0
    assert figures["nd1_pct"] == pytest.approx(100 * near / (len(rows) // 12 * 12))


def test_spread_by_its_definition(measured):
    rows, figures = measured
    found = []
    for episode, length in enumerate(SMALL.lengths):
        places = (np.flatnonzero(SMALL.episode[rows] == episode) + 0.5) / len(rows)
        found.append(np.abs(places - (np.arange(length) + 0.5) / length).max())
    assert figures["ks"] == pytest.approx(np.mean(found))
    assert quality.spread(SMALL, np.arange(SMALL.count)) > 0.4


def test_burst_leaves_out_the_outer_tenths():
    admitted = (np.arange(0, 200 * 10, 10), np.full(200, 10))  # ten frames each ten positions
    assert quality.burst(admitted, 2000, 1) == 1.0
    admitted[1][0], admitted[1][100] = 900, 60
    assert quality.burst(admitted, 2000, 1) == pytest.approx(150 / (1650 / 16))
    assert quality.burst(admitted, 2000, 64) is None


# ---- orders ----


@pytest.mark.parametrize("layout", [SMALL, quality.Layout("one", np.array([300]), None)],
                         ids=["eight", "one"])  # fmt: skip
@pytest.mark.parametrize("window", [None, 1, 70, 10_000])
def test_every_order_holds_each_frame_once(layout, window):
    for name, _, make in quality.orders(layout, 16, window):
        epoch = make(5, 2)
        assert sorted(epoch.rows.tolist()) == list(range(layout.count)), name
        assert 0 < epoch.live <= layout.count
        assert make(5, 2).rows.tolist() == epoch.rows.tolist()
        quality.measure(layout, epoch, 16)


def test_units_are_cut_as_the_order_cuts_them():
    """Each lane's window holds whole units: with windows of one row they come one by one."""
    params = order.OrderParams(1, 16, 1, 2, 4, 3)
    epoch = quality.ours(SMALL, params, 0, 0)
    units = quality.units_of(SMALL, params)[epoch.rows]
    assert len(np.flatnonzero(np.diff(units))) == units.max() > 20
    lengths = np.bincount(quality.units_of(SMALL, params))
    assert lengths.sum() == SMALL.count
    whole = quality.units_of(SMALL, order.OrderParams(4, 0, 50))
    assert whole.tolist() == SMALL.episode.tolist()


def test_live_frames_by_their_definition():
    params = order.OrderParams(8, 16, 200)
    epoch = quality.ours(SMALL, params, 3, 1)
    unit = quality.units_of(SMALL, params)
    held: dict = {}
    for p, row in enumerate(epoch.rows):
        held.setdefault((unit[row], p % 8), []).append(p)
    live = max(sum(len(v) for v in held.values() if v[0] <= p <= v[-1]) for p in range(SMALL.count))
    assert epoch.live == live
    at_one_position = [np.array(v) for v in ([0, 2], [2, 3], [5, 7])]  # first, last, frames
    assert quality._most_live(*at_one_position) == 12
    assert epoch.admitted[1].sum() == SMALL.count


def test_a_pool_holds_so_many_episodes_and_fills_up_again():
    epoch = quality.episode_pool(SMALL, 3, np.random.default_rng(0))
    at = {}
    for p, row in enumerate(epoch.rows):
        at.setdefault(int(SMALL.episode[row]), []).append(p)
    resident = [
        sum(first <= p <= places[-1] for (_, places), first in zip(sorted(at.items()), begun))
        for begun in [epoch.admitted[0]]
        for p in range(SMALL.count)
    ]
    assert max(resident) <= 4  # one leaves and one comes in at the same draw
    assert sorted(epoch.admitted[0])[:3] == [0, 0, 0]
    assert sorted(epoch.admitted[0])[3] > 0


def test_a_buffer_gives_no_frame_before_it_can_hold_it():
    layout = quality.Layout("x", np.full(40, 25))
    rows = quality.frame_buffer(layout, 100, np.random.default_rng(3)).rows
    episodes = list(dict.fromkeys(layout.episode[rows].tolist()))
    assert len(episodes) == 40
    entered: list[int] = []
    for p, e in enumerate(layout.episode[rows].tolist()):
        if e not in entered:
            entered.append(e)
        assert len(entered) <= (p + 100) // 25 + 1
    ages = np.abs(np.diff(rows))
    assert np.median(ages) > 25


def test_lerobot_reads_each_shard_in_order():
    layout = quality.Layout("x", np.full(32, 200), 2, np.repeat(np.arange(4), 8))
    rows = quality.lerobot_stream(layout, np.random.default_rng(0)).rows
    assert len(set((rows[:200] // 1600).tolist())) == 4
    assert (rows[:200] % 1600).max() < 600  # 1,000 frames of four shards were read


# ---- the report ----


def test_layout_of_a_data_set():
    from reelpool import LeRobotDatasetMetadata

    meta = LeRobotDatasetMetadata("demo", root=scenarios.DEMO / "dataset")
    layout = quality.layout_of("demo", meta)
    assert layout.lengths.tolist() == [48, 44, 52, 40]
    assert layout.gop == 2
    assert layout.file_of.shape == (4,)
    assert layout.file_of[0] == 0


def test_the_command(tmp_path, capsys):
    words = ["bench", "--quality", str(scenarios.DEMO / "dataset"), "--batch-size", "8", "--window",
             "60", "--repeat", "2", "--json", "-q", "--out-dir", str(tmp_path)]  # fmt: skip
    assert __main__.main(words) == 0
    shown = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "quality.json").read_text())
    assert written["orders"] == shown["orders"]
    assert len(shown["orders"]) == 6
    assert shown["orders"][1]["ours"] and not shown["orders"][0]["ours"]
    assert shown["frames"] == 184
    assert shown["missed"] == []
    page = (tmp_path / "quality.html").read_text()
    assert not re.search(r"(src|href)=['\"]?(?!data:)", page)
    for svg in [*re.findall(r"<svg.*?</svg>", page, re.S), (tmp_path / "quality.svg").read_text()]:
        ElementTree.fromstring(svg)
    assert __main__.main([*words, "--min", "frac=2", "--max", "ks=1"]) == 1
    assert len(json.loads(capsys.readouterr().out)["missed"]) == 2
    assert __main__.main([*words, "--batch-size", "100"]) == 3
    assert "two batches" in capsys.readouterr().err


def test_the_table_has_a_cell_for_each_figure():
    records = quality.compare(SMALL, 16, None, 0, 1)
    head, rows = quality_plot.rows_of(records)
    assert {len(r) for r in rows} == {len(head)}
    assert {name for name, _ in quality_plot.MEANING} <= set(head)
    assert "-0.00" not in str(rows)
    assert Path(quality.LENGTHS).is_file()
