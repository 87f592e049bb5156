"""Bodies whose size is not known before (lists in JSON or XML), and what a hub says of a file."""

import json

import pytest
from reelpool import errors
from reelpool._core import live_objects
from test_http import AGAIN, FAST, FATAL, ODD, SHORT, HttpClientOf
from test_http_redirects import CANARY, NEAR, client_of, one_of, two_origins

PAGE = json.dumps([{"path": f"videos/{i:06}.mp4", "size": i} for i in range(2000)]).encode()
# Faults of ranges alone: a request without one is answered as if nothing was wrong.
OF_RANGES = {"short", "shifted", "no_range", "whole", "long", "trickle", "slow_head"}


@pytest.fixture(scope="module")
def pair():
    with two_origins({"/list": PAGE, "/empty": b"", "/f": PAGE}, {"/list": PAGE}) as both:
        yield both


hub, far = one_of("pair", 0), one_of("pair", 1)


@pytest.fixture
def client():
    with client_of(**FAST) as client:
        yield client


def test_a_page(hub, client):
    got = client.get(hub.url("/list"), len(PAGE))
    assert type(got) is bytes and got == PAGE
    assert client.get(hub.url("/empty"), 0) == b""
    assert all("Range" not in seen.headers for seen in hub.log)
    assert client.stats()["resolves"] == 0


@pytest.mark.parametrize("chunked", [False, True])
def test_a_page_that_is_too_large(hub, client, chunked):
    if chunked:  # no length is announced
        body = b"".join(b"400\r\n" + b"j" * 1024 + b"\r\n" for _ in range(50)) + b"0\r\n\r\n"
        hub.redirects["/list"] = lambda *_: (200, {"Transfer-Encoding": "chunked"}, body)
        assert len(client.get(hub.url("/list"), 51_200)) == 51_200
        hub.log.clear()
    with pytest.raises(errors.RemoteError, match="larger than permitted") as caught:
        client.get(hub.url("/list"), 51_199 if chunked else len(PAGE) - 1)
    assert len(hub.log) == 1 and caught.value.file == hub.url("/list")
    for limit in (-1, 1 << 40):
        with pytest.raises(ValueError, match="limit"):
            client.get(hub.url("/list"), limit)


def test_headers_of_a_page(hub, client):
    links = ['</a?cursor=x>; rel="next"', '</b>; rel="xet-auth"']
    said = {"Link": links, "ETag": '"v"', "X-Repo-Commit": "c" * 40, "X-Other": "y",
            "X-Amz-Bucket-Region": "eu-west-1"}  # fmt: skip
    hub.redirects["/list"] = lambda *_: (200, said, b"[]")
    body, headers = client.get(hub.url("/list"), 10, headers=True)
    assert body == b"[]" and headers.pop("date").endswith("GMT")
    assert headers == {"link": ", ".join(links), "etag": "v", "x-repo-commit": "c" * 40,
                       "x-amz-bucket-region": "eu-west-1"}  # fmt: skip
    said["Link"] = [f'</{n}{"l" * 2000}>; rel="next"' for n in range(5)]
    with pytest.raises(errors.RemoteError, match="Link"):  # a next page would be lost
        client.get(hub.url("/list"), 10)


@pytest.mark.parametrize("kind", [k for k in AGAIN + ODD if k not in OF_RANGES])
def test_two_faults_pass_unseen(hub, kind):
    with HttpClientOf(FAST | {"stall_time": 0.1}) as client:
        hub.fault(kind, 2)
        assert client.get(hub.url("/list"), len(PAGE)) == PAGE


@pytest.mark.parametrize("kind", [k for k in AGAIN + ODD + list(FATAL) if k not in OF_RANGES])
def test_a_fault_without_end(hub, kind):
    expected = errors.RemoteError if kind in ODD else errors.RemoteTimeoutError
    alive = live_objects()
    with HttpClientOf(SHORT | {"stall_time": 0.05}) as client:
        hub.fault(kind, None)
        with pytest.raises(FATAL.get(kind, expected)) as caught:
            client.get(hub.url("/list"), len(PAGE))
        assert type(caught.value) is FATAL.get(kind, expected)
    assert live_objects() == alive


def test_a_range_instead_of_a_page(hub, client):
    hub.redirects["/list"] = lambda *_: (206, {"Content-Range": "bytes 0-1/2"}, b"[]")
    with pytest.raises(errors.RemoteError, match="a range instead"):
        client.get(hub.url("/list"), 10)


def test_nothing_of_a_page_is_remembered(hub, client):
    url = hub.url("/list")
    assert client.get(url, len(PAGE)) == PAGE
    hub.files["/list"], hub.etags["/list"] = b"[]", "another"
    assert client.get(url, len(PAGE)) == b"[]"


def test_pages_keep_the_rules_of_tokens_and_redirects(hub, far):
    hub.redirects["/within"] = lambda *_: (307, {"Location": "/list"})
    hub.redirects["/away"] = lambda *_: (302, {"Location": far.url("/list")})
    with client_of(**NEAR, token=CANARY, token_origin=hub.origin) as client:
        assert client.get(hub.url("/within"), len(PAGE)) == PAGE
        assert client.get(hub.url("/away"), len(PAGE)) == PAGE
        assert client.get(far.url("/list"), len(PAGE)) == PAGE
    assert all(seen.headers["Authorization"] == f"Bearer {CANARY}" for seen in hub.log)
    assert [seen.path for seen in hub.log] == ["/within", "/list", "/away"]
    assert len(far.log) == 2 and not any("Authorization" in seen.headers for seen in far.log)
    with client_of(**FAST) as client, pytest.raises(errors.RemoteError, match="private address"):
        client.get(hub.url("/away"), len(PAGE))


def test_the_hubs_name_of_an_error(hub, client):
    hub.redirects["/list"] = lambda *_: (404, {"X-Error-Code": "RevisionNotFound"}, b"no")
    with pytest.raises(errors.NotFoundError, match=r"no such file \(RevisionNotFound\)"):
        client.get(hub.url("/list"), 10)


def test_what_a_hub_says_of_a_file(hub, far):
    said = {"X-Repo-Commit": "c" * 40, "X-Linked-Size": str(len(PAGE)), "X-Xet-Hash": "e" * 64}
    lfs = said | {"X-Linked-ETag": f'"{"a" * 64}"'}
    hub.redirects["/renamed"] = lambda *_: (307, {"Location": "/lfs"})
    hub.redirects["/lfs"] = lambda *_: (302, lfs | {"Location": far.url("/list")})
    hub.redirects["/xet"] = lambda *_: (302, said | {"Location": far.url("/list")})
    facts = {"x-repo-commit": "c" * 40, "x-linked-size": len(PAGE), "x-xet-hash": "e" * 64}
    with client_of(**NEAR) as client:
        for _ in range(2):  # the second asks the target at once
            info = client.size(hub.url("/renamed"))
            assert {k: v for k, v in info.items() if k.startswith("x-")} == facts | {
                "x-linked-etag": "a" * 64
            }
            info = client.size(hub.url("/xet"))
            assert {k: v for k, v in info.items() if k.startswith("x-")} == facts
        assert info["etag"] == "e" * 64
    assert len(hub.log) == 3
