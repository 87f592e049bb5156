"""Canaries: tokens, keys and signed URLs enter no message, log, repr, pickle or state, and no
request to another origin, whatever goes wrong.
"""

import logging
import os
import pickle
import sys
import traceback
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from demo_sets import ROOT
from hub_sets import hub_fixture  # noqa: F401
from reelpool import Loader, StreamingLeRobotDataset
from reelpool.errors import AuthError, ReelpoolError
from test_remote_engine import (
    local,
    online_fixture,  # noqa: F401
    server_fixture,  # noqa: F401
    shared_fixture,  # noqa: F401
)
from test_remote_root_s3 import moto  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))
from fault_server import FaultServer
from remote_things import CANARY, OPTIONS, digests, serve, storage, tree_text

FAULTS = [None, ("cdn", "status", 403), ("cdn", "reset", None), ("cdn", "page", None),
          ("cdn", "status", 500), ("api .*resolve", "status", 401),
          ("api .*resolve", "status", 503), ("api .*resolve", "page", None)]  # fmt: skip


def told(error):
    """All that an exception and its causes say."""
    seen = []
    while error is not None:
        seen += [str(error), repr(error), repr(vars(error))]
        seen += traceback.format_exception(error)
        error = error.__cause__ or error.__context__
    return "\n".join(seen)


def check(texts, *secrets):
    for text in texts:
        text = text if isinstance(text, bytes) else text.encode()
        for secret in secrets:
            assert secret.encode() not in text, secret


@pytest.mark.parametrize("cache", [0, "64MB"])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_hubs_token(hub, fault, cache, caplog, capfd, tmp_path):
    """Private data: the token opens it, and is seen by the Hub's own origin alone."""
    caplog.set_level(logging.DEBUG)
    hub.add("o/p", ROOT, "v3.0", private=True, readers={CANARY})
    given = storage(network_timeout=1.5, disk_cache=cache)
    dataset = StreamingLeRobotDataset(
        "o/p", revision="v3.0", token=CANARY, storage_options=given, **OPTIONS
    )
    texts = []
    loader = Loader(dataset, 16, num_threads=1)
    if fault is not None:
        hub.fault(*fault)
    try:
        got = digests(loader)
    except ReelpoolError as error:
        assert fault is not None
        texts.append(told(error))
        texts.append(pickle.dumps(error))
    else:
        assert fault is None and got == local(StreamingLeRobotDataset)[0]
    texts += [repr(loader.stats()), repr(loader.state_dict()), repr(dataset), repr(loader)]
    texts += [repr(vars(dataset)), repr(vars(dataset.meta)), pickle.dumps(dataset)]
    texts.append(pickle.dumps(loader))
    loader.close()
    texts += [caplog.text, *capfd.readouterr()]
    check(texts, CANARY, "Signature=")
    shared = os.environ.get("REELPOOL_CACHE") or str(tmp_path / "lerobot/.reelpool")
    check([tree_text(tmp_path)], CANARY)  # signed URLs are kept, for their owner alone
    for path in Path(shared).glob("url/**/*"):
        assert path.stat().st_mode & 0o077 == 0
    assert not hub.leaks and any(entry["token"] for entry in hub.log)
    assert not [entry for entry in hub.log if entry["origin"] == "cdn" and entry["token"]]


def test_a_token_that_is_not_known(hub, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(AuthError) as caught:
        StreamingLeRobotDataset("o/n", token=CANARY, revision="v3.0", storage_options=storage())
    check([told(caught.value), caplog.text], CANARY)


@pytest.mark.parametrize("fault", [None, "s403", "s500", "garbage"])
def test_a_redirects_query(server, fault, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    dataset = StreamingLeRobotDataset(
        "t/x", server.url("/set"), storage_options=storage(network_timeout=1.5), **OPTIONS
    )
    with serve() as files:

        def answer(_, seen):
            return 302, {"Location": files.url(seen.path) + f"?Signature={CANARY}&Expires=9e9"}

        for path in list(server.files):
            server.redirects[path] = answer
        if fault:
            files.fault(fault, None)
        texts = []
        with Loader(dataset, 16, num_threads=1) as loader:
            try:
                assert digests(loader) == local(StreamingLeRobotDataset)[0] and fault is None
            except ReelpoolError as error:
                assert fault is not None
                texts.append(told(error))
            texts += [repr(loader.stats()), pickle.dumps(dataset), caplog.text, repr(dataset)]
        assert [seen for seen in files.log if CANARY in seen.query]
    check(texts, CANARY)


@pytest.mark.parametrize("fault", [None, "s403", "s500", "elsewhere"])
def test_keys_of_s3(moto, server, fault, caplog, tmp_path):  # noqa: F811
    """Read with keys; then the endpoint fails, or sends elsewhere: the keys stay."""
    caplog.set_level(logging.DEBUG)
    keys = {"access_key_id": "AKIA" + "CANARY", "secret_access_key": CANARY,
            "session_token": CANARY[::-1]}  # fmt: skip
    given = storage(network_timeout=1.5, endpoint_url=moto[0], **keys)
    dataset = StreamingLeRobotDataset("s3://robots/some/where", storage_options=given, **OPTIONS)
    texts = [repr(dataset), pickle.dumps(dataset), repr(vars(dataset.meta))]
    with Loader(dataset, 16, num_threads=1) as loader:
        assert digests(loader) == local(StreamingLeRobotDataset)[0]
        texts += [repr(loader.stats()), repr(loader.state_dict()), pickle.dumps(loader)]
    if fault is not None:
        texts.append(s3_that_fails(server, given, fault))
    check([*texts, caplog.text, tree_text(tmp_path)], CANARY, CANARY[::-1], "AKIACANARY")


def s3_that_fails(server, given, fault):
    """What the error says where ranges of an S3 endpoint fail, or are to be had elsewhere."""
    files = {f"/robots/{path.removeprefix('/set/')}": d for path, d in server.files.items()}
    with FaultServer(files) as endpoint, FaultServer({}) as other:
        rows = "".join(
            f"<Contents><Key>{path.removeprefix('/robots/')}</Key><Size>{len(data)}</Size>"
            f'<ETag>"{endpoint.etags[path]}"</ETag></Contents>'
            for path, data in files.items()
        )

        def listing(_, seen):
            prefix = parse_qs(seen.query).get("prefix", [""])[0]
            kept = [r for r in rows.split("<Contents>")[1:] if r.startswith(f"<Key>{prefix}")]
            body = "".join("<Contents>" + r for r in kept)
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{body}</ListBucketResult>"
            return 200, {"Content-Type": "application/xml"}, text.encode()

        endpoint.redirects["/robots"] = endpoint.redirects["/robots/"] = listing
        given = {**given, "endpoint_url": endpoint.origin}
        dataset = StreamingLeRobotDataset("s3://robots", storage_options=given, **OPTIONS)
        if fault == "elsewhere":
            for path in files:
                endpoint.redirects[path] = lambda _, seen: (
                    302, {"Location": other.url(seen.path)}
                )  # fmt: skip
        else:
            endpoint.fault(fault, None)
        with Loader(dataset, 16, num_threads=1) as loader, pytest.raises(ReelpoolError) as caught:
            digests(loader)
        signed = [seen for seen in endpoint.log if "Authorization" in seen.headers]
        assert signed and (fault != "elsewhere" or other.log)
        for seen in other.log:
            assert not {"authorization", "x-amz-security-token", "x-amz-date"} & {
                name.lower() for name in seen.headers
            }
        return told(caught.value)
