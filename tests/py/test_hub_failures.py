"""The Hub refuses, fails, stalls or is not there: the right data after all, or a typed error in
time, without a token in it."""

import functools
import logging
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from urllib.error import URLError

import huggingface_hub.constants as constants
import pytest
from demo_sets import open_demo
from hub_sets import CANARY, FILES, hub_fixture, open_hub, same_items  # noqa: F401
from reelpool import LeRobotDatasetMetadata, hub_calls
from reelpool.errors import (
    AuthError,
    FormatError,
    NotFoundError,
    OfflineError,
    RemoteError,
    RemoteTimeoutError,
    StorageError,
)
from reelpool.hub import Hub, Options

ROWS = [0, 183]


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """Short pauses between tries."""
    monkeypatch.setattr(hub_calls, "BACKOFF_MAX_S", 0.1)
    monkeypatch.setattr(hub_calls, "LIMIT_JITTER_S", 0.1)


def complete(hub):
    """True if the demo set arrives, whole."""
    return same_items(open_hub(), open_demo(), ROWS)


hurried = functools.partial(open_hub, storage_options={"network_timeout": 0.5})


# -- what passes --


@pytest.mark.parametrize(
    "pattern, action, value, times",
    [
        ("revision", "status", 429, 2),
        ("refs", "reset", None, 3),
        ("/tree/.*/meta", "status", 503, 1),
        ("GET cdn", "status", 403, 2),  # a signed URL that has run out
        ("GET cdn", "reset", None, 1),
        ("GET api .*info.json", "status", 500, 1),
        ("resolve-cache.*info.json", "cut", 100, 1),
    ],
)
def test_failures_that_pass(hub, caplog, pattern, action, value, times):
    hub.fault(pattern, action, value, times, Retry_After="0")
    assert complete(hub)
    assert "Signature" not in caplog.text


def test_a_body_that_breaks_off_is_fetched_again(hub):
    hub.fault("GET cdn", "cut", 1000, times=1)
    assert complete(hub)
    assert len(hub.requests("GET cdn")) == len(FILES) + 3


def test_urls_that_run_out_at_once(hub):
    hub.url_life = 0.0
    with pytest.raises(AuthError, match="the file server answered 403"):
        open_hub()
    hub.url_life = 60.0
    assert complete(hub)


def test_a_silent_call_is_made_again(hub, monkeypatch):
    monkeypatch.setattr(hub_calls, "API_ATTEMPT_S", 0.3)
    hub.fault("refs", "silent", 30, times=1)
    caller = hub_calls.Caller("datasets/o/n", hub.endpoint, 60)
    there = caller.call("refs", lambda beat: huggingface_refs(hub), attempt=0.5)
    assert there.tags[0].name == "v3.0" and len(hub.requests("refs")) == 2


def huggingface_refs(hub):
    from huggingface_hub import HfApi

    return HfApi(endpoint=hub.endpoint).list_repo_refs("o/n", repo_type="dataset")


# -- what does not pass --


def in_time(function, seconds=15.0):
    """The error of `function`, which must come before a deadline that only a hang misses."""
    begun = time.monotonic()
    with pytest.raises(Exception) as caught:
        function()
    assert time.monotonic() - begun < seconds
    error = caught.value
    assert error.__cause__ is None and error.__context__ is None
    assert len(str(error).splitlines()) <= 4 and error.dataset == "o/n"
    assert type(pickle.loads(pickle.dumps(error))) is type(error)
    return error


@pytest.mark.parametrize("pattern", ["refs", "revision", "/tree/.*/meta$", "HEAD", "GET cdn"])
def test_failures_without_end(hub, pattern):
    hub.fault(pattern, "status", 503)
    error = in_time(hurried)
    assert type(error) is RemoteTimeoutError and "network_timeout" in str(error)
    assert "gave nothing for 0.5 s" in str(error)


def test_a_wait_beyond_the_deadline_is_named(hub):
    hub.fault("refs", "status", 429, Retry_After="3600")
    error = in_time(open_hub)
    assert type(error) is RemoteTimeoutError and "asks to wait 3600 s" in str(error)
    assert error.status == 429


@pytest.mark.parametrize("pattern", ["refs", "GET cdn"])
def test_silence(hub, pattern):
    hub.fault(pattern, "silent", 30)
    assert type(in_time(hurried)) is RemoteTimeoutError


