"""Signed requests to S3: what is sent, to whom, and what answers teach; signatures are checked by a
second implementation, and by moto where it is installed.
"""

import datetime
import hashlib
import hmac
import re
import time
from email.utils import formatdate
from urllib.parse import quote, unquote

import pytest
from reelpool import errors
from reelpool._core import HttpClient, live_objects
from test_http import DATA, FAST, SHORT
from test_http_redirects import CANARY, NEAR, client_of, one_of, two_origins

ACCESS, SECRET, SESSION = "AK-EXAMPLE", "secret-7d1c-key", "session-90aa-token"
KEYS = {"s3_access_key": ACCESS, "s3_secret_key": SECRET}
EMPTY = hashlib.sha256(b"").hexdigest()
ODD_NAMES = (
    "a b", "a+b", "\u00fcn\u00ef/c\u00f6d\u00e9", "per%20cent", "q?x=1&y",
    "a=b;c,d:e@f$!*'()~", "#tag",
)  # fmt: skip


def signature_of(seen, secret=SECRET):
    """The signature that a request must have, by Amazon's description."""
    credential, names, _ = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=(\S+?),SignedHeaders=(\S+?),Signature=([0-9a-f]{64})",
        seen.headers["Authorization"],
    ).groups()
    scope = credential.split("/", 1)[1]
    headers = {name.lower(): value for name, value in seen.headers.items()}
    pairs = [pair.partition("=")[::2] for pair in seen.query.split("&") if pair]
    encoded = sorted((quote(unquote(k), safe=""), quote(unquote(v), safe="")) for k, v in pairs)
    canonical = "\n".join(
        [
            "GET",
            quote(seen.path, safe="/~"),
            "&".join(f"{k}={v}" for k, v in encoded),
            *(f"{name}:{headers[name]}" for name in names.split(";")),
            "",
            names,
            EMPTY,
        ]
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    text = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{digest}"
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def check_signature(seen, region="us-east-1", session=None):
    assert seen.headers["Authorization"].endswith(f"Signature={signature_of(seen)}")
    assert f"={ACCESS}/" in seen.headers["Authorization"]
    assert f"/{region}/s3/aws4_request," in seen.headers["Authorization"]
    assert seen.headers["x-amz-content-sha256"] == EMPTY
    assert seen.headers.get("x-amz-security-token") == session
    signed_names = re.search("SignedHeaders=([^,]*)", seen.headers["Authorization"]).group(1)
    assert ("x-amz-security-token" in signed_names.split(";")) == (session is not None)


@pytest.fixture(scope="module")
def pair():
    files = {"/bucket/f": DATA} | {f"/bucket/{name}": name.encode() for name in ODD_NAMES}
    with two_origins(files, {"/blob": DATA}) as both:
        yield both


s3, far = one_of("pair", 0), one_of("pair", 1)


def test_every_request_is_signed(s3):
    with client_of(**FAST, **KEYS, s3_origin=s3.origin + "/bucket") as client:
        assert client.read(s3.url("/bucket/f"), 5, 100) == DATA[5:105]
        s3.fault("s503", 1)
        assert client.size(s3.url("/bucket/f"))["size"] == len(DATA)
        assert client.get(s3.url("/bucket/f") + "?prefix=a%2Fb&list-type=2", len(DATA)) == DATA
    assert len(s3.log) == 4
    for seen in s3.log:
        check_signature(seen)
        sent = datetime.datetime.strptime(seen.headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
        assert abs(sent.replace(tzinfo=datetime.timezone.utc).timestamp() - time.time()) < 300
    with client_of(**FAST, **KEYS, s3_origin=s3.origin, s3_session_token=SESSION,
                   s3_region="eu-west-3") as client:  # fmt: skip
        client.read(s3.url("/bucket/f"), 5, 100)
    check_signature(s3.log[-1], "eu-west-3", SESSION)


def test_odd_names(s3):
    with client_of(**FAST, **KEYS, s3_origin=s3.origin) as client:
        for name in ODD_NAMES:
            data = name.encode()
            assert client.read(s3.url("/bucket/" + quote(name)), 0, len(data)) == data
            check_signature(s3.log[-1])


def test_the_version_is_asked_for(s3):
    etag = s3.etags["/bucket/f"]
    for keys in (KEYS, {}):  # without keys too: anonymous
        s3.log.clear()
        with client_of(**FAST, **keys, s3_origin=s3.origin) as client:
            client.read(s3.url("/bucket/f"), 0, 10)
            client.read(s3.url("/bucket/f"), 0, 10)
            client.read(s3.url("/bucket/f"), 0, 10, len(DATA), etag)
            with pytest.raises(errors.DatasetChangedError):
                client.read(s3.url("/bucket/f"), 0, 10, len(DATA), 'quo"ted')
            s3.fault("s412", 3)
            with pytest.raises(errors.DatasetChangedError):
                client.read(s3.url("/bucket/f"), 0, 10, len(DATA), etag)
        asked = [seen.headers.get("If-Match") for seen in s3.log]
        assert asked[:3] == [None, f'"{etag}"', f'"{etag}"'] and asked[3:6] == [None] * 3
        assert all(("Authorization" in seen.headers) == bool(keys) for seen in s3.log)
    with client_of(**FAST) as client:
        client.read(s3.url("/bucket/f"), 0, 10, len(DATA), etag)
    assert "If-Match" not in s3.log[-1].headers


def test_signatures_go_to_their_origin_alone(s3, far):
    s3.redirects["/within"] = lambda *_: (307, {"Location": "/bucket/f"})
    s3.redirects["/away"] = lambda *_: (302, {"Location": far.url("/blob") + "?Expires=9"})
    s3.redirects["/back"] = lambda *_: (302, {"Location": far.url("/return")})
    far.redirects["/return"] = lambda *_: (302, {"Location": s3.url("/bucket/f")})
    with client_of(**NEAR, **KEYS, s3_session_token=SESSION, s3_origin=s3.origin, token=CANARY,
                   token_origin=far.origin) as client:  # fmt: skip
        for path in ("/bucket/f", "/within", "/within", "/away", "/back"):
            client.read(s3.url(path), 0, 10)
        client.read(far.url("/blob"), 0, 10)
    secret = re.compile("amz|authorization|if-match", re.I)
    assert len(far.log) == 3
    for seen in far.log[:2]:
        assert not any(map(secret.match, seen.headers)), seen
    assert far.log[2].headers["Authorization"] == f"Bearer {CANARY}"
    assert not any(name.startswith("x-amz") for name in far.log[2].headers)
    *within, back = s3.log
    assert len(within) == 6 and "Authorization" not in back.headers
    for seen in within:
        check_signature(seen, session=SESSION)


def refuse(status, **headers):
    body = b"<Error><Code>%s</Code></Error>"
    code = headers.pop("code", "AccessDenied").encode()
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, lines, body % code


@pytest.mark.parametrize("status", [301, 400, 403])
def test_another_region(s3, status):
    def bucket(server, seen):
        if "/eu-west-1/" in seen.headers["Authorization"]:
            return 206, {"Content-Range": f"bytes 0-9/{len(DATA)}"}, DATA[:10]
        return refuse(status, x_amz_bucket_region="eu-west-1", code="AuthorizationHeaderMalformed")

    s3.redirects["/b"] = bucket
    with client_of(**FAST, **KEYS, s3_origin=s3.origin) as client:
        assert client.read(s3.url("/b"), 0, 10) == DATA[:10]
        assert client.read(s3.url("/b"), 0, 10) == DATA[:10]
        assert len(s3.log) == 3  # the second knows
        check_signature(s3.log[-1], "eu-west-1")
        s3.redirects["/b"] = lambda *_: refuse(status, x_amz_bucket_region="elsewhere-1")
        with pytest.raises(
            (errors.RemoteError, errors.AuthError), match=r"AccessDenied.*region is elsewhere-1"
        ):
            client.read(s3.url("/b"), 0, 10)
        assert len(s3.log) == 5  # once
        s3.redirects["/b"] = lambda *_: refuse(status, x_amz_bucket_region="a/../b\r")
        with pytest.raises((errors.RemoteError, errors.AuthError)):
            client.read(s3.url("/b"), 0, 10)
        assert len(s3.log) == 6


@pytest.mark.parametrize("hours", [-7, 2])
def test_another_clock(s3, hours):
    def bucket(server, seen):
        sent = datetime.datetime.strptime(seen.headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
        now = time.time() + hours * 3600
        if abs(sent.replace(tzinfo=datetime.timezone.utc).timestamp() - now) < 60:
            return 206, {"Content-Range": f"bytes 0-9/{len(DATA)}"}, DATA[:10]
        return refuse(403, Date=formatdate(now, usegmt=True), code="RequestTimeTooSkewed")

    s3.redirects["/b"] = bucket
    with client_of(**FAST, **KEYS, s3_origin=s3.origin) as client:
        for _ in range(2):
            assert client.read(s3.url("/b"), 0, 10) == DATA[:10]
        assert len(s3.log) == 3
        later = iter(range(7, 1000, 7))  # a clock that runs away
        s3.redirects["/b"] = lambda *_: refuse(
            403, Date=formatdate(time.time() + next(later) * 36000, usegmt=True), code="X1"
        )
        with pytest.raises(errors.AuthError, match=r"\(X1\)"):
            client.read(s3.url("/b"), 0, 10)
        assert len(s3.log) == 5


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "SignatureDoesNotMatch", errors.AuthError),
        (400, "ExpiredToken", errors.AuthError),
        (400, "InvalidArgument", errors.RemoteError),
        (404, "NoSuchKey", errors.NotFoundError),
        (404, "<b>", errors.NotFoundError),
    ],
)
def test_errors_name_the_code_and_no_secret(s3, status, code, expected):
    s3.redirects["/b"] = lambda *_: refuse(status, code=code)
    with client_of(**SHORT, **KEYS, s3_origin=s3.origin, s3_session_token=SESSION) as client:
        with pytest.raises(expected) as caught:
            client.read(s3.url("/b") + "?q=hidden", 0, 10)
        assert type(caught.value) is expected and len(s3.log) == 1
        shown = f"{caught.value!r} {vars(caught.value)} {client!r} {client.stats()}"
    assert (f"({code})" in str(caught.value)) == code.isalpha()
    for secret in (SECRET, SESSION, "Signature=", "hidden", ACCESS):
        assert secret not in shown


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"s3_access_key": "a", "s3_origin": "https://h"}, "together"),
        ({"s3_session_token": "a", "s3_origin": "https://h"}, "together"),
        (KEYS, "origin"),
        (KEYS | {"s3_origin": "http://example.org"}, "allow_http"),
        (KEYS | {"s3_origin": "https://h", "s3_region": "eu west"}, "region"),
        (KEYS | {"s3_origin": "https://h", "s3_session_token": "a\r\nb"}, "bytes"),
        ({"s3_origin": "https://h", "s3_access_key": "k" * 300, "s3_secret_key": SECRET}, "long"),
        (KEYS | {"s3_origin": "https://h", "token": CANARY, "token_origin": "https://h:443/x"},
         "same origin"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_honoured(options, part):
    alive = live_objects()
    with pytest.raises(ValueError, match=part) as caught:
        HttpClient(**options)
    assert SECRET not in str(caught.value) and CANARY not in str(caught.value)
    assert live_objects() == alive


@pytest.fixture(scope="module")
def bucket():
    """Origin, key and secret of a bucket of moto, which verifies signatures."""
    server = pytest.importorskip("moto.server", reason="moto is not installed (extra test-s3)")
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed (extra test-s3)")
    import requests

    moto = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    origin = f"http://{host}:{port}"
    common = {"endpoint_url": origin, "region_name": "us-east-1"}
    iam = boto3.client("iam", aws_access_key_id="x", aws_secret_access_key="x", **common)
    iam.create_user(UserName="u")
    iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument="""{"Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}""")  # fmt: skip
    key = iam.create_access_key(UserName="u")["AccessKey"]
    s3 = boto3.client("s3", aws_access_key_id="x", aws_secret_access_key="x", **common)
    s3.create_bucket(Bucket="bucket")
    for name in ODD_NAMES:
        s3.put_object(Bucket="bucket", Key=name, Body=name.encode())
    s3.put_object(Bucket="bucket", Key="f", Body=DATA)
    requests.post(f"{origin}/moto-api/reset-auth", data="0", timeout=20).raise_for_status()
    yield origin, {"s3_access_key": key["AccessKeyId"], "s3_secret_key": key["SecretAccessKey"]}
    moto.stop()


