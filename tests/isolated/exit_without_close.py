"""The script ends in the middle of an epoch, with everything open: it must just end."""

import reelpool
from _common import open_dataset
from torch.utils.data import DataLoader

dataset = open_dataset()
loader = iter(reelpool.Loader(dataset, 8, shuffle=True))
next(loader)
workers = iter(DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True))
kept = next(workers), next(loader)
cycle = [dataset, loader, workers]
cycle.append(cycle)
print("ok")
