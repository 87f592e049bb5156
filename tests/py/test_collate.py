"""reelpool.collate and the default_collate hook: whole batches by reference, the rest stacked."""

import copy
import pickle
import subprocess
import sys

import pytest
from reelpool.collation import Item, collate, register_default_collate
from reelpool.errors import MissingExtraError

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from torch.utils.data import default_collate  # noqa: E402


class Batch:
    """What __getitems__ keeps behind its items, with torch memory."""

    def __init__(self, size):
        self.size = size
        self.content = {
            "image": torch.arange(size * 12, dtype=torch.uint8).reshape(size, 3, 2, 2),
            "state": torch.arange(size * 2, dtype=torch.float32).reshape(size, 2),
            "done": torch.zeros(size, dtype=torch.bool),
            "language_events": [[{"style": "subtask", "content": str(i)}] for i in range(size)],
            "task": [f"task {i}" for i in range(size)],
        }

    def __len__(self):
        return self.size

    def tensors(self):
        return dict(self.content)

    def hand_over(self, values):
        return values

    def items(self):
        items = []
        for pos in range(self.size):
            item = Item({key: value[pos] for key, value in self.content.items()})
            item._batch, item._pos = self, pos
            items.append(item)
        return items


def same(a, b):
    return (
        torch.equal(a, b) and a.dtype == b.dtype and a.shape == b.shape
        if isinstance(a, torch.Tensor)
        else a == b
    )


@pytest.fixture
def hook():
    register_default_collate()


@pytest.mark.parametrize("function", [collate, default_collate])
def test_whole_batch_is_returned_without_copy(hook, function):
    batch = Batch(4)
    result = function(batch.items())
    assert type(result) is dict
    assert list(result) == list(batch.content)
    for key in ("image", "state", "done"):
        assert result[key] is batch.content[key]
    assert result["task"] == batch.content["task"]
    assert result["language_events"] == batch.content["language_events"]


@pytest.mark.parametrize("function", [collate, default_collate])
@pytest.mark.parametrize("pick", [[0, 1, 2], [1, 0, 2, 3], [3, 3, 3, 3], [2], [0, 1, 2, 3, 0]])
def test_anything_but_the_whole_batch_in_order_is_stacked(hook, function, pick):
    batch = Batch(4)
    items = batch.items()
    result = function([items[i] for i in pick])
    assert list(result) == list(batch.content)
    for key in ("image", "state", "done"):
        assert torch.equal(result[key], batch.content[key][pick])
        assert result[key].data_ptr() != batch.content[key].data_ptr()
    assert result["task"] == [batch.content["task"][i] for i in pick]


def test_items_of_two_batches_are_stacked(hook):
    first, second = Batch(2), Batch(2)
    second.content["state"] += 100
    items = [first.items()[0], second.items()[1]]
    assert default_collate(items)["state"].tolist() == [[0.0, 1.0], [102.0, 103.0]]


CHANGES = {
    "assign": lambda item: item.__setitem__("state", torch.tensor([7.0, 7.0])),
    "add": lambda item: item.__setitem__("extra", torch.tensor(1)),
    "update": lambda item: item.update(state=torch.tensor([7.0, 7.0])),
    "ior": lambda item: item.__ior__({"state": torch.tensor([7.0, 7.0])}),
    "setdefault": lambda item: item.setdefault("extra", torch.tensor(1)),
    "pop": lambda item: item.pop("done"),
    "del": lambda item: item.__delitem__("done"),
    "popitem": lambda item: item.popitem(),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("function", [collate, default_collate])
def test_a_changed_item_is_seen(hook, name, function):
    items = Batch(3).items()
    for item in items:
        CHANGES[name](item)
    result = function(items)
    plain = [dict(item) for item in items]
    assert list(result) == list(plain[0])
    for key in result:
        for row, item in zip(result[key], plain):
            assert same(row, item[key])


def test_one_changed_item_is_enough(hook):
    items = Batch(3).items()
    items[2]["state"] = torch.tensor([7.0, 7.0])
    assert default_collate(items)["state"][2].tolist() == [7.0, 7.0]


def test_clear_forgets_the_batch(hook):
    items = Batch(1).items()
    items[0].clear()
    assert default_collate(items) == {}


def test_change_in_place_is_seen(hook):
    batch = Batch(2)
    items = batch.items()
    items[1]["state"].zero_()
    items[0]["language_events"].append({"style": "vqa"})
    items[1]["language_events"].clear()
    result = default_collate(items)
    assert result["state"][1].tolist() == [0.0, 0.0]
    assert [len(rows) for rows in result["language_events"]] == [2, 0]


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_carry_content_only(hook, clone):
    items = [clone(item) for item in Batch(2).items()]
    assert all(type(item) is Item and getattr(item, "_batch", None) is None for item in items)
    assert default_collate(items)["state"].tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_pickle_does_not_drag_the_batch_along():
    item = Batch(1000).items()[0]
    assert len(pickle.dumps(item)) < 3000


def test_items_inside_a_users_wrapper(hook):
    batch = Batch(2)
    result = default_collate([{"obs": item, "weight": 0.5} for item in batch.items()])
    assert result["obs"]["image"] is batch.content["image"]
    assert result["weight"].tolist() == [0.5, 0.5]


def test_the_package_offers_the_function_whatever_is_imported_first():
    script = "import reelpool.collation, reelpool.dataset, reelpool; reelpool.collate([None])"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_none_items_are_dropped():
    items = Batch(2).items()
    assert collate([None, None]) is None
    assert collate([None, items[1]])["state"].tolist() == [[2.0, 3.0]]
    assert collate([items[0], None, items[1]])["state"].shape == (2, 2)


@pytest.mark.parametrize(
    "key",
    [
        "messages",
        "message_streams",
        "target_message_indices",
        "language_persistent",
        "language_events",
    ],
)
def test_list_keys_stay_lists_and_are_all_or_none(key):
    samples = [{"x": torch.tensor(i), key: [i] * i} for i in range(3)]
    result = collate(samples)
    assert result[key] == [[], [1], [2, 2]]
    assert result["x"].tolist() == [0, 1, 2]
    del samples[1][key]
    with pytest.raises(ValueError, match=f"2 of 3 samples.*{key}"):
        collate(samples)


def test_plain_samples_equal_default_collate():
    samples = [
        {"a": torch.ones(2) * i, "b": i, "c": float(i), "d": str(i), "e": {"f": torch.tensor(i)}}
        for i in range(3)
    ]
    ours, theirs = collate(samples), default_collate(samples)
    assert list(ours) == list(theirs)
    for key in "abcd":
        assert same(ours[key], theirs[key])
    assert same(ours["e"]["f"], theirs["e"]["f"])


def test_without_torch(monkeypatch):
    for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match="torch"):
        collate([{"a": 1}])
