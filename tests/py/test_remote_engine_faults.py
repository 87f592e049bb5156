"""What goes wrong between a data set and its server ends in the right data, or in a typed error at
its sample's place: never in another sample, never in a hang.
"""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from batches import digest
from demo_sets import FRAMES, FRONT, ROOT, STARTS, WRIST, ids
from hub_sets import hub_fixture  # noqa: F401
from reelpool import LeRobotDataset, Loader, StreamingLeRobotDataset
from reelpool.corruption import ledger_path
from reelpool.errors import (
    AuthError,
    DatasetChangedError,
    FormatError,
    NotFoundError,
    OfflineError,
    ReelpoolError,
    RemoteError,
    RemoteTimeoutError,
)
from test_http_redirects import certificates  # noqa: F401
from test_remote_engine import (
    local,
    online_fixture,  # noqa: F401
    run,
    server_fixture,  # noqa: F401
    shared_fixture,  # noqa: F401
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))
from fault_server import FaultServer
from remote_things import OPTIONS, digests, is_video, outage, serve, storage, video_requests

STREAM, MAP = StreamingLeRobotDataset, LeRobotDataset
LAST = f"/set/videos/{WRIST}/chunk-000/file-001.mp4"  # of episode 3
BEFORE = STARTS[3]  # samples that do not need it
BAD = (("on_corrupt", "substitute"),)
pytestmark = pytest.mark.timeout(60)


def open_set(server, kind=STREAM, timeout=20.0, cache=0, **options):
    options = {**OPTIONS, **options}
    more = options.pop("storage_options", {})
    given = storage(network_timeout=timeout, disk_cache=cache, **more)
    return kind("t/x", server.url("/set"), storage_options=given, **options)


def take(dataset, **load):
    """Digests of a pass, and the error that ended it."""
    out = []
    with Loader(dataset, **{"batch_size": 16, "num_threads": 1, **load}) as loader:
        try:
            for batch in loader:
                out.append(digest(batch))
        except ReelpoolError as error:
            assert loader.stats()["substituted"] == 0
            return out, error
        assert loader.stats()["substituted"] == 0
    return out, None


# -- each fault, met twice --

SOON = ["reset_before", "reset_body", "cut", "half_close", "trickle", "slow_head", "short", "long",
        "whole", "shifted", "no_range", "wrong_total", "gzip", "html", "two_lengths", "new_etag",
        "garbage", "s408", "s412", "s416", "s425", "s429", "s500", "s502", "s503", "s504",
        "s520"]  # fmt: skip
LATER = ["limited", "limited_date", "rate", "busy_later", "stall", "silent"]  # waits of seconds


def chosen(kinds, quick):
    """Parameters; those that are not quick are soaks."""
    return [k if k in quick else pytest.param(k, marks=pytest.mark.soak) for k in kinds]


QUICK = ["reset_before", "reset_body", "cut", "short", "long", "whole", "shifted", "gzip", "s412",
         "s429", "s503", "half_close", "silent", "limited_long", "wrong_total", "html", "new_etag",
         "s403", "s404", "endless_line"]  # fmt: skip


@pytest.mark.parametrize("kind", chosen(SOON + LATER, set(QUICK) - {"silent", "html", "new_etag"}))
def test_a_fault_that_passes(server, kind):
    dataset = open_set(server, timeout=60.0, on_corrupt="substitute", storage_options={})
    server.fault(kind, 2)
    assert take(dataset) == (local(STREAM, 1, (), BAD)[0], None)
    assert sum(seen.fault is not None for seen in server.log) == 2


# -- each fault, without an end --

