"""A parent streams from a server and forks children that read on, round after round: each reads
right pictures over connections of its own, and the parent loses none. Argument: rounds.
"""

import os
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))
from remote_things import OPTIONS, bare_process, digests, serve, storage

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
ROUNDS = int(sys.argv[1])


def child(work, *arguments):
    """The pid of a fork that ends with 0 if `work` is true."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work(*arguments) else 2
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pid


with tempfile.TemporaryDirectory() as folder, serve() as server:
    bare_process(folder)
    import reelpool
    from demo_sets import FRONT, ROOT, array

    def pixels(item):
        return array(item[FRONT]).tobytes()

    near = reelpool.LeRobotDataset("t/x", ROOT, cameras=[FRONT], **OPTIONS)
    want = [pixels(near[i]) for i in range(184)]
    all_of_it = digests(reelpool.Loader(near, 16, num_threads=1, shuffle=True, seed=1))
    for number in range(ROUNDS):
        server.reset()
        far = reelpool.LeRobotDataset(
            "t/x", server.url("/set"), cameras=[FRONT], **OPTIONS,
            storage_options=storage(disk_cache="64MB" if number % 2 else 0),
        )  # fmt: skip
        loader = reelpool.Loader(far, 16, num_threads=1 + number % 2, shuffle=True, seed=1)
        batches = iter(loader)
        got = digests([next(batches)])

        def reads(rows, far=far):
            return [pixels(item) for item in far.__getitems__(rows)] == [want[i] for i in rows]

        def goes_on(batches=batches):
            return digests(batches) == all_of_it[1:]

        parts = [list(range(first, first + 46)) for first in (0, 46, 92, 138)]
        pids = [child(reads, rows) for rows in parts] + [child(goes_on)]
        assert all(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 for pid in pids), number
        got += digests(batches)
        assert got == all_of_it, number
        assert pixels(far[7]) == want[7]
        loader.close()
print("ok")