def test_moto_takes_our_signatures(bucket):
    origin, keys = bucket
    with client_of(**FAST, **keys, s3_origin=origin) as client:
        info = client.size(f"{origin}/bucket/f")
        assert info["size"] == len(DATA) and info["etag"] == hashlib.md5(DATA).hexdigest()
        assert client.read(f"{origin}/bucket/f", 7, 1000, len(DATA), info["etag"]) == DATA[7:1007]
        for name in ODD_NAMES:
            data = name.encode()
            assert client.read(f"{origin}/bucket/{quote(name)}", 1, len(data) - 1) == data[1:]
        listed = client.get(f"{origin}/bucket?list-type=2&prefix={quote('a+b', safe='')}", 1 << 20)
        assert b"<Key>a+b</Key>" in listed and listed.count(b"<Key>") == 1
        with pytest.raises(errors.NotFoundError, match="NoSuchKey"):
            client.read(f"{origin}/bucket/absent", 0, 1)
        with pytest.raises(errors.DatasetChangedError, match=r"412.*PreconditionFailed"):
            client.read(f"{origin}/bucket/f", 0, 10, len(DATA), "0" * 32)


def test_moto_refuses_another_secret(bucket):
    origin, keys = bucket
    for wrong in ({"s3_secret_key": SECRET}, {"s3_access_key": ACCESS}):
        with client_of(**FAST, **keys | wrong, s3_origin=origin) as client:
            with pytest.raises(errors.AuthError, match="403") as caught:
                client.read(f"{origin}/bucket/f", 0, 10)
            assert client.stats()["requests"] == 1
        assert SECRET not in str(caught.value) and keys["s3_secret_key"] not in str(caught.value)