ENDLESS = {
    "reset_before": RemoteTimeoutError, "half_close": RemoteTimeoutError,
    "stall": RemoteTimeoutError, "silent": RemoteTimeoutError, "s408": RemoteTimeoutError,
    "s425": RemoteTimeoutError, "s429": RemoteTimeoutError, "s500": RemoteTimeoutError,
    "s503": RemoteTimeoutError, "s520": RemoteTimeoutError, "limited": RemoteTimeoutError,
    "limited_long": RemoteTimeoutError, "rate": RemoteTimeoutError, "spent": RemoteTimeoutError,
    "busy_later": RemoteTimeoutError, "whole": RemoteError, "shifted": RemoteError,
    "no_range": RemoteError, "long": RemoteError, "gzip": RemoteError, "html": RemoteError,
    "two_lengths": RemoteError, "garbage": RemoteError, "huge_head": RemoteError,
    "endless_line": RemoteError, "s400": RemoteError, "s418": RemoteError,
    "wrong_total": DatasetChangedError, "new_etag": DatasetChangedError,
    "s412": DatasetChangedError, "s416": DatasetChangedError, "s401": AuthError,
    "s403": AuthError, "s404": NotFoundError, "s410": NotFoundError,
}  # fmt: skip
SLOW_DATA = ["reset_body", "cut", "trickle", "slow_head", "short"]  # always some new bytes


@pytest.mark.parametrize("kind", chosen(ENDLESS, QUICK[4:]))
def test_a_fault_without_end(server, kind):
    """Also where another sample would be taken for a bad one: the sample is not bad."""
    dataset = open_set(server, timeout=1.0, on_corrupt="substitute")
    server.fault(kind, None)
    got, error = take(dataset)
    assert got == [] and type(error) is ENDLESS[kind]
    assert error.file.startswith(server.url("/set/videos/")) and error.episode is not None
    assert not ledger_path().exists()


@pytest.mark.parametrize("kind", chosen(SLOW_DATA, ["trickle"]))
def test_bad_answers_that_bring_bytes(server, kind):
    dataset = open_set(server, timeout=5.0)
    server.fault(kind, None)
    assert take(dataset) == (local(STREAM)[0], None)