def test_nobody_there(hub, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        error = in_time(hurried)
    assert type(error) is RemoteTimeoutError and "Connect" in str(error)


@pytest.mark.parametrize(
    "pattern, action, value, text",
    [
        ("HEAD", "strip", "X-Repo-Commit", "no Hub endpoint"),
        ("revision", "page", None, "JSONDecodeError"),
        ("refs", "status", 418, "answered 418"),
        ("revision", "status", 200, "JSONDecodeError"),
    ],
)
def test_answers_that_are_none(hub, pattern, action, value, text):
    hub.fault(pattern, action, value)
    error = in_time(open_hub)
    assert type(error) is RemoteError and text in str(error)


def test_files_that_never_arrive_leave_no_dataset(hub, tmp_path, monkeypatch):
    fault = hub.fault("GET cdn", "cut", 10)
    assert isinstance(in_time(hurried), RemoteError)
    assert not list(tmp_path.glob("lerobot/hub/*/snapshots/*/meta/info.json"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert type(in_time(open_hub)) is OfflineError
    monkeypatch.delenv("HF_HUB_OFFLINE")
    hub.faults.remove(fault)
    video = hub.fault("HEAD api .*mp4", "status", 404, X_Error_Code="EntryNotFound")
    error = in_time(open_hub)
    assert type(error) is NotFoundError and error.status == 404
    hub.faults.remove(video)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    error = in_time(open_hub)  # the metadata is whole, the videos are not
    assert type(error) is OfflineError and "HF_HUB_OFFLINE=0 hf download" in str(error)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert complete(hub)


def test_missing_things(hub):
    repo = hub.repos["o/n"]
    files = repo.commits[repo.branches["main"]]
    hub.tokens.add(CANARY)
    cases = {
        "there is no such dataset": lambda: open_hub("o/no", token=CANARY),
        "has no revision nowhere": lambda: open_hub(revision="nowhere"),
        "has no revision 0123456789": lambda: open_hub(revision="0123456789" * 4),
    }
    for text, function in cases.items():
        with pytest.raises(NotFoundError, match=text):
            function()
    less = repo.commit({p: b for p, b in files.items() if p != FILES[-1]})
    with pytest.raises(NotFoundError, match=f"commit {less[:12]} has no {FILES[-1]}") as caught:
        open_hub(revision="main")
    assert caught.value.file == FILES[-1] and caught.value.revision == "main"
    repo.commit({"README.md": files["meta/info.json"]})
    with pytest.raises(NotFoundError, match="no LeRobot dataset") as caught:
        open_hub(revision="main", force_cache_sync=True)
    assert caught.value.file == "meta/info.json"


def test_paths_that_lead_out(hub):
    repo = hub.repos["o/n"]
    files = repo.commits[repo.branches["main"]]
    repo.tags["v3.0"] = repo.commit({**files, "meta/../../../evil": files["meta/info.json"]})
    with pytest.raises(FormatError, match=r"holds '\.\.'"):
        open_hub()


def test_a_disk_that_cannot_be_written(hub, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("REELPOOL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(StorageError, match="HF_LEROBOT_HOME"):
        open_hub()


# -- tokens --


def test_access(hub):
    repo = hub.repos["o/n"]
    repo.private, repo.readers = True, {CANARY}
    hub.tokens |= {CANARY, "hf_other"}
    error = in_time(open_hub)
    assert type(error) is AuthError and error.status == 401 and "hf auth login" in str(error)
    assert "missing, private or gated; token: none" in str(error)
    assert complete_with(CANARY)

    repo.private, repo.gated = False, True
    repo.tags["v3.0"] = repo.commit(repo.commits[repo.branches["main"]], "main")
    for token in ("hf_other", False):
        sync = {"token": token, "force_cache_sync": True}
        error = in_time(functools.partial(open_hub, **sync))
        page = f"{hub.endpoint}/datasets/o/n"
        assert type(error) is AuthError and f"Ask for access on {page} first" in str(error)
    with pytest.raises(AuthError, match="answered 401"):
        open_hub(token="hf_unknown", force_cache_sync=True)
    with pytest.raises(AuthError, match="no token is stored"):
        open_hub(token=True, force_cache_sync=True)


def complete_with(token):
    return same_items(open_hub(token=token), open_demo(), ROWS)


@pytest.mark.parametrize("given", [True, False], ids=["argument", "environment"])
def test_the_token_is_nowhere(hub, tmp_path, monkeypatch, caplog, capfd, given):
    caplog.set_level(logging.DEBUG)
    repo = hub.repos["o/n"]
    repo.private, repo.readers = True, {CANARY}
    hub.tokens.add(CANARY)
    if not given:
        monkeypatch.setenv("HF_TOKEN", CANARY)
    token = CANARY if given else None
    hub.fault("GET cdn", "status", 503, times=1)
    dataset = open_hub(token=token)
    assert same_items(dataset, open_demo(), ROWS)
    seen = [repr(dataset), repr(dataset.meta), str(vars(dataset)), str(dataset.stats())]
    seen += [pickle.dumps(dataset).decode("latin-1"), pickle.dumps(dataset.meta).decode("latin-1")]
    del repo.commits[repo.branches["main"]]
    repo.readers.clear()
    hub.fault("datasets/o/n/revision", "status", 500)
    for options in ({"revision": "main"}, {"revision": "other"}, {"revision": "1" * 40}):
        try:
            hurried(token=token, force_cache_sync=True, **options)
        except Exception as error:  # all of them are looked at
            seen += [str(error), repr(error), pickle.dumps(error).decode("latin-1")]
            seen += traceback.format_exception(error)
    assert len(seen) > 15
    seen += [caplog.text, *capfd.readouterr()]
    assert not [text for text in seen if CANARY in text or "Signature=" in text]
    for path in tmp_path.rglob("*"):
        assert not (path.is_file() and CANARY.encode() in path.read_bytes()), path
    assert not hub.leaks and all(e["token"] for e in hub.log if e["path"].startswith("/datasets"))


def test_who_gets_a_token(monkeypatch, caplog):
    monkeypatch.setenv("HF_TOKEN", CANARY)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")

    def sent(endpoint, **arguments):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        return Hub("o/n", None, None, **arguments)._checked_token()

    for endpoint in ("https://hub.example", "http://127.0.0.1:1", "http://localhost:1"):
        assert sent(endpoint) == CANARY and sent(endpoint, token="hf_x") == "hf_x"
        assert sent(endpoint, token=False) is False
    assert sent("http://hub.example") is False and "is plain http" in caplog.text
    with pytest.raises(ValueError, match="shows the token") as caught:
        sent("http://hub.example", token=CANARY)
    assert CANARY not in str(caught.value)
    allowed = Options(allow_http=True)
    assert sent("http://hub.example", token=CANARY, options=allowed) == CANARY
    with pytest.raises(ValueError, match="foreign character"):
        sent("https://hub.example", token="hf_x\r\nHost: evil")
    for endpoint in ("ftp://hub.example", "https://user:word@hub.example", "hub.example"):
        with pytest.raises(ValueError, match="HF_ENDPOINT"):
            sent(endpoint)
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert (
        sent("https://hub.example") is False and sent("https://hub.example", token=True) == CANARY
    )


# -- parts --


def test_no_request_while_offline(hub, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            error = in_time(open_hub)
            assert type(error) is OfflineError and "hf download --repo-type dataset" in str(error)
    with pytest.raises(OfflineError):
        LeRobotDatasetMetadata("o/n", storage_options={"offline": True})
    with pytest.raises(OfflineError):
        LeRobotDatasetMetadata("o/n", force_cache_sync=True, storage_options={"offline": True})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # as it was when it was imported
    with pytest.raises(OfflineError):
        open_hub()
    assert not hub.log


def test_waits_that_servers_ask_for():
    later = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 100))
    assert hub_calls.asked_wait({"Retry-After": " 7 "}) == 7
    assert 90 < hub_calls.asked_wait({"Retry-After": later}) <= 100
    assert hub_calls.asked_wait({"Retry-After": "soon"}) is None
    assert hub_calls.asked_wait({"RateLimit": '"api";r=0;t=55'}) == 55
    assert hub_calls.asked_wait({"RateLimit": '"api";r=1;t=55'}) is None
    assert hub_calls.asked_wait({}) is None


def test_causes_are_told_apart():
    def failure(error):
        return hub_calls.judge(error, "https://hub.example")

    assert failure(OSError(28, "No space left on device", "/x")).cls is StorageError
    assert failure(ConnectionResetError("reset")).again
    refused = URLError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed")
    assert not failure(refused).again and failure(refused).cls is RemoteError
    assert failure(OSError("Consistency check failed")).limit == hub_calls.IN_A_ROW
    assert not failure(KeyError("sha")).again


def test_the_interpreter_ends_though_a_server_asks_to_wait(hub):
    hub.fault("GET cdn", "status", 429, Retry_After="3600")
    script = (
        "from reelpool import LeRobotDatasetMetadata\n"
        "LeRobotDatasetMetadata('o/n', storage_options={'network_timeout': 1})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "RemoteTimeoutError" in done.stderr


def test_an_interrupt_ends_a_download(hub):
    hub.fault("GET cdn", "stall", 60)
    script = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # maybe ignored
        "from reelpool import LeRobotDatasetMetadata\nLeRobotDatasetMetadata('o/n')"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not hub.requests("GET cdn") and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)  # the stall lasts a minute
    assert process.returncode != 0 and "KeyboardInterrupt" in said
