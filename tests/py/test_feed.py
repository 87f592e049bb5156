"""`_core.Feed`: rows of a rank's and worker's batches, from any position, over epochs and sets."""

import gc
import threading
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reelpool import _core

WORLDS = (1, 2, 3, 4, 6, 8)
WORKERS = (1, 2, 4, 8)
GLOBAL = 24  # a batch of all ranks, the same for every world

quick = settings(max_examples=25, deadline=None)


class Set:
    """One data set of a feed: its runs, and its whole epochs as `order_rows` writes them."""

    def __init__(self, runs, seed, numbers, first_row=0):
        self.runs = np.array(runs, np.int64)
        self.seed, self.numbers, self.first_row = seed, numbers, first_row
        self.count = int(self.runs[:, 2].sum())
        self.lanes = numbers[0] or 1
        self.entry = (self.runs, seed, *numbers, first_row)

    def epoch(self, epoch):
        if self.numbers[0] == 0:
            return self.first_row + np.arange(self.count)
        out = np.empty(self.count, np.int64)
        _core.order_rows(self.runs, self.seed, epoch, *self.numbers, out)
        return self.first_row + out


def feed(sets, *, epoch=0, start=0, stop=None, batch=GLOBAL, rank=0, world=1, worker=0, workers=1,
         drop_last=False):  # fmt: skip
    stop = sum(s.count for s in sets) if stop is None else stop
    entries = [s.entry for s in sets]
    return _core.Feed(entries, epoch, start, stop, batch, rank, world, worker, workers, drop_last)


def batches(source, limit=10**9):
    """[(rows, done, repeated)] of a feed, at most `limit`."""
    out = []
    while len(out) < limit and (batch := source.next()) is not None:
        out.append((batch[0].tolist(), *batch[1:]))
    return out