@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize("cache", [0, "64MB"])
def test_the_error_comes_at_its_samples_place(server, threads, cache):
    """What precedes the first sample that needs a missing file is delivered; then a pass can go on
    where it was.
    """
    near, _ = take(MAP("t/x", ROOT, on_corrupt="substitute", **OPTIONS), batch_size=4)
    dataset = open_set(server, MAP, cache=cache, on_corrupt="substitute")
    gone = server.files.pop(LAST)
    with Loader(dataset, 4, num_threads=threads, prefetch_batches=4) as loader:
        got = []
        with pytest.raises(NotFoundError) as caught:
            for batch in loader:
                got.append(digest(batch))
        assert got == near[: BEFORE // 4] and caught.value.episode == 3
        assert caught.value.camera == WRIST and caught.value.file == server.url(LAST)
        state = loader.state_dict()
        assert state["samples_done"] == BEFORE
        server.files[LAST] = gone
        loader.load_state_dict(state)
        assert digests(loader) == near[len(got) :]


def test_one_of_two_loaders_fails(server):
    with serve() as other:
        bad, good = open_set(server, timeout=1.0), open_set(other)
        server.fault("s503", None)
        with Loader(good, 16, num_threads=1) as second:
            batches = iter(second)
            head = [digest(next(batches))]
            assert type(take(bad)[1]) is RemoteTimeoutError
            assert head + digests(batches) == local(STREAM)[0]


def test_by_index_and_in_batches(server):
    dataset = open_set(server, MAP, timeout=1.0)
    server.fault("s404", None)
    for ask in (lambda: dataset[3], lambda: dataset.__getitems__([5, 100])):
        with pytest.raises(NotFoundError) as caught:
            ask()
        assert caught.value.camera in (FRONT, WRIST)
    server.calm()
    assert [int(item["index"]) for item in dataset.__getitems__([5, 100])] == [5, 100]


# -- outages --


@pytest.mark.parametrize(
    ("kind", "threads"),
    [("s503", 1)] + [
        pytest.param(kind, threads, marks=pytest.mark.soak)
        for kind in ("s503", "reset_before", "silent", "stall") for threads in (0, 2)
    ],
)  # fmt: skip
def test_an_outage_is_no_stall(server, kind, threads):
    """Shorter than network_timeout, longer than the Loader's timeout_s."""
    dataset = open_set(server, timeout=120.0, unit=8, lanes=4, window=32)
    want = run(STREAM, str(ROOT), unit=8, lanes=4, window=32)[0]
    with (
        Loader(dataset, 16, num_threads=threads, timeout_s=0.3) as loader,
        outage(server, 1.2, kind),
    ):
        assert digests(loader) == want


def test_a_late_batch_is_explained_in_the_log(server, monkeypatch, caplog):
    monkeypatch.setattr("reelpool.live.LATE_S", 0.3)
    monkeypatch.setattr("reelpool.live.EVERY_S", 0.3)
    dataset = open_set(server, timeout=60.0)
    caplog.set_level("WARNING", "reelpool")
    with Loader(dataset, 16, num_threads=1) as loader, outage(server, 2.0):
        next(iter(loader))
    lines = [r.getMessage() for r in caplog.records]
    assert lines
    assert all(line.startswith(f"waiting for {server.origin} for ") for line in lines)
    assert "the server was busy or out of order" in lines[-1]
    assert "60 s without a new byte" in lines[-1]


def test_what_was_fetched_is_logged(server, monkeypatch, caplog):
    monkeypatch.setattr("reelpool.live.EVERY_S", 0.0)
    caplog.set_level("INFO", "reelpool")
    with Loader(open_set(server), 16, num_threads=1) as loader:
        list(loader)
        fetched = loader.stats()["fetch"]["bytes_fetched"]
    assert f"{fetched / 1e6:.1f} MB fetched by" in caplog.records[-1].getMessage()
    assert not any(r.levelname == "WARNING" for r in caplog.records)


@pytest.mark.parametrize("later", [0.0, 0.5])
def test_after_an_error_the_network_is_tried_again(server, later):
    """Here after an outage longer than network_timeout; requests of that time may be under way."""
    dataset = open_set(server, timeout=1.0, unit=8, lanes=4, window=32)
    want = run(STREAM, str(ROOT), unit=8, lanes=4, window=32)[0]
    with Loader(dataset, 16, num_threads=1) as loader:
        next(iter(loader))
        server.fault("silent", None)
        with pytest.raises(RemoteTimeoutError):
            list(loader)
        time.sleep(later)
        server.calm()
        loader.set_epoch(0)
        assert digests(loader) == want


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["s503", "reset_before", "stall"])
def test_five_minutes_without_a_server(server, kind):
    dataset = open_set(server, timeout=600.0, unit=8, lanes=4, window=32)
    want = run(STREAM, str(ROOT), unit=8, lanes=4, window=32)[0]
    with Loader(dataset, 16, num_threads=1, timeout_s=5.0) as loader:
        batches = iter(loader)
        head = [digest(next(batches))]
        since = len(server.log)
        with outage(server, 300.0, kind):
            assert head + digests(batches) == want
    asked = [seen for seen in server.log[since:] if seen.fault]
    assert len(asked) < 4 * 300  # a server in trouble is not run over


# -- where a redirect leads --


def redirected(server, target, names=is_video):
    """Every video answers with a redirect."""
    for path in list(server.files):
        if names(path):
            server.redirects[path] = lambda s, seen: (302, {"Location": target(seen.path)})


@pytest.mark.parametrize(
    "target",
    [
        lambda path: path,
        lambda path: f"{path}?again",
        lambda path: "http://169.254.169.254/latest/meta-data",
        lambda path: "ftp://127.0.0.1/x",
        lambda path: "http://user:secret@127.0.0.1/x",
    ],
    ids=["itself", "itself with a query", "link-local", "ftp", "user"],
)
def test_redirects_that_lead_nowhere(server, target):
    dataset = open_set(server, timeout=5.0)
    redirected(server, target)
    got, error = take(dataset)
    assert got == [] and type(error) is RemoteError and "secret" not in str(error)


def test_redirects_to_another_server(server):
    dataset = open_set(server)
    with serve() as files:
        redirected(server, lambda path: files.url(path) + "?Expires=99999999999&Signature=S3cret")
        assert take(dataset) == (local(STREAM)[0], None)
        assert len(server.log) and not [e for e in video_requests(server) if e is None]
        asked = [seen.path for seen in server.log if is_video(seen.path) and seen.query == ""]
        resolves = [path for path in asked if asked.count(path) > 2]
        assert resolves == []  # one about the size, one when it is read
        dataset = open_set(server, timeout=5.0)
        files.fault("s403", None)
        got, error = take(dataset)
        assert got == [] and type(error) is AuthError and "S3cret" not in str(error)


