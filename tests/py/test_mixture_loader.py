"""Batches of several datasets: Loader over lists of map-style and of streaming datasets."""

import json

import numpy as np
import pytest
import reelpool
from demo_sets import (
    FRAMES,
    FRONT,
    ROOT,
    STARTS,
    WRIST,
    array,
    check_pixels,
    copy_demo,
    open_demo,
    truth,
)
from reelpool.errors import NotFoundError
from written_datasets import edit_info

SMALL = [1, 3]  # episodes of the second set: 84 frames


def loader(datasets, batch_size=8, **options):
    options.setdefault("num_threads", 1)
    options.setdefault("seed", 5)
    options.setdefault("shuffle", True)
    return reelpool.Loader(datasets, batch_size, **options)


def taken(batches):
    """[(dataset_index, index)] of all samples."""
    return [
        (int(d), int(i))
        for batch in batches
        for d, i in zip(batch["dataset_index"], batch["index"])
    ]


@pytest.fixture(scope="module")
def pair():
    return [open_demo(), open_demo(episodes=SMALL)]


def test_batches_hold_each_sets_share(pair):
    with loader(pair, weights=[3, 1], samples_per_epoch=512) as batches:
        assert len(batches) == 64
        found = []
        for batch in batches:
            check_pixels(batch)
            assert list(batch)[-1] == "dataset_index" and len(batch["task"]) == 8
            found += taken([batch])
        assert len(found) == 512
        sets = np.array([d for d, _ in found])
        for stop in range(8, 513, 8):
            assert abs(int(sets[:stop].sum()) - stop / 4) <= 8  # a batch is sorted by lanes
        assert int(sets.sum()) == 128
        own = [[i for d, i in found if d == number] for number in (0, 1)]
        assert len(set(own[0][:180])) == 180  # each batch has 6 of one and 2 of the other
        assert sorted(own[1][:84]) == [*range(48, 92), *range(144, 184)]
        assert batches.stats()["weights"] == [0.75, 0.25]


def test_epochs_go_on_where_the_sets_are():
    """What iter() delivers ends after samples_per_epoch; no set begins anew with it."""
    pair = [open_demo(cameras=[]), open_demo(cameras=[], episodes=SMALL)]
    with loader(pair, weights=[1, 1], samples_per_epoch=64) as batches:
        found = [taken(batches) for _ in range(12)]
    joined = [sample for epoch in found for sample in epoch]
    assert [len(epoch) for epoch in found] == [64] * 12
    own = [i for d, i in joined if d == 0]
    assert len(own) == 384
    assert sorted(own[:FRAMES]) == sorted(own[FRAMES : 2 * FRAMES]) == list(range(FRAMES))


def test_state_resumes():
    pair = [open_demo(cameras=[]), open_demo(cameras=[], episodes=SMALL)]
    options = {"weights": [3, 1], "samples_per_epoch": 160, "window": 60, "unit": 8}
    with loader(pair, **options) as batches:
        whole = taken(batches) + taken(batches)
    for steps in range(20):
        with loader(pair, **options) as first:
            iterator = iter(first)
            head = taken(next(iterator) for _ in range(steps))
            state = json.loads(json.dumps(first.state_dict()))
            assert state["samples_done"] == 8 * steps
            assert first.state_for_step(steps)["samples_done"] == 8 * steps
        with loader(pair, **options) as second:
            second.load_state_dict(state)
            assert head + taken(second) + taken(second) == whole
    with loader(pair, 16, **options) as other:  # another batch size: the same samples
        other.load_state_dict(state)
        assert sorted(taken(other)) == sorted(whole[152:160])


def test_ranks_share_a_mixture():
    pair = [open_demo(cameras=[]), open_demo(cameras=[], episodes=SMALL)]
    whole = [taken([b]) for b in loader(pair, 8)]
    parts = [[taken([b]) for b in loader(pair, 4, rank=r, world_size=2)] for r in (0, 1)]
    assert [a + b for a, b in zip(*parts)] == whole


def test_unshuffled_loader_concatenates():
    pair = [open_demo(cameras=[]), open_demo(cameras=[], episodes=SMALL)]
    with loader(pair, 50, shuffle=False) as batches:
        found = taken(batches)
    assert found == [(0, i) for i in range(FRAMES)] + [
        (1, i) for i in [*range(48, 92), *range(144, 184)]
    ]


