"""Mixtures: shares of the samples, one layout over several datasets, the state."""

import dataclasses
import itertools
import json
import pickle
from fractions import Fraction

import numpy as np
import pytest
import reelpool
from demo_sets import (
    FRAMES,
    FRONT,
    ROOT,
    STARTS,
    WRIST,
    copy_demo,
    open_demo,
)
from reelpool import _core, order
from reelpool.errors import DecodeError, StateError
from reelpool.mixture import Mixture, pattern, share_out
from reelpool.order import SEQUENTIAL_PARAMS, OrderParams
from written_datasets import NUMBERS, STATE, edit_info, write_v30

SMALL = [1, 3]  # episodes of the second set: 84 frames


@pytest.fixture(scope="module")
def mixture():
    return Mixture([open_demo(), open_demo(episodes=SMALL)], [3, 1])


# -- shares --


def test_pattern_of_the_documentation():
    assert pattern([5, 3, 1]) == [0, 1, 0, 0, 1, 2, 0, 1, 0]
    assert pattern([1, 1]) == [0, 1] and pattern([4]) == [0, 0, 0, 0]


@pytest.mark.parametrize("lanes", [[48, 16], [1, 63], [21, 21, 22], [5, 3, 1], [1] * 7])
def test_every_prefix_has_its_share(lanes):
    total = sum(lanes)
    counts = np.cumsum([[d == own for d in range(len(lanes))] for own in pattern(lanes)], axis=0)
    assert counts[-1].tolist() == lanes
    for length, count in enumerate(counts, 1):
        for d, share in enumerate(lanes):
            assert abs(Fraction(int(count[d])) - Fraction(length * share, total)) < Fraction(3, 2)


def test_lanes_go_by_largest_remainder_and_nobody_is_left_out():
    assert share_out([3, 1], 64) == [48, 16]
    assert share_out([1, 1, 1], 64) == [22, 21, 21]
    assert share_out([1, 1, 1000], 8) == [1, 1, 6]
    assert share_out([1, 1, 1000], 3) == [1, 1, 1]
    assert share_out([0.5, 0.25, 0.25], 10) == [5, 3, 2]  # the remainders tie: the lower set
    for weights in itertools.product([1, 2.5, 100], repeat=3):
        for count in (3, 4, 7, 64):
            lanes = share_out(weights, count)
            assert sum(lanes) == count and min(lanes) >= 1
            for one, other in itertools.combinations(range(3), 2):
                if weights[one] >= weights[other]:
                    assert lanes[one] >= lanes[other]
                if count >= 64 and weights.count(1) == 0:
                    assert abs(lanes[one] - count * weights[one] / sum(weights)) < 1
    with pytest.raises(ValueError, match="3 datasets cannot share 2 lanes"):
        share_out([1, 1, 1], 2)


def test_default_weights_are_frames():
    mixed = Mixture([open_demo(), open_demo(episodes=SMALL)])
    assert mixed.weights == [FRAMES, 84] and not mixed.explicit_weights
    assert mixed.lanes(67) == [46, 21] and mixed.samples_per_epoch == FRAMES + 84
    assert mixed.effective_weights(67) == [46 / 67, 21 / 67]


@pytest.mark.parametrize("weights", [[1, 0], [1, -2], [1, float("nan")], [1, float("inf")],
                                     [1, "2"], [1, True]])  # fmt: skip
def test_weights_that_are_none(weights):
    with pytest.raises(ValueError, match="weights"):
        Mixture([open_demo(), open_demo(episodes=SMALL)], weights)


def test_arguments():
    one = open_demo(episodes=SMALL)
    with pytest.raises(ValueError, match="3 numbers for 1"):
        Mixture([one], [1, 1, 1])
    with pytest.raises(ValueError, match="at least one"):
        Mixture([])
    with pytest.raises(TypeError, match="list"):
        Mixture([one, [1, 2]])
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="samples_per_epoch"):
            Mixture([one], samples_per_epoch=wrong)