def test_certificates(certificates, server):  # noqa: F811
    def open_tls(name, ca):
        tls = (certificates / f"{name}.pem", certificates / f"{name}.key")
        files = dict(server.files)
        with FaultServer(files, tls=tls) as secure:
            more = {"ca_file": str(ca)} if ca else {}
            return take(open_set(secure, timeout=5.0, storage_options=more))

    names = sorted(path.stem for path in certificates.glob("*.key") if path.stem != "ca")
    assert "good" in names and len(names) > 1
    assert open_tls("good", certificates / "ca.pem") == (local(STREAM)[0], None)
    for name in names:
        if name != "good":
            with pytest.raises(RemoteError):
                open_tls(name, certificates / "ca.pem")


# -- signed URLs --


def test_signed_urls_that_run_out(hub):
    """Each lives shorter than the pass: resolved again, never an error."""
    hub.url_life = 0.3
    dataset = STREAM("o/n", storage_options=storage(), unit=8, lanes=4, window=32, **OPTIONS)
    want = run(STREAM, str(ROOT), unit=8, lanes=4, window=32)[0]
    with Loader(dataset, 16, num_threads=1) as loader:
        got = []
        for batch in loader:
            got.append(digest(batch))
            hub.sleep(0.1)
    assert got == want and not hub.leaks


@pytest.mark.parametrize("status", chosen([400, 401, 403, 404, 410], [403, 404]))
def test_the_file_server_refuses(hub, status):
    dataset = STREAM("o/n", storage_options=storage(network_timeout=20.0), **OPTIONS)
    hub.fault("GET cdn", "status", status, times=2)
    assert take(dataset) == (local(STREAM)[0], None)
    dataset = STREAM("o/n", storage_options=storage(network_timeout=5.0), **OPTIONS)
    hub.fault("GET cdn", "status", status)
    got, error = take(dataset)
    assert got == [] and type(error) is (AuthError if status < 404 else NotFoundError)
    assert "Signature" not in str(error)


@pytest.mark.parametrize(
    ("pattern", "action", "value", "cls"),
    [
        ("HEAD api .*resolve|GET api .*resolve", "page", None, RemoteError),
        ("api .*resolve", "status", 401, AuthError),
        ("api .*resolve", "status", 403, AuthError),
        ("api .*resolve", "status", 404, NotFoundError),
        ("api .*resolve", "status", 503, RemoteTimeoutError),
        ("api .*resolve", "reset", None, RemoteTimeoutError),
        ("cdn", "reset", None, RemoteTimeoutError),
        ("cdn", "page", None, RemoteError),
    ],
)
def test_the_hub_fails(hub, pattern, action, value, cls):
    dataset = STREAM("o/n", storage_options=storage(network_timeout=1.5), **OPTIONS)
    hub.fault(pattern, action, value)
    got, error = take(dataset)
    assert got == [] and type(error) is cls
    assert "Signature" not in str(error)


# -- files that are not what they were --


def test_a_file_that_changes_in_mid_epoch(server):
    dataset = open_set(server, MAP, timeout=5.0)
    with Loader(dataset, 4, num_threads=1, prefetch_batches=1) as loader:
        batches = iter(loader)
        first = next(batches)
        assert ids([first]) == [0, 1, 2, 3]
        for path in server.files:
            server.etags[path] = "another"
        with pytest.raises(DatasetChangedError) as caught:
            list(batches)
        assert "open the dataset again" in str(caught.value)
        assert is_video(caught.value.file)