def test_loader_arguments(pair):
    with pytest.raises(ValueError, match="shuffle=True"):
        loader(pair, shuffle=False, weights=[1, 2])
    with pytest.raises(ValueError, match="2 datasets cannot share 1 lanes"):
        loader(pair, lanes=1)
    with pytest.raises(ValueError, match="list of datasets"):
        loader(pair[0], weights=[1])
    with pytest.raises(ValueError, match="sampler="):
        loader(pair, shuffle=False, sampler=[1, 2])


def test_windows_of_other_rates_in_batches(tmp_path):
    slow = copy_demo(tmp_path / "slow")
    edit_info(slow, fps=5)  # its rows stay 0.1 s apart: tolerance_s permits that
    deltas = {FRONT: [-0.2, 0.0]}
    sets = [
        open_demo(delta_timestamps=deltas),
        open_demo(slow, delta_timestamps=deltas, tolerance_s=0.1),
    ]
    with loader(sets, 16) as batches:
        for batch in batches:
            for d, i, picture, pad in zip(
                *(array(batch[k]) for k in ("dataset_index", "index", FRONT, f"{FRONT}_is_pad"))
            ):
                start = max(s for s in STARTS if s <= i)
                want = i - (2, 1)[d]
                assert pad.tolist() == [bool(want < start), False]
                assert np.array_equal(picture[0], truth()[FRONT][max(want, start)])
                assert np.array_equal(picture[1], truth()[FRONT][i])


def test_each_sets_own_transforms():
    bright = open_demo(image_transforms=lambda x: x * 0 + 255)
    dark = open_demo(image_transforms=lambda x: x * 0)
    with loader([bright, dark], 8) as batches:
        batch = next(iter(batches))
    for d, picture in zip(batch["dataset_index"].tolist(), array(batch[WRIST])):
        assert (picture == (0 if d else 255)).all()


def test_an_error_names_its_set(tmp_path):
    broken = copy_demo(tmp_path / "broken")
    (broken / f"videos/{WRIST}/chunk-000/file-000.mp4").unlink()
    with (
        loader([open_demo(), open_demo(broken)], 8) as batches,
        pytest.raises(NotFoundError) as raised,
    ):
        list(batches)
    assert str(broken) in str(raised.value)


def test_streaming_sets():
    pytest.importorskip("torch")

    def stream(**options):
        return reelpool.StreamingLeRobotDataset(
            "reelpool/demo",
            root=ROOT,
            return_uint8=True,
            num_threads=1,
            seed=5,
            window=40,
            unit=8,
            **options,
        )

    sets = [stream(), stream(episodes=SMALL)]
    with reelpool.Loader(sets, 8, weights=[3, 1], num_threads=1) as batches:
        found = []
        for batch in batches:
            check_pixels(batch)
            found += taken([batch])
    assert len(found) == FRAMES + 84
    for d, ids in ((0, range(FRAMES)), (1, [*range(48, 92), *range(144, 184)])):
        own = [i for found_d, i in found if found_d == d]
        assert len(set(own)) == min(len(own), len(ids)) and set(own) <= set(ids)
    with pytest.raises(TypeError, match="not both"):
        reelpool.Loader([open_demo(), stream()], 8)


def test_real_sets_of_two_formats(data_root):
    """The same recordings as v3.0 and as v2.1: each batch item is its own set's item."""
    sets = [
        reelpool.LeRobotDataset(f"g1/{name}", root=data_root / name, num_threads=1)
        for name in ("g1_small_v30", "g1_small_v21")
    ]
    with loader(sets, 6, weights=[1, 1], samples_per_epoch=12) as batches:
        for batch in batches:
            for at, d in enumerate(batch["dataset_index"].tolist()):
                item = sets[d][int(batch["index"][at])]
                assert list(item) == [key for key in batch if key != "dataset_index"]
                for key, value in item.items():
                    if isinstance(value, str):
                        assert batch[key][at] == value
                    else:
                        assert np.array_equal(array(batch[key][at]), array(value)), key
