"""The exchange of old and new: from every state in between, by every way, to one end."""

import contextlib
import json
import os

import pytest
from convert_sets import tree
from reelpool.convert import swap
from reelpool.errors import StateError, StorageError


def write_set(root, version):
    """Just enough of a dataset to tell which one it is."""
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps({"codebase_version": version}))
    return root


@pytest.fixture
def places(tmp_path):
    """(target, built, old) before a swap."""
    target = write_set(tmp_path / "arm", "v2.1")
    return target, write_set(tmp_path / "arm_v30", "v3.0"), tmp_path / "arm_old"


@pytest.fixture(params=["exchange", "renames"])
def way(request, monkeypatch):
    """With and without an atomic exchange."""
    if request.param == "renames":
        monkeypatch.setattr(swap, "exchange", lambda one, two: False)
    return request.param


def version(path):
    return json.loads((path / "meta/info.json").read_text())["codebase_version"]


def is_swapped(places):
    target, _, old = places
    assert (version(target), version(old)) == ("v3.0", "v2.1")
    assert sorted(p.name for p in target.parent.iterdir()) == ["arm", "arm_old"]


def test_swap(places, way):
    swap.swap(*places)
    is_swapped(places)
    assert not swap.recover(places[0])


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(4))
def test_a_swap_goes_on_from_every_step(places, way, monkeypatch, step, when):
    """The process ends before or after any of its changes; a dataset is there or a journal is."""
    target = places[0]
    count = [0]

    def ending(real):
        def call(*arguments, **keywords):
            count[0] += 1
            if count[0] == step + 1 and when == "before":
                raise Killed
            done = real(*arguments, **keywords)
            if count[0] == step + 1:
                raise Killed
            return done

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "replace", "unlink"):
            patch.setattr(os, name, ending(getattr(os, name)))
        patch.setattr(swap, "exchange", ending(swap.exchange))
        with contextlib.suppress(Killed):
            swap.swap(*places)
    begun = swap.journal_of(target).exists()
    assert begun or version(target) in ("v2.1", "v3.0")
    if way == "exchange":
        assert target.exists()
    assert swap.recover(target) == begun
    for left in target.parent.glob("*.part"):
        left.unlink()
    if begun or version(target) == "v3.0":
        is_swapped(places)
    else:
        swap.swap(*places)
        is_swapped(places)


def test_two_processes_may_finish_one_swap(places, way, monkeypatch):
    """Another one makes each step just before."""
    real = os.rename

    def rename(one, two):
        real(one, two)
        return real(one, two)  # now it is gone

    monkeypatch.setattr(os, "rename", rename)
    swap.swap(*places)
    is_swapped(places)


def test_an_older_copy_is_never_overwritten(places, way):
    write_set(places[2], "v2.0")
    before = [tree(p) for p in places]
    with pytest.raises(StateError, match=r"arm_old exists(.|\n)*Move it away"):
        swap.swap(*places)
    assert [tree(p) for p in places] == before


def test_a_journal_that_fits_nothing_is_named(places):
    target, built, _ = places
    swap.journal_of(target).write_text('{"target": "arm", "built": "a", "old": "b"}')
    with pytest.raises(StateError, match=r"swap\.json"):
        swap.recover(target)
    assert version(target) == "v2.1" and built.exists()


def test_exchange_is_atomic_here(tmp_path):
    """Two folders, never one without a name."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    number = one.stat().st_ino
    if not swap.exchange(one, two):
        pytest.skip("no renameat2 on this file system")
    assert two.stat().st_ino == number
    with pytest.raises(FileNotFoundError):
        swap.exchange(one, tmp_path / "none")


def test_a_swap_without_permission(places, way, monkeypatch):
    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StorageError, match="permissions"):
        swap.swap(*places)
    monkeypatch.undo()
    assert swap.recover(places[0])
    is_swapped(places)