@pytest.mark.parametrize("cut", [0, 1, 30, -1])
def test_a_truncated_file(server, cut):
    """It was so when the data set was opened."""
    server.files[LAST] = server.files[LAST][:cut]
    near, _ = take(MAP("t/x", ROOT, **OPTIONS), batch_size=4)
    try:
        got, error = take(open_set(server, MAP, timeout=5.0), batch_size=4)
    except ReelpoolError as early:
        got, error = near[: BEFORE // 4], early
    assert type(error) in (FormatError, RemoteError) and LAST in str(error)
    assert got == near[: len(got)] and len(got) >= BEFORE // 4


def test_no_mp4(server):
    server.files[LAST] = b"<html>not found</html>" * 100
    got, error = take(open_set(server, MAP), batch_size=4)
    assert type(error) is FormatError and error.file == server.url(LAST)
    assert len(got) == BEFORE // 4


def test_offline_with_half_a_cache(server):
    """What is kept is served; what is not is an OfflineError that names the file."""
    near, _ = take(MAP("t/x", ROOT, **OPTIONS), batch_size=4)
    assert take(open_set(server, MAP, cache="64MB", episodes=[0]), batch_size=4)[1] is None
    open_set(server, MAP, cache="64MB")  # all is known of it
    before = len(server.log)

    def away(**options):
        given = {"offline": True, "max_connections": 1}
        return open_set(server, MAP, cache="64MB", storage_options=given, **options)

    with pytest.raises(OfflineError, match=r"file-001\.mp4"):  # of these nothing is here
        away()
    assert take(away(episodes=[0]), batch_size=4) == (near[: STARTS[1] // 4], None)
    for ahead in (1, 8):  # what is here and what is not lie side by side, and are asked for as one
        got, error = take(away(episodes=[0, 1]), batch_size=4, prefetch_batches=ahead)
        assert got == near[: STARTS[1] // 4]
        assert type(error) is OfflineError and is_video(error.file) and error.episode == 1
    assert len(server.log) == before


# -- the node's cache --


def objects():
    return sorted(Path(os.environ["REELPOOL_CACHE"]).glob("obj/v1/*/*/*"))


@pytest.mark.parametrize("what", ["data", "map"])
def test_a_cache_that_lies(server, what):
    """Every byte of it is flipped while the pass runs: fetched again."""
    dataset = open_set(server, MAP, cache="64MB")
    near, _ = take(MAP("t/x", ROOT, **OPTIONS), batch_size=4)
    assert take(dataset, batch_size=4) == (near, None)
    with Loader(dataset, 4, num_threads=1, prefetch_batches=1) as loader:
        batches = iter(loader)
        got = [digest(next(batches))]
        for path in objects():
            if path.name == what:
                path.write_bytes(bytes(b ^ 0x5A for b in path.read_bytes()))
        assert got + digests(batches) == near
    since = len(server.log)
    dataset = open_set(server, MAP, cache="64MB")
    assert take(dataset, batch_size=4) == (near, None)
    assert what == "map" or video_requests(server, since)


@pytest.mark.parametrize("how", ["tree", "objects", "file in its place"])
def test_a_cache_that_is_deleted(server, how):
    near, _ = take(MAP("t/x", ROOT, **OPTIONS), batch_size=4)
    dataset = open_set(server, MAP, cache="64MB")
    place = Path(os.environ["REELPOOL_CACHE"]) / "obj"
    with Loader(dataset, 4, num_threads=1, prefetch_batches=1) as loader:
        batches = iter(loader)
        got = [digest(next(batches))]
        if how == "objects":
            for path in objects():
                path.unlink()
        else:
            while place.exists():  # what is fetched meanwhile is stored into it
                shutil.rmtree(place, ignore_errors=True)
        if how == "file in its place":
            place.write_text("this is no folder")
        assert got + digests(batches) == near
        assert digests(loader) == near
    assert take(dataset, batch_size=4) == (near, None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_may_not_be_written(server):
    place = Path(os.environ["REELPOOL_CACHE"]) / "obj"
    place.mkdir(parents=True)
    place.chmod(0o500)
    assert take(open_set(server, cache="64MB")) == (local(STREAM)[0], None)


def test_a_cache_of_no_size(server):
    """Smaller than what is read: right data all the same."""
    dataset = open_set(server, MAP, cache=4096)
    near, _ = take(MAP("t/x", ROOT, **OPTIONS), batch_size=4)
    for _ in range(2):
        assert take(dataset, batch_size=4) == (near, None)
    assert FRAMES == 184
