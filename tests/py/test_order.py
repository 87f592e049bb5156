"""The sample order: golden values, its parameters, its shares per rank."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reelpool import _core, order

MAX = 2**64 - 1
RUNS_A = [(0, 0, 7), (7, 0, 5), (12, 0, 9)]
_LENGTHS = [60 + 37 * i % 101 for i in range(50)]
RUNS_B = [(sum(_LENGTHS[:i]), 0, n) for i, n in enumerate(_LENGTHS)]
RUNS_E = [(9, 3, 40), (60, 0, 33)]
GOLDEN = {
    "A": (RUNS_A, 0, 0, (4, 4, 12, 1, 1, 0), [2, 15, 19, 7, 1, 3, 16, 11],
          "4438d02c2e43023403dc7f11b0d0f113"),
    "B": (RUNS_B, 42, 3, (64, 64, 4096, 1, 1, 0), [3185, 3498, 4952, 1340],
          "4bfd1c19ad800545bd7679dd75b1a5bf"),
    "C": (RUNS_B, 42, 3, (1, 64, 5501, 1, 1, 0), [897, 2155, 1241, 919],
          "fa23a08f847dee6092a48309ae45b0bb"),
    "D": (RUNS_B, 42, 3, (16, 60, 3200, 4, 10, 16), [4111, 921, 65, 4495],
          "7ec2b000ce4099570f1703a518e4cc7f"),
    "E": (RUNS_E, 7, 1, (3, 8, 30, 2, 4, 6), [34, 20, 75, 36, 19, 74],
          "c296f3994b2ed5703287335dd9860973"),
}  # fmt: skip


def params(lanes, unit, window, visit, gop, span):
    return order.OrderParams(C=lanes, U=unit, R=window, k=visit, g=gop, J=span)


def sequence(runs, seed, epoch, numbers):
    """Frame ids of an epoch."""
    runs = np.array(runs, np.int64)
    rows = order.epoch_rows(runs, seed, epoch, params(*numbers))
    id_of_row = np.concatenate([np.arange(first, first + n) for first, _, n in runs])
    return id_of_row[rows]


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_sequences(case):
    runs, seed, epoch, numbers, first, digest = GOLDEN[case]
    got = sequence(runs, seed, epoch, numbers)
    assert got[: len(first)].tolist() == first
    assert hashlib.sha256(got.astype("<i8").tobytes()).hexdigest()[:32] == digest


def test_golden_hashes():
    assert _core.hash64(0, 0, 0, 0) == 0xE169C58D6627E8D5
    assert _core.hash64(MAX, 2**32 - 1, 2**32 - 1, MAX) == 0x41C83B0E408F276D
    assert _core.hash64(42, 3, 3, 1000) == 0x44F3868F47D958E1


@st.composite
def cases(draw):
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=12))
    gaps = draw(st.lists(st.integers(0, 9), min_size=len(lengths), max_size=len(lengths)))
    runs, at = [], 0
    for length, gap in zip(lengths, gaps):
        runs.append((at + gap, draw(st.integers(0, 20)), length))
        at += gap + length
    count = sum(lengths)
    gop = draw(st.integers(1, 12))
    numbers = (draw(st.integers(1, count + 1)), draw(st.integers(0, 70)),
               draw(st.integers(1, 2 * count)), draw(st.integers(1, gop)), gop,
               draw(st.integers(0, 20)))  # fmt: skip
    return runs, draw(st.integers(0, MAX)), draw(st.integers(0, 2**32 - 1)), numbers


@settings(max_examples=100, deadline=None)
@given(cases())
def test_every_frame_exactly_once(case):
    runs, seed, epoch, numbers = case
    got = sequence(runs, seed, epoch, numbers)
    assert sorted(got.tolist()) == [i for first, _, n in runs for i in range(first, first + n)]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 90), st.integers(1, 20), st.integers(1, 7), st.integers(1, 5), st.booleans(),
    st.integers(0, 95),
)  # fmt: skip
def test_rank_slices_cover_each_batch_and_do_not_depend_on_the_world(
    count, lanes, batch, world, drop_last, start
):
    rows = np.arange(count) * 10
    size = batch * world
    parts = [
        order.rank_rows(rows, lanes, start, batch, rank, world, drop_last) for rank in range(world)
    ]
    whole = [p for p in range(start, count, size) if p + size <= count or not drop_last]
    at = [0] * world
    for p in whole:
        q = min(p + size, count)
        slots = sorted(range(p, q), key=lambda x: (x % lanes, x // lanes))
        shares = []
        for rank, (mine, repeated) in enumerate(parts):
            if q - p >= world:
                take = (rank + 1) * (q - p) // world - rank * (q - p) // world
            else:
                take = 1
                assert repeated == world - (q - p)
            shares.append(mine[at[rank] : at[rank] + take].tolist())
            at[rank] += take
        united = [row for share in shares for row in share]
        if q - p >= world:
            assert united == [10 * s for s in slots]
        else:
            assert united == [10 * slots[rank % (q - p)] for rank in range(world)]
    if world > 1 or lanes > 1:
        assert at == [len(mine) for mine, _ in parts]


def of(facts=(5000, 50, 2, 0), batch=48, **changes):
    request = order.Request(**{"mode": "lanes", "locality": "auto"} | changes)
    request.check()
    return order.resolve(request, order.Facts(*facts), batch)


def uniform(**changes):
    return of(**{"mode": "uniform", "locality": None} | changes)


def test_default_parameters_of_a_map_style_order():
    assert uniform(shuffle=False) is None
    assert uniform() == params(1, 64, 5000, 1, 1, 0) == uniform(window=5000) == uniform(window=9999)
    assert uniform(window=1000) == params(96, 64, 1000, 1, 1, 0)
    assert uniform(window=1000, batch=100).C == 100
    visits = uniform(window=1000, unit=0, locality=(10, 3, 16))
    assert visits == params(96, 0, 1000, 3, 10, 16)
    assert uniform(locality=(10, 1, 16)) == params(1, 64, 5000, 1, 1, 0)
    assert uniform(locality=(4, 2, 8)) == params(1, 64, 5000, 2, 4, 8)
    assert uniform(lanes=7) == params(7, 64, 5000, 1, 1, 0)


def test_default_parameters_of_a_stream():
    assert of(shuffle=False) is None
    assert of() == params(96, 64, 65536, 2, 2, 16)
    assert of(batch=None) == params(64, 64, 65536, 2, 2, 16)
    assert of(batch=1024) == params(1024, 64, 4 * 1024 * 64, 2, 2, 16)
    assert of(window=1000).R == of(window=1000, episode_pool_size=3).R == 1000
    assert of(window=5000) == params(1, 64, 5000, 1, 1, 0)  # all of it: uniform
    assert of(episode_pool_size=3, frame_shuffle_buffer_size=7).R == 300
    assert of(episode_pool_size=3, facts=(5001, 50, 2, 0)).R == 3 * 101
    assert of(episode_pool_size=99).R == 5000 and of(episode_pool_size=99).C == 96
    assert of(frame_shuffle_buffer_size=7).R == 7
    assert of(at_least=97).C == 144 and of(at_least=1).C == 96
    assert of(lanes=5).C == 5 and of(unit=9).U == 9


def test_units_follow_the_span_of_video_deltas():
    assert of(facts=(5000, 50, 2, 16)).U == 64
    assert of(facts=(5000, 50, 2, 17)).U == 68
    assert of(facts=(5000, 50, 2, 25)).U == 0
    assert of(facts=(5000, 50, 2, 25)).R == 65536
    assert of(facts=(500000, 50, 2, 2500)).R == 4 * 96 * 10000
    assert of(facts=(5000, 50, 2, 25), unit=8).U == 8


@pytest.mark.parametrize(
    ("gop", "visit"),
    [(None, (1, 1, 0)), (0, (2, 2, 16)), (1, (1, 1, 0)), (4, (4, 4, 16)), (5, (2, 5, 16)),
     (30, (8, 30, 16))],
)  # fmt: skip
def test_visits_follow_the_gop(gop, visit):
    found = of(facts=(5000, 50, gop, 0))
    assert (found.k, found.g, found.J) == visit
    assert of(facts=(5000, 50, gop, 0), locality=None).k == 1


def test_too_many_lanes():
    with pytest.raises(ValueError, match="65536"):
        of(batch=70000)
    assert of(batch=70000, lanes=64).C == 64


@pytest.mark.parametrize(
    "arguments",
    [
        {"window": 0},
        {"window": 1.5},
        {"window": True},
        {"episode_pool_size": 0},
        {"frame_shuffle_buffer_size": -1},
        {"lanes": 0},
        {"lanes": 65537},
        {"unit": -1},
        {"unit": 2**31},
        {"locality": "auto", "mode": "uniform"},
        {"locality": "none"},
        {"locality": (4, 5, 16)},
        {"locality": (4, 0, 16)},
        {"locality": (4, 2, -1)},
        {"locality": (4, 2)},
    ],
)
def test_arguments_outside_their_limits(arguments):
    name = next(iter(arguments))
    with pytest.raises(ValueError, match=name):
        order.Request(**{"mode": "lanes"} | arguments).check()


def test_lanes_asked_for_outside_their_limits():
    with pytest.raises(ValueError, match="max_buffer_input_shards"):
        order.Request(at_least=0).check()


def test_the_fingerprint_names_the_selection():
    runs = np.array(RUNS_A, np.int64)
    assert order.fingerprint(runs) == order.fingerprint(runs.copy())
    assert len(order.fingerprint(runs)) == 16
    assert order.fingerprint(runs) != order.fingerprint(runs[:2])
