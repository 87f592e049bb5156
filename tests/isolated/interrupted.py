"""SIGINT in the middle of an epoch: KeyboardInterrupt arrives, and reading goes on afterwards."""

import os
import signal
import threading

import reelpool
from _common import indices, open_dataset, pixels

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
dataset = open_dataset()
order = indices(dataset, 4)
want = [pixels(dataset[i]) for i in order]
loader = reelpool.Loader(dataset, 8, shuffle=True)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        for _batch in loader:
            pass
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("no KeyboardInterrupt")
loader.close()
assert [pixels(dataset[i]) for i in order] == want
print("ok")
