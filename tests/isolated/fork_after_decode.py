"""The parent decodes, then forks: parent and children go on reading, at the same time, rightly."""

import os
import sys

from _common import indices, open_dataset, pixels

dataset = open_dataset()
order = indices(dataset, 10)
want = [pixels(dataset[i]) for i in order]
want_batch = [pixels(item) for item in dataset.__getitems__(order)]
assert want == want_batch

children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            got = [pixels(item) for item in dataset.__getitems__(order)]
            again = [pixels(dataset[i]) for i in order]
            status = 0 if got == want and again == want else 2
        finally:
            sys.stderr.flush()
            os._exit(status)
    children.append(pid)
for _ in range(5):
    assert [pixels(item) for item in dataset.__getitems__(order)] == want
for pid in children:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print("ok")
