"""Sampler and partitions; the permutations were recorded from LeRobot 0.6.1 (torch 2.11)."""

import random
import sys

import numpy as np
import pytest
import reelpool
from demo_sets import ROOT
from reelpool.errors import MissingExtraError, StateError
from reelpool.sampler import (
    EpisodeAwareSampler,
    compute_sampler_state,
    group_episodes_by_files,
    partition_episodes,
)

FROM, TO = [0, 5, 12, 13], [5, 12, 13, 20]
# (arguments, epoch 0, epoch 1)
RECORDED = [
    (
        {"seed": 0},
        [16, 6, 3, 9, 12, 17, 0, 8, 11, 2, 15, 13, 4, 19, 10, 5, 14, 7, 18, 1],
        [4, 15, 17, 8, 1, 16, 6, 0, 11, 19, 5, 2, 18, 13, 3, 14, 9, 12, 7, 10],
    ),
    (
        {"seed": 7, "drop_n_last_frames": 2},
        [6, 9, 5, 1, 14, 16, 17, 2, 0, 8, 15, 7, 13],
        [1, 17, 9, 5, 7, 13, 8, 0, 6, 2, 15, 16, 14],
    ),
    (
        {
            "seed": 42,
            "drop_n_first_frames": 1,
            "drop_n_last_frames": 3,
            "episode_indices_to_use": [2, 0, 3],
        },
        [15, 14, 1, 16],
        [14, 16, 15, 1],
    ),
]


@pytest.mark.parametrize("arguments, first, second", RECORDED)
def test_shuffled_epochs_are_lerobots(arguments, first, second):
    pytest.importorskip("torch")
    sampler = EpisodeAwareSampler(FROM, TO, shuffle=True, **arguments)
    assert [list(sampler), list(sampler)] == [first, second]


def test_resume_continues_the_permutation():
    pytest.importorskip("torch")
    arguments, _, second = RECORDED[0]
    sampler = EpisodeAwareSampler(FROM, TO, shuffle=True, **arguments)
    sampler.load_state_dict({"epoch": 1, "start_index": 13})
    assert len(sampler) == 20
    assert list(sampler) == second[13:]
    assert sampler.state_dict() == {"epoch": 2, "start_index": 0}


def test_unshuffled_order_drops_frames_of_each_episode():
    sampler = EpisodeAwareSampler(FROM, TO, drop_n_first_frames=1, drop_n_last_frames=2)
    want = [1, 2, 6, 7, 8, 9, 14, 15, 16, 17]
    assert list(sampler) == want == sampler.indices and len(sampler) == 10
    assert all(type(i) is int for i in sampler)


def test_episodes_without_a_frame_left_are_named_once(caplog):
    EpisodeAwareSampler(FROM, TO, drop_n_last_frames=5)
    (record,) = caplog.records
    assert "2 episodes" in record.message and record.message.endswith(": 0, 2")


def test_indices_are_mapped():
    mapping = {i: i - 12 for i in range(12, 20)}
    sampler = EpisodeAwareSampler(
        FROM, TO, episode_indices_to_use=[2, 3], absolute_to_relative_idx=mapping
    )
    assert list(sampler) == list(range(8))


def test_long_epochs_cross_the_block_border():
    sampler = EpisodeAwareSampler([0, 9000], [9000, 20000])
    assert list(sampler) == list(range(20000))


def test_set_epoch_is_ignored_up_to_the_counter_after_a_resume():
    sampler = EpisodeAwareSampler(FROM, TO)
    sampler.set_epoch(4)
    assert sampler.state_dict() == {"epoch": 4, "start_index": 0}
    sampler.set_epoch(0)
    assert sampler.state_dict()["epoch"] == 0
    sampler.load_state_dict({"epoch": 5, "start_index": 18})
    for earlier in (0, 5):
        sampler.set_epoch(earlier)
        assert sampler.state_dict() == {"epoch": 5, "start_index": 18}
    assert list(sampler) == [18, 19]
    sampler.set_epoch(1)
    assert sampler.state_dict() == {"epoch": 6, "start_index": 0}
    sampler.set_epoch(9)
    assert sampler.state_dict() == {"epoch": 9, "start_index": 0}


def test_iterator_advances_the_counter_when_made():
    sampler = EpisodeAwareSampler(FROM, TO)
    iter(sampler)
    assert sampler.state_dict()["epoch"] == 1


@pytest.mark.parametrize(
    "state, field",
    [
        ({"start_index": 0}, "epoch"),
        ({"epoch": 0}, "start_index"),
        ({"epoch": -1, "start_index": 0}, "epoch"),
        ({"epoch": 0, "start_index": "3"}, "start_index"),
        ({"epoch": 0, "start_index": 21}, "start_index"),
        ({"shards": [], "exhausted": [], "rng": 0}, "epoch"),
    ],
)
def test_wrong_state_names_the_field(state, field):
    sampler = EpisodeAwareSampler(FROM, TO)
    with pytest.raises(StateError, match=field):
        sampler.load_state_dict(state)
    assert sampler.state_dict() == {"epoch": 0, "start_index": 0}


@pytest.mark.parametrize(
    "arguments",
    [
        {"drop_n_first_frames": -1},
        {"drop_n_last_frames": -1},
        {"drop_n_last_frames": 7},
        {"episode_indices_to_use": []},
    ],
)
def test_wrong_arguments(arguments):
    with pytest.raises(ValueError):
        EpisodeAwareSampler(FROM, TO, **arguments)
    with pytest.raises(ValueError):
        EpisodeAwareSampler(FROM, TO[:-1])


