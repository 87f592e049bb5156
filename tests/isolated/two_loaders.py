"""Two Loaders and a DataLoader over two dataset objects at once, from three threads."""

import threading

import reelpool
from _common import open_dataset, pixels
from torch.utils.data import DataLoader

first, second = open_dataset(), open_dataset()
STEPS = 6


def run_loader(dataset, seed):
    with reelpool.Loader(dataset, 4, shuffle=True, seed=seed, num_threads=1) as loader:
        return [pixels(batch_without_lists(batch)) for _, batch in zip(range(STEPS), loader)]


def run_dataloader(dataset):
    order = list(range(4 * STEPS))
    return [
        pixels(batch_without_lists(batch))
        for batch in DataLoader(dataset, batch_size=4, sampler=order)
    ]


def batch_without_lists(batch):
    return {key: value for key, value in batch.items() if not isinstance(value, list)}


jobs = [
    lambda: run_loader(first, 1),
    lambda: run_loader(second, 2),
    lambda: run_dataloader(first),
]
want = [job() for job in jobs]
got = [None] * len(jobs)


def work(position):
    got[position] = jobs[position]()


threads = [threading.Thread(target=work, args=(position,)) for position in range(len(jobs))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert got == want
print("ok")