def by_lane(lanes, p, q):
    return sorted(range(p, q), key=lambda x: (x % lanes, x // lanes))


@st.composite
def sets(draw, longest=40, most_runs=6, most_lanes=None):
    sizes = draw(st.lists(st.integers(1, longest), min_size=1, max_size=most_runs))
    runs, at = [], draw(st.integers(0, 3))
    for size in sizes:
        runs.append((at, draw(st.sampled_from([0, 0, 1, 7, 30])), size))
        at += size + draw(st.sampled_from([0, 0, 5]))
    count = sum(sizes)
    gop = draw(st.integers(1, 12))
    lanes = st.integers(1, 8) | st.integers(1, count + 1)
    numbers = (draw(lanes if most_lanes is None else st.integers(0, most_lanes)),
               draw(st.integers(0, 70)), draw(st.integers(1, 2 * count)),
               draw(st.integers(1, gop)), gop, draw(st.integers(0, 20)))  # fmt: skip
    return Set(runs, draw(st.integers(0, 2**64 - 1)), numbers)


@quick
@given(sets(), st.integers(0, 2**32 - 1))
def test_from_every_position_the_rest_of_the_epoch(data, epoch):
    rows = data.epoch(epoch)
    assert sorted(rows.tolist()) == list(range(data.count))
    for p in range(data.count + 1):
        got = batches(feed([data], epoch=epoch, start=p, batch=1))
        assert [b[0][0] for b in got] == rows[p:].tolist()


def joined(sets, world, workers, **options):
    """[(rows of all ranks in rank order, done)], batch n from worker n mod workers."""
    per_rank = []
    for rank in range(world):
        share = [
            batches(feed(sets, batch=GLOBAL // world, rank=rank, world=world, worker=v,
                         workers=workers, **options))
            for v in range(workers)
        ]  # fmt: skip
        per_rank.append([share[n % workers][n // workers] for n in range(sum(map(len, share)))])
    assert len({len(found) for found in per_rank}) == 1
    return [([row for part in parts for row in part[0]], parts[0][1]) for parts in zip(*per_rank)]


SIZES = [1, 2, 3, 4, 5, 7, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49, 95, 96, 97, 127, 128,
         129, 211]  # fmt: skip


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_and_workers_share_the_same_batches(count, drop_last):
    numbers = (5, 8, 40, 2, 4, 6) if count % 2 else (24, 6, 60, 1, 1, 0)
    data = Set([(3, 2, count)], count, numbers)
    rows = data.epoch(1)
    want = []
    for p in range(0, count, GLOBAL):
        q = min(p + GLOBAL, count)
        if q - p == GLOBAL or not drop_last:
            want.append((rows[by_lane(data.lanes, p, q)].tolist(), q))
    whole = [batch for batch in want if len(batch[0]) == GLOBAL]
    for world in WORLDS:
        for workers in WORKERS:
            got = joined([data], world, workers, epoch=1, drop_last=drop_last)
            assert got[: len(whole)] == whole
            assert [done for _, done in got] == [done for _, done in want]
            assert {x for part, _ in got for x in part} == {x for part, _ in want for x in part}
            if len(want) > len(whole) and len(want[-1][0]) >= world:
                assert got == want


def test_a_tail_with_fewer_samples_than_ranks_gives_each_rank_one():
    data = Set([(0, 0, 51)], 1, (4, 8, 20, 1, 1, 0))
    slots = data.epoch(0)[by_lane(4, 48, 51)].tolist()
    for rank in range(8):
        *_, last = batches(feed([data], batch=3, rank=rank, world=8))
        assert last == ([slots[rank % 3]], 51, 5)


@quick
@given(sets(25, 3), st.integers(1, 30), st.integers(0, 60))
def test_without_end_batches_run_on_into_the_next_epochs(data, batch, start):
    epochs = [data.epoch(5 + e) for e in range((start + 9 * batch) // data.count + 2)]
    got = batches(feed([data], epoch=5, start=start, stop=-1, batch=batch), 8)
    for n, (rows, done, repeated) in enumerate(got):
        p, q = start + n * batch, start + (n + 1) * batch
        slots = sorted(
            (divmod(x, data.count) for x in range(p, q)),
            key=lambda at: (at[0], at[1] % data.lanes, at[1]),
        )
        assert rows == [epochs[e][i] for e, i in slots]
        assert (done, repeated) == (q, 0)


def pattern_of(shares):
    pairs = [(Fraction(2 * n + 1, c), d) for d, c in enumerate(shares) for n in range(c)]
    return [d for _, d in sorted(pairs)]


@st.composite
def mixtures(draw):
    out, row = [], 0
    for _ in range(draw(st.integers(2, 4))):
        data = draw(sets(20, 3, most_lanes=7))
        out.append(Set(data.runs, data.seed, data.numbers, row))
        row += data.count
    return out


@quick
@given(mixtures(), st.integers(1, 20), st.integers(0, 50))
def test_mixtures_by_the_pattern(mix, batch, start):
    lanes = sum(s.lanes for s in mix)
    pattern = pattern_of([s.lanes for s in mix])
    end = start + 8 * batch
    samples = [[] for _ in mix]  # rows of each set, epoch after epoch
    for d, data in enumerate(mix):
        while len(samples[d]) < end:
            samples[d] += data.epoch(len(samples[d]) // data.count).tolist()
    sequence, taken = [], [0] * len(mix)
    for p in range(end):
        d = pattern[p % lanes]
        sequence.append(samples[d][taken[d]])
        taken[d] += 1
    got = batches(feed(mix, start=start, stop=end, batch=batch))
    for n, (rows, done, _) in enumerate(got):
        p = start + n * batch
        assert rows == [sequence[x] for x in by_lane(lanes, p, p + batch)]
        assert done == p + batch
    assert len(got) == 8


@quick
@given(mixtures())
def test_any_prefix_of_a_mixture_is_near_its_shares(mix):
    lanes = sum(s.lanes for s in mix)
    firsts = [s.first_row for s in mix] + [10**9]
    seen = np.zeros(len(mix))
    rows = [b[0][0] for b in batches(feed(mix, stop=4 * lanes + 3, batch=1))]
    for n, row in enumerate(rows, 1):
        seen[np.searchsorted(firsts, row, "right") - 1] += 1
        share = n * np.array([s.lanes for s in mix]) / lanes
        assert abs(seen - share).max() <= 1.5
    for d, data in enumerate(mix):  # each own epoch holds every row once
        mine = [row for row in rows if firsts[d] <= row < firsts[d] + data.count]
        for e in range(0, len(mine) - data.count + 1, data.count):
            assert len(set(mine[e : e + data.count])) == data.count


def test_the_pattern_of_5_3_1():
    mix = [Set([(0, 0, 90)], 1, (c, 0, 9, 1, 1, 0), 100 * d) for d, c in enumerate((5, 3, 1))]
    (rows, _, _), *_ = batches(feed(mix, stop=-1, batch=9), 1)
    assert [row // 100 for row in rows] == [0, 1, 0, 0, 1, 2, 0, 1, 0]


@pytest.mark.parametrize("several", [False, True])
def test_resume_of_a_resume_with_other_worlds_and_workers(several):
    one = Set([(0, 0, 31), (40, 3, 22)], 9, (6, 8, 30, 2, 4, 6))
    other = Set([(0, 0, 17)], 4, (2, 5, 9, 1, 1, 0), 53)
    mix = [one, other] if several else [one]
    stop = 90
    lanes = sum(s.lanes for s in mix)
    sequence = [b[0][0] for b in batches(feed(mix, stop=stop, batch=1))]
    assert len(sequence) == stop
    legs = [(1, 2), (3, 4), (8, 1), (2, 8), (4, 2), (6, 4)]
    for first in range(0, stop, 7):  # positions done by the first run
        p = first
        for leg, (world, workers) in enumerate(legs):
            if p >= stop:
                break
            rows, done = joined(mix, world, workers, start=p, stop=stop)[0]
            if done - p >= world:
                if several or done <= one.count or p >= one.count:
                    base = 0 if several or p < one.count else one.count
                    slots = [base + x for x in by_lane(lanes, p - base, done - base)]
                else:  # epoch by epoch
                    second = by_lane(lanes, 0, done - one.count)
                    slots = [*by_lane(lanes, p, one.count), *(one.count + x for x in second)]
                assert rows == [sequence[x] for x in slots], (first, leg)
            p = done


@quick
@given(st.lists(st.integers(0, 99), max_size=30), st.integers(1, 12), st.booleans())
def test_given_rows(rows, batch, drop_last):
    source = _core.Feed.of_rows(np.array(rows, np.int64), batch, drop_last)
    assert source.batch_size == batch
    want = [rows[i : i + batch] for i in range(0, len(rows), batch)]
    if drop_last:
        want = [part for part in want if len(part) == batch]
    got = batches(source)
    assert [b[0] for b in got] == want
    assert [b[1] for b in got] == list(np.cumsum([len(part) for part in want]))
    assert source.next() is None


def test_rows_are_arrays_of_their_own():
    source = feed([Set([(0, 0, 20)], 0, (0, 0, 1, 1, 1, 0))], batch=8)
    first, second = source.next()[0], source.next()[0]
    del source
    gc.collect()
    assert first.dtype == np.int64 and first.tolist() == list(range(8))
    first[:] = 0
    assert second.tolist() == list(range(8, 16))


GOOD = (np.array([(0, 0, 9)], np.int64), 0, 2, 4, 9, 1, 1, 0, 0)


def changed(at, value):
    return (*GOOD[:at], value, *GOOD[at + 1 :])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([], 0, 0, 9, 4, 0, 1, 0, 1, False), "needs a data set"),
        (([GOOD], -1, 0, 9, 4, 0, 1, 0, 1, False), "epoch"),
        (([GOOD], 2**32, 0, 9, 4, 0, 1, 0, 1, False), "epoch"),
        (([GOOD], 0, -1, 9, 4, 0, 1, 0, 1, False), "start"),
        (([GOOD], 0, 0, 9, 0, 0, 1, 0, 1, False), "batch"),
        (([GOOD], 0, 0, 9, 4, 1, 1, 0, 1, False), "rank 1 of 1"),
        (([GOOD], 0, 0, 9, 4, 0, 1, 2, 2, False), "worker 2 of 2"),
        (([GOOD], 2**32 - 1, 0, 10, 4, 0, 1, 0, 1, False), r"epoch 2\^32"),
        (([changed(0, np.array([(0, 0, 0)]))], 0, 0, 9, 4, 0, 1, 0, 1, False), "episode 0"),
        (([changed(0, np.arange(4))], 0, 0, 9, 4, 0, 1, 0, 1, False), "three numbers"),
        (([changed(0, np.zeros(3, np.int32))], 0, 0, 9, 4, 0, 1, 0, 1, False), "runs"),
        (([changed(2, 65537)], 0, 0, 9, 4, 0, 1, 0, 1, False), "lanes"),
        (([changed(8, -1)], 0, 0, 9, 4, 0, 1, 0, 1, False), "first_row"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, error):
    before = _core.live_objects()
    with pytest.raises(ValueError, match=error):
        _core.Feed(*arguments)
    assert _core.live_objects() == before


def test_wrong_types_are_refused():
    before = _core.live_objects()
    with pytest.raises(TypeError):
        _core.Feed((GOOD,), 0, 0, 9, 4, 0, 1, 0, 1, False)
    with pytest.raises(TypeError):
        _core.Feed([GOOD, GOOD[:5]], 0, 0, 9, 4, 0, 1, 0, 1, False)
    with pytest.raises(TypeError):
        _core.Feed([GOOD], 0, 0, 9, 4, 0, 1, 0, 1, False, extra=1)
    with pytest.raises(ValueError, match="row -1"):
        _core.Feed.of_rows(np.array([0, -1]), 1, False)
    with pytest.raises(ValueError, match="batch"):
        _core.Feed.of_rows(np.array([0]), 0, False)
    assert _core.live_objects() == before


def test_threads_do_not_meet_in_one_feed():
    source = feed([Set([(0, 0, 20000)], 0, (1, 64, 20000, 1, 1, 0))], batch=100)
    found, refused = [], []

    def take():
        while True:
            try:
                batch = source.next()
            except ValueError as error:
                refused.append(str(error))
                continue
            if batch is None:
                return
            found.append(batch[0])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(np.concatenate(found).tolist()) == list(range(20000))
    assert set(refused) <= {"the feed is in use by another thread"}


def test_memory_comes_back():
    before = _core.live_objects()
    source = feed([Set([(0, 0, 999)], 0, (64, 8, 500, 2, 4, 6))], stop=-1)
    batches(source, 100)
    assert _core.live_objects() > before
    del source
    gc.collect()
    assert _core.live_objects() == before
