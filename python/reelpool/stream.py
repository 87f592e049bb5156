"""One pass over a `StreamingLeRobotDataset`: its items in order, and where its taker stands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .collation import Item
from .dataset_base import sample_seed
from .engine import TIMEOUT_S
from .errors import ReelpoolError
from .passes import Pass, current_worker

if TYPE_CHECKING:
    from .streaming import StreamingLeRobotDataset


class Position(NamedTuple):
    """Samples of `epoch` done, as a state counts them, and items given of the batch after them."""

    epoch: int
    done: int
    items: int


class Stream:
    """Iterator over the items of one pass of one process.

    Items are views of whole batches, or of parts of them where the dataset does not know the batch
    size. Nothing of one is held here once its last item is given: what a DataLoader worker collates
    can be lent to the parent. skip: items of the first batch that the taker had before. resumed:
    the pass goes on from a loaded state.
    """

    def __init__(
        self, dataset: StreamingLeRobotDataset, begin: Pass, skip: int, resumed: bool
    ) -> None:
        self.dataset, self.epoch, self.base = dataset, begin.epoch, begin.start
        self.resumed, self.ended, self.complete = resumed, False, False
        self.pid = os.getpid()
        self.share = dataset._share()
        self._worker = current_worker() is not None
        self._done = self._next_done = begin.start  # with the last batch, with what is ready
        self._batches, self._given, self._skip = 0, 0, skip
        self._end = begin.start  # of the present batch, where passes have no end
        self._ready: list[Item] = []  # the present batch's or part's, the next one last
        self._begin()

    def _begin(self) -> None:
        dataset = self.dataset
        handle = dataset._engine()
        handle.begin(dataset._feed(self.position()), dataset._ahead())
        self.handle = handle

    def __iter__(self) -> Stream:
        return self

    @property
    def untouched(self) -> bool:
        """Whether nothing was taken of it."""
        return self._batches == 0 and self._given == 0 and not self.complete

    def position(self) -> Position:
        """Where its taker stands.

        A DataLoader worker's numbers count from where its own part would start again: the batches
        of the other workers up to there are theirs.
        """
        if self._worker:
            share = self.share
            done = self.base + self._batches * share.workers * share.size
        else:
            done = self._done
        return Position(self.epoch, done, self._given + self._skip)

    def __next__(self) -> Item:
        if self.ended:
            raise StopIteration
        if self.pid != os.getpid():  # after a fork: a new engine, at this place
            self._continue_here()
        try:
            while not self._ready:
                if not self._fetch():
                    self.ended = self.complete = True
                    self.dataset._finished(self)
                    raise StopIteration
            item = self._ready.pop()
            self._given += 1
            if not self._ready and self._next_done != self._done:  # else it was a part
                self._done, self._given = self._next_done, 0
                self._batches += 1
            return self._transformed(item)
        except ReelpoolError as error:  # it is this batch's, and the last thing of this pass
            self.ended = True
            self.dataset._named(error)
            raise

    def _fetch(self) -> bool:
        """The items of the next batch, or part of one, into `_ready`; False at the end."""
        found = self.handle.next(TIMEOUT_S)
        if found is None:
            return False
        batch, self._next_done = found
        dataset = self.dataset
        share = self.share
        samples = dataset.num_frames_for_rank(share.rank, share.world)
        data = dataset._batch_data(batch, samples // share.workers, distinct=False)
        items = dataset._items(data)
        self._ready = items[self._skip :]
        self._ready.reverse()
        passed = min(self._skip, len(items))
        self._given += passed
        self._skip -= passed
        self._end = self.base + (self._batches * share.workers + share.worker + 1) * share.size
        return True

    def _transformed(self, item: Item) -> Item:
        dataset = self.dataset
        if dataset.image_transforms is None:
            return item
        epoch = self.epoch
        if dataset.repeat:
            epoch += (self._end - 1) // dataset._order.count
        seed = sample_seed(dataset.seed, epoch, int(item["index"]))
        return dataset._transformed(item, seed)

    def _continue_here(self) -> None:
        place = self.position()
        self.pid, self.base = os.getpid(), place.done
        self._done = self._next_done = place.done
        self._batches, self._given, self._skip, self._ready = 0, 0, place.items, []
        self._begin()


class Row(dict):
    """A stored row before its pictures are decoded. `row`: its number in the selection."""

    row: int


class Rows:
    """`dataset._pipeline`: the rows of this process's part of an epoch, undecoded, in order."""

    def __init__(self, dataset: StreamingLeRobotDataset) -> None:
        self._dataset = dataset
        self._epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """The epoch that iteration runs; before the first call the dataset's counter says it."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Row]:
        dataset = self._dataset
        epoch = dataset._passes.epoch if self._epoch is None else self._epoch
        feed = dataset._feed(Position(epoch, 0, 0))
        table = dataset._table
        while (found := feed.next()) is not None:
            for number in found[0].tolist():
                row = Row({key: column[number] for key, column in table.columns.items()})
                for key, cells in table.cells.items():
                    if cells.dtype != "image":
                        row[key] = cells.cell(number)
                row.row = number
                yield row


def in_cache_words(stats: dict[str, Any], files: int) -> dict[str, Any]:
    """An engine's counters as those of a cache of `files` open videos.

    hits: decode runs in a file that was open; misses: files opened; evictions: of those, at least
    so many for a second time; size: files open at most.
    """
    misses = stats.get("indexed", 0)
    hits = max(0, stats.get("runs", 0) - misses)
    again = max(0, misses - files)
    rate = hits / max(1, hits + misses)
    return {"hits": hits, "misses": misses, "evictions": again, "hit_rate": rate,
            "size": misses - again}  # fmt: skip
