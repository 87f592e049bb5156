"""A process waits for a server that is silent: Ctrl-C ends the wait, dropping the loader ends its
calls, and an exit without close() hangs on nothing.
"""

import gc
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))
from remote_things import OPTIONS, bare_process, serve, storage

folder = tempfile.TemporaryDirectory()
bare_process(folder.name)
import reelpool  # noqa: E402

server = serve()
given = storage(network_timeout=600.0)
dataset = reelpool.StreamingLeRobotDataset(
    "t/x", server.url("/set"), storage_options=given, **OPTIONS
)
server.fault("silent", None)


def silent_calls():
    return sum(seen.fault == "silent" for seen in server.log)


def wait_for_call(before):
    while silent_calls() == before:
        threading.Event().wait(0.01)


for threads in (0, 1):
    loader, before = reelpool.Loader(dataset, 8, num_threads=threads), silent_calls()

    def interrupt(before=before):
        wait_for_call(before)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        next(iter(loader))
    except KeyboardInterrupt:
        thread.join()
    else:
        raise AssertionError("no KeyboardInterrupt")
    del loader  # with calls under way
    gc.collect()

before = silent_calls()
kept = iter(reelpool.Loader(dataset, 8, num_threads=2))
threading.Thread(target=lambda: next(kept, None), daemon=True).start()
wait_for_call(before)
print("ok", flush=True)  # and out, with all of it under way
