"""The disk fills up while the node's cache is being written: nothing new is kept, right data."""

import os
import resource
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))
from remote_things import OPTIONS, bare_process, digests, serve, storage, video_requests

with tempfile.TemporaryDirectory() as folder:
    bare_process(folder)
    import reelpool
    from demo_sets import ROOT

    near = reelpool.LeRobotDataset("t/x", ROOT, **OPTIONS)
    want = digests(reelpool.Loader(near, 16, num_threads=1))
    with serve() as server:
        given = storage(disk_cache="64MB")
        far = reelpool.LeRobotDataset("t/x", server.url("/set"), storage_options=given, **OPTIONS)
        assert len(far.hf_dataset) == 184  # its table is here now
        # From here on no file of this process grows beyond 30 kB, which is what a full disk is to
        # it, but for the signal, which Python ignores.
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
        loader = reelpool.Loader(far, 16, num_threads=1, prefetch_batches=1)
        assert [digests(loader) for _ in range(2)] == [want, want]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        sizes = [p.stat().st_size for p in Path(os.environ["REELPOOL_CACHE"]).glob("obj/v1/*/*/*")]
        assert sizes and max(sizes) <= 30_000, sizes
        since = len(server.log)
        again = reelpool.LeRobotDataset("t/x", server.url("/set"), storage_options=given, **OPTIONS)
        assert digests(reelpool.Loader(again, 16, num_threads=1)) == want
        assert video_requests(server, since)  # what was not kept then
print("ok")