# -- the order --


def definition(mixed, seed, params, start, stop):
    """(set, row in it) of the positions [start, stop): position p is number x of set d."""
    lanes = [p.C for p in params]
    due, total = pattern(lanes), sum(lanes)
    epochs = {}
    out = []
    for p in range(start, stop):
        d = due[p % total]
        x = p // total * lanes[d] + due[: p % total].count(d)
        runs, _, size = mixed.sets()[d]
        own, place = divmod(x, size)
        if (d, own) not in epochs:
            own_seed = mixed.set_seed(seed, d)
            epochs[d, own] = order.epoch_rows(runs, own_seed, own, params[d])
        out.append((d, int(epochs[d, own][place])))
    return out


def drained(feed):
    """[(rows, done)] of all batches of a feed."""
    out = []
    while (batch := feed.next()) is not None:
        out.append((batch[0].tolist(), batch[1]))
    return out


UNITS = [OrderParams(C=1, U=8, R=1), OrderParams(C=1, U=16, R=1, k=2, g=2, J=4)]
ORDERS = {
    "uniform": (None, None),
    "uniform visits": (None, [OrderParams(C=1, U=8, R=1, k=2, g=4, J=8)] * 2),
    "window": (40, UNITS),
    "wide window": (10**6, UNITS),
}


@pytest.mark.parametrize("window, own", ORDERS.values(), ids=ORDERS)
def test_each_set_comes_exactly_once_per_epoch_of_its_own(mixture, window, own):
    params = mixture.params(8, window, own)
    assert [p.C for p in params] == [6, 2]
    taken = definition(mixture, 5, params, 0, 4 * FRAMES)
    for d, size in enumerate(mixture.sizes):
        rows = [row for found, row in taken if found == d]
        assert len(rows) > size  # at least one whole epoch
        for at in range(0, len(rows) - size + 1, size):
            assert sorted(rows[at : at + size]) == list(range(size))
        assert rows[:size] != rows[size : 2 * size]
    feed = _core.Feed(mixture.feed_sets(5, params), 0, 0, 4 * FRAMES, 8, 0, 1, 0, 1, False)
    first = mixture.layout.first_rows.tolist()
    got = [row for rows, _ in drained(feed) for row in rows]  # 8 positions: in their order
    assert got == [first[d] + row for d, row in taken]


def test_parameters(mixture):
    def fields(*arguments):
        return [dataclasses.astuple(p) for p in mixture.params(*arguments)]

    assert fields(64, None) == [(48, 1, FRAMES, 1, 1, 0), (16, 1, 84, 1, 1, 0)]
    assert fields(8, 40, UNITS) == [(6, 8, 30, 1, 1, 0), (2, 16, 10, 2, 2, 4)]
    assert fields(8, None, UNITS) == [(6, 1, FRAMES, 1, 1, 0), (2, 1, 84, 2, 2, 4)]
    assert fields(8, 2, UNITS)[1][2] == 1  # no window is empty


def test_frames_of_a_uniform_mixture_are_dealt_evenly():
    """Each frame of a set comes at each place of its epoch equally often."""
    mixed = Mixture([open_demo(episodes=[3]), open_demo(episodes=SMALL)], [1, 1])
    places = np.zeros((40, 40))
    params, (runs, _, _) = mixed.params(8, None), mixed.sets()[0]
    for seed in range(600):
        found = order.epoch_rows(runs, mixed.set_seed(seed, 0), 0, params[0])
        places[found, np.arange(40)] += 1
    chi = ((places - 15) ** 2 / 15).sum()
    assert 39 * 39 - 6 * 55 < chi < 39 * 39 + 6 * 55  # mean and 6 standard deviations


