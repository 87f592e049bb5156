"""A DataLoader worker ends with the process that it works for.

torch's workers ask every 5 seconds whether their parent is still the one they began with. Under a
forkserver that is not the reader, and a worker that began late knows another one: killed readers
would leave such workers behind for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

_watching = 0  # pid of the process that has the thread


def end_with_parent() -> None:
    """Start, once per process, a thread that waits for the end of the process that started this
    one through `multiprocessing`, and then ends this one at once."""
    global _watching
    parent = multiprocessing.parent_process()
    if parent is None or _watching == os.getpid():
        return
    _watching = os.getpid()
    threading.Thread(target=_wait, args=(parent,), name="reelpool-parent", daemon=True).start()


def _wait(parent: Any) -> None:
    parent.join()
    os._exit(1)  # nobody is left to tell