def test_shuffle_without_torch_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "reelpool.torch_bridge", raising=False)
    with pytest.raises(MissingExtraError, match="pip install torch"):
        next(iter(EpisodeAwareSampler(FROM, TO, shuffle=True)))


def test_state_of_a_step_counts_padded_batches():
    steps = [(0, 100, 8, 1), (13, 100, 8, 1), (14, 100, 8, 1), (5, 100, 8, 4), (7, 9, 2, 2)]
    states = [tuple(compute_sampler_state(*step).values()) for step in steps]
    assert states == [(0, 0), (1, 0), (1, 8), (1, 32), (2, 4)]
    for wrong in ((-1, 9, 2, 2), (0, 0, 2, 2), (0, 9, 0, 2), (0, 9, 2, 0)):
        with pytest.raises(ValueError):
            compute_sampler_state(*wrong)


def test_groups_join_through_shared_files():
    files = [["a"], ["b", "c"], ["d"], ["c", "a"], [], ["d", "e"]]
    assert group_episodes_by_files(files) == [[0, 1, 3], [2, 5], [4]]
    assert group_episodes_by_files([]) == []
    assert group_episodes_by_files([[("top", 0, 1)], [("top", 0, 2)]]) == [[0], [1]]


def test_groups_are_the_connected_components():
    rng = random.Random(3)
    for _ in range(50):
        files = [[rng.randrange(12) for _ in range(rng.randrange(3))] for _ in range(15)]
        groups = group_episodes_by_files(files)
        assert sorted(i for g in groups for i in g) == list(range(15))
        assert [g[0] for g in groups] == sorted(g[0] for g in groups)
        assert all(g == sorted(g) for g in groups)
        sets = [set().union(*(files[i] for i in g)) for g in groups]
        assert all(not a & b for i, a in enumerate(sets) for b in sets[:i])
        for group in groups:  # each is connected
            seen, ahead = set(), [group[0]]
            while ahead:
                i = ahead.pop()
                seen.add(i)
                ahead += [j for j in group if j not in seen and set(files[i]) & set(files[j])]
            assert seen == set(group)


def test_partition_puts_the_longest_into_the_lightest_bin():
    assert partition_episodes([5, 9, 5, 1, 5], 2) == [[1, 4], [0, 2, 3]]
    assert partition_episodes([2, 2, 2, 2], 4) == [[0], [1], [2], [3]]
    lengths = np.random.default_rng(0).integers(1, 100, 200)
    bins = partition_episodes(lengths, 7)
    assert sorted(i for b in bins for i in b) == list(range(200))
    loads = [int(sum(lengths[i] for i in b)) for b in bins]
    assert max(loads) - min(loads) <= 100


@pytest.mark.parametrize("lengths, count", [([1, 2], 0), ([1, 2], 3), ([1, 0], 1), ([], 1)])
def test_partition_refuses(lengths, count):
    with pytest.raises(ValueError):
        partition_episodes(lengths, count)


def test_partition_breaks_ties_by_the_lower_number():
    assert partition_episodes([3, 3, 3, 3, 3], 2) == [[0, 2, 4], [1, 3]]
    for kind in (np.int64, np.uint64, np.uint8):  # a negated unsigned number is a large one
        assert partition_episodes(np.array([5, 9, 5, 1, 5], kind), 2) == [[1, 4], [0, 2, 3]]
    lengths = (3, 1, 2)
    assert partition_episodes(lengths, 1) == [[0, 1, 2]] and lengths == (3, 1, 2)
    with pytest.raises(TypeError):
        partition_episodes([1.5, 2.0], 1)


def test_partition_is_the_greedy_one():
    rng = random.Random(8)
    for _ in range(100):
        lengths = [rng.randrange(1, 9) for _ in range(rng.randrange(1, 20))]
        count = rng.randrange(1, len(lengths) + 1)
        bins = [[] for _ in range(count)]
        for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
            loads = [sum(lengths[j] for j in b) for b in bins]
            bins[loads.index(min(loads))].append(i)
        assert partition_episodes(lengths, count) == [sorted(b) for b in bins]
        assert all(bins)


def node_episodes(meta, num_partitions, index):
    """A node's episodes, as LeRobot's benchmark of loaders on a cluster computes them."""
    episodes = list(range(meta.total_episodes))
    start, end = meta.episodes["dataset_from_index"], meta.episodes["dataset_to_index"]
    lengths = [int(end[e] - start[e]) for e in episodes]
    columns = {
        key: (meta.episodes[f"videos/{key}/chunk_index"], meta.episodes[f"videos/{key}/file_index"])
        for key in meta.video_keys
    }
    files = [[(key, chunk[e], file[e]) for key, (chunk, file) in columns.items()] for e in episodes]
    groups = group_episodes_by_files(files)
    if len(groups) < num_partitions:
        groups = [[i] for i in range(len(episodes))]
    bins = partition_episodes([sum(lengths[i] for i in g) for g in groups], num_partitions)
    return sorted(episodes[i] for g in bins[index] for i in groups[g])


def test_nodes_share_a_dataset_out_by_its_files():
    meta = reelpool.LeRobotDatasetMetadata("reelpool/demo", root=ROOT)
    assert node_episodes(meta, 1, 0) == [0, 1, 2, 3]
    # Front's files hold (0, 1), (2, 3), wrist's (0, 1, 2), (3): all hang together, so that two
    # nodes share the episodes (48, 44, 52 and 40 frames) instead.
    assert [node_episodes(meta, 2, i) for i in (0, 1)] == [[2, 3], [0, 1]]
    assert [node_episodes(meta, 4, i) for i in range(4)] == [[2], [0], [1], [3]]
    with pytest.raises(ValueError):
        node_episodes(meta, 5, 0)