def test_every_world_makes_the_same_batches_and_resumes_anywhere(mixture):
    params = mixture.params(24, 60, UNITS)
    start, stop = mixture.span(1)
    assert (start, stop) == (FRAMES + 84, 2 * (FRAMES + 84))
    sets = mixture.feed_sets(5, params)

    def batches(world, start, workers=1):
        parts = []
        for rank in range(world):
            streams = [
                drained(_core.Feed(sets, 0, start, stop, 12 // world, rank, world, w, workers, 0))
                for w in range(workers)
            ]
            count = sum(map(len, streams))
            parts.append([streams[n % workers][n // workers] for n in range(count)])
        return [
            ([row for part in parts for row in part[n][0]], parts[0][n][1])
            for n in range(len(parts[0]))
        ]

    whole = batches(1, start)
    rows = [row for batch, _ in whole for row in batch]
    want = definition(mixture, 5, params, start, stop)
    first = mixture.layout.first_rows.tolist()
    assert sorted(rows) == sorted(first[d] + row for d, row in want)
    for world in (2, 3, 4):
        assert batches(world, start) == whole
    assert batches(1, start, workers=3) == whole
    for n, (_, done) in enumerate(whole[:-1]):
        assert batches(1, done) == whole[n + 1 :]
    for p in range(start, start + 30):  # from anywhere, also inside a batch
        rest = [row for batch, _ in batches(1, p) for row in batch]
        assert sorted(rest) == sorted(first[d] + row for d, row in want[p - start :])


def test_same_dataset_twice_is_shuffled_in_two_ways():
    mixed = Mixture([open_demo(), open_demo()])
    params = mixed.params(64, None)
    seeds = [entry[1] for entry in mixed.feed_sets(7, params)]
    assert seeds[0] != seeds[1]
    assert mixed.feed_sets(8, params)[0][1] != seeds[0]


def test_unshuffled_sets_follow_each_other(mixture):
    feed = _core.Feed(mixture.feed_sets(5, None), 0, *mixture.span(1), 50, 0, 1, 0, 1, False)
    assert [row for rows, _ in drained(feed) for row in rows] == list(range(FRAMES + 84))


# -- the layout --


def test_rows_know_their_set(mixture):
    sets, local = mixture.place(np.array([0, FRAMES - 1, FRAMES, FRAMES + 83]))
    assert sets.tolist() == [0, 0, 1, 1] and local.tolist() == [0, FRAMES - 1, 0, 83]


def test_layout_joins_the_tables(mixture):
    layout = mixture.layout
    keys = [entry.key for entry in layout.entries]
    assert keys == [*open_demo()[0], "dataset_index"]
    paths, first, episode, sets, index, time, tolerance, cameras, columns, _, fields = (
        layout.engine_arguments()
    )
    assert first.tolist() == [*STARTS, FRAMES + 44, FRAMES + 84]
    assert episode.tolist() == [0, 1, 2, 3, 1, 3] and sets.tolist() == [0, 0, 0, 0, 1, 1]
    assert index.tolist() == [*range(FRAMES), *range(48, 92), *range(144, 184)]
    assert len(time) == FRAMES + 84 and tolerance.tolist() == [1e-4, 1e-4]
    for camera in cameras:
        files = [paths[n].decode() for n in camera[6].tolist()]
        assert all(camera[0] in file for file in files)
        assert files[4:] == [files[1], files[3]]  # the same episodes
    marks = columns[-1][0]
    assert np.repeat([0, 1], [FRAMES, 84]).tolist() == marks.tolist()
    assert len(fields) == len(cameras) + len(columns)


def test_tasks_come_from_their_own_set(mixture):
    (task,) = [entry for entry in mixture.layout.entries if entry.source == "task"]
    rows = np.array([FRAMES + 3, 50, FRAMES + 50, 2])
    names = [open_demo()[i]["task"] for i in (51, 50, 150, 2)]
    assert mixture.layout.cells(task, rows) == names


def test_keys_that_are_not_common_are_left_out():
    mixed = Mixture([open_demo(), open_demo(cameras=[WRIST])])
    keys = [entry.key for entry in mixed.layout.entries]
    assert FRONT not in keys and WRIST in keys


def test_windows_of_other_rates(tmp_path):
    slow = copy_demo(tmp_path / "slow")
    edit_info(slow, fps=5)  # its rows stay 0.1 s apart: tolerance_s permits that
    deltas = {FRONT: [-0.2, 0.0], "action": [0.0, 0.2, 0.4]}
    mixed = Mixture(
        [
            open_demo(delta_timestamps=deltas),
            open_demo(slow, delta_timestamps=deltas, tolerance_s=0.1),
        ]
    )
    arguments = mixed.layout.engine_arguments()
    windows = {camera[0]: camera[5].tolist() for camera in arguments[7]}
    assert windows == {FRONT: [-2, 0, -1, 0], WRIST: [0, 0]}
    assert [pad.tolist() for pad in arguments[9]] == [[-2, 0, -1, 0], [0, 2, 4, 0, 1, 2]]
    assert [0, 2, 4, 0, 1, 2] in [column[2].tolist() for column in arguments[8]]
    with pytest.raises(ValueError, match=r"'observation.images.front' .* \(2, 3, 240, 320\)"):
        Mixture([open_demo(delta_timestamps=deltas), open_demo(slow)])


@pytest.mark.parametrize("other", [{"resize": (120, 160)}, {"return_uint8": False}])
def test_pictures_that_differ_are_refused(other):
    with pytest.raises(ValueError, match=r"'observation.images.front' is uint8.*dataset 0 .*"
                       "dataset 1 .*resize=.*cameras="):  # fmt: skip
        Mixture([open_demo(), open_demo(**other)])
    sizes = {"resize": (120, 160), "return_uint8": False}
    Mixture([open_demo(**sizes), open_demo(**sizes)])


def image_set(root, channels=3, broken=()):
    """12 frames whose picture is (frame number * 20) in every pixel; some cells damaged."""
    import io

    import pyarrow as pa
    from PIL import Image
    from written_datasets import rows

    cells = []
    for i in range(12):
        stream = io.BytesIO()
        Image.fromarray(np.full((6, 8, channels), i * 20, np.uint8)).save(stream, "PNG")
        data = stream.getvalue()
        cells.append({"bytes": data[:40] if i in broken else data, "path": None})
    shape = [6, 8, channels]
    image = {"dtype": "image", "shape": shape, "names": ["height", "width", "channels"]}
    features = {"state": STATE, **NUMBERS, "cam": image}
    return write_v30(root, features=features, columns=rows((3, 4, 5)) | {"cam": pa.array(cells)})


def test_image_columns(tmp_path):
    pytest.importorskip("PIL.Image")
    one = reelpool.LeRobotDataset("one/set", root=image_set(tmp_path / "a"))
    two = reelpool.LeRobotDataset("two/set", root=image_set(tmp_path / "b", broken=[5]))
    mixed = Mixture([one, two])
    (entry,) = [e for e in mixed.layout.entries if e.source == "image"]
    found = mixed.layout.images(entry, np.array([13, 2, 23, 11]))
    values = [round(float(picture[0, 0, 0]) * 255) for picture in found]
    assert values == [20, 40, 220, 220]
    with pytest.raises(DecodeError, match="episode 1, frame 2"):
        mixed.layout.images(entry, np.array([17]))
    four = reelpool.LeRobotDataset("four/set", root=image_set(tmp_path / "c", channels=4))
    with pytest.raises(ValueError, match=r"'cam' is image .*\(one/set\).*\(four/set\).*cameras="):
        Mixture([one, four])
    Mixture([open_demo(), one])  # no camera in common: numbers only


def test_vectors_that_differ_are_refused(tmp_path):
    wide = {"state": {"dtype": "float32", "shape": [1], "names": None}, **NUMBERS}
    import pyarrow as pa
    from written_datasets import rows

    columns = rows((3, 4, 5)) | {"state": pa.array(np.arange(12.0), pa.float32())}
    one = reelpool.LeRobotDataset("a/b", root=write_v30(tmp_path / "a"))
    two = reelpool.LeRobotDataset(
        "c/d", root=write_v30(tmp_path / "b", features=wide, columns=columns)
    )
    with pytest.raises(ValueError, match=r"'state' is float32 \(2,\) in dataset 0 \(a/b\)"):
        Mixture([one, two])


def test_an_error_names_the_set_of_its_file(mixture, tmp_path):
    mixed = Mixture([open_demo(), open_demo(copy_demo(tmp_path / "copy"))])
    for d, path in ((0, mixed.layout.paths[0]), (1, mixed.layout.paths[-1])):
        error = DecodeError("broken\n  Run: reelpool inspect DATASET")
        error.file = path.decode()
        mixed.name_error(error)
        place = ROOT if d == 0 else tmp_path / "copy"
        assert error.dataset == "reelpool/demo" and str(place) in str(error)


def test_pickle(mixture):
    again = pickle.loads(pickle.dumps(mixture))
    assert again.weights == mixture.weights and again.fingerprints() == mixture.fingerprints()


# -- the state --


def test_state_round_trip(mixture):
    params = mixture.params(64, 128, UNITS)
    state = json.loads(json.dumps(mixture.state(5, 1234, params)))
    assert list(state) == ["v", "seed", "samples_done", "sets"]
    assert [s["C"] for s in state["sets"]] == [48, 16] and state["sets"][1]["weight"] == 1
    assert mixture.load(state, 5, shuffle=True) == (1234, params)
    assert mixture.load(state, 5, shuffle=True, window=128, lanes=64) == (1234, params)
    plain = mixture.state(5, 7, None)
    assert mixture.load(plain, 5, shuffle=False) == (7, None)
    assert len(json.dumps(Mixture([open_demo()]).state(5, 10**12, [SEQUENTIAL_PARAMS]))) <= 256


def test_states_of_something_else(mixture):
    params = mixture.params(64, 128, [OrderParams(C=1, U=8, R=1)] * 2)
    state = mixture.state(5, 1234, params)

    def changed(d=None, **fields):
        copy = json.loads(json.dumps(state))
        (copy if d is None else copy["sets"][d]).update(fields)
        return copy

    wrong = [
        ("seed", changed(seed=6)),
        ("'v'", changed(v=2)),
        ("samples_done", changed(samples_done=-1)),
        ("number of datasets", changed(sets=state["sets"][:1])),
        (r"sets\[1\].dataset", changed(1, dataset="0" * 16)),
        (r"sets\[0\].weight", changed(0, weight=2)),
        (r"sets\[1\].J", changed(1, J=-1)),
        (r"sets\[1\].k", changed(1, k=3)),
        (r"sets\[0\].C", changed(0, C=40)),
        (r"sets\[0\].U", changed(0, U=None)),
        ("sets", changed(sets=7)),
        ("'sets'", {"v": 1, "epoch": 0, "samples_done": 0}),
        ("no state", "text"),
    ]
    for field, bad in wrong:
        with pytest.raises(StateError, match=field):
            mixture.load(bad, 5, shuffle=True)
    explicit = [("window", 64, r"\[0\].R"), ("unit", 9, r"\[0\].U"), ("lanes", 32, "sum of C"),
                ("locality", (2, 2, 4), r"\[0\].k")]  # fmt: skip
    for name, value, field in explicit:
        with pytest.raises(StateError, match=field):
            mixture.load(state, 5, shuffle=True, **{name: value})
    with pytest.raises(StateError, match=r"sets\[0\]"):
        mixture.load(state, 5, shuffle=False)
    with pytest.raises(StateError, match="shuffle"):
        mixture.load(mixture.state(5, 0, None), 5, shuffle=True)
