"""The user's exception leaves the loop; the iterators die with it; everything still works."""

import gc

import reelpool
from _common import indices, open_dataset, pixels

dataset = open_dataset()
order = indices(dataset, 4)
want = [pixels(dataset[i]) for i in order]
for _ in range(5):
    try:
        for _batch in reelpool.Loader(dataset, 8, shuffle=True):
            raise KeyError("user's own")
    except KeyError:
        pass
gc.collect()
assert [pixels(dataset[i]) for i in order] == want
print("ok")
