"""Redirects, signed URLs, tokens and certificates: where the HTTP client goes, and what it says.

Two origins, as a hub and its CDN: 127.0.0.1 and localhost.
"""

import contextlib
import logging
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from reelpool import errors
from reelpool._core import HttpClient
from test_http import AGAIN, CHANGED, DATA, FAST, FATAL, ODD, SHORT, run_fork

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))

from fault_server import FaultServer
from server_pair import one_of, two_origins

CANARY = "canary-4f6d-token"
NEAR = FAST | {"allow_private_hosts": True}


@pytest.fixture(scope="module")
def pair():
    with two_origins({"/f": DATA}, {"/blob": DATA}) as both:
        yield both


hub, cdn = one_of("pair", 0), one_of("pair", 1)


@contextlib.contextmanager
def client_of(**options):
    client = HttpClient(**options)
    yield client
    client.close()


def to(location, **headers):
    return lambda server, seen: (302, {"Location": location} | headers)


def sign(hub, cdn, life_s=3600, linked=None, **headers):
    """/signed of the hub leads to a URL of the CDN that ends after life_s."""
    serial = iter(range(1000000))

    def redirect(server, seen):
        query = f"Expires={int(time.time()) + life_s}&Signature=SIGNED&n={next(serial)}"
        extra = {"X-Linked-Size": str(len(DATA)), "X-Linked-ETag": f'"{linked}"'} if linked else {}
        return 302, {"Location": cdn.url("/blob") + "?" + query} | extra | headers

    hub.redirects["/signed"] = redirect
    return hub.url("/signed")


def test_a_chain_within_the_origin(hub):
    for n in range(5):
        hub.redirects[f"/hop{n}"] = to(f"hop{n + 1}")  # relative
    hub.redirects["/hop5"] = to("/f")
    with client_of(**FAST) as client:
        assert client.read(hub.url("/hop1"), 3, 100) == DATA[3:103]
        assert client.read(hub.url("/hop1"), 5, 100) == DATA[5:105]
        assert len(hub.log) == 7  # the second asks the target at once
        with pytest.raises(errors.RemoteError, match="too many redirects"):
            client.read(hub.url("/hop0"), 3, 100)


@pytest.mark.parametrize(
    ("location", "part"),
    [
        ("/loop", "circle"),
        ("file:///etc/passwd", "neither http nor https"),
        ("http://user:pw@localhost/x", "user name"),
        ("http://169.254.169.254/latest/meta-data", "private address"),
        ("http://[::ffff:169.254.169.254]/latest", "private address"),
        ("http://127.0.0.1:1/x", "private address"),
        ("http://2130706433:1/x", "private address"),
        ("http://[::1]:1/x", "private address"),
        ("", "circle"),
        ("/" + "x" * 20_000, "contradictory|without one target|longer"),
        (["/a", "/b"], "without one target"),
        (None, "without one target"),
    ],
)
def test_redirects_that_are_refused_at_once(hub, location, part):
    hub.redirects["/loop"] = to(location)
    with (
        client_of(**FAST) as client,
        pytest.raises(errors.RemoteError, match=part) as caught,
    ):
        client.read(hub.url("/loop"), 0, 10)
    assert type(caught.value) is errors.RemoteError and len(hub.log) == 1
    assert "pw" not in str(caught.value)


def test_link_local_addresses_are_never_asked(hub):
    hub.redirects["/to"] = to("http://169.254.169.254/latest")
    with client_of(**NEAR) as client, pytest.raises(errors.RemoteError, match="private address"):
        client.read(hub.url("/to"), 0, 10)


def test_a_kept_connection_is_no_way_around_the_address_rule(hub, cdn):
    """The CDN may be asked for its own files; a redirect to it is refused all the same."""
    url = sign(hub, cdn)
    with client_of(**FAST) as client:
        assert client.read(cdn.url("/blob"), 0, 10) == DATA[:10]
        with pytest.raises(errors.RemoteError, match="private address"):
            client.read(url, 0, 10)
    assert len(cdn.log) == 1


def test_a_signed_url_is_resolved_once(hub, cdn):
    url = sign(hub, cdn)
    chance = random.Random(4)
    places = [(chance.randrange(len(DATA) - 500), 500) for _ in range(300)]
    hub.latency_s = 0.05  # the others come while the first is resolving
    with client_of(**NEAR) as client, ThreadPoolExecutor(8) as pool:
        read = pool.map(lambda place: client.read(url, *place), places)
        assert all(got == DATA[o : o + n] for got, (o, n) in zip(read, places))
        assert client.stats()["resolves"] == 1
    assert len(hub.log) == 1 and len(cdn.log) == 300


def test_a_signed_url_that_runs_out(hub, cdn):
    """Its life counts by the server's clock, and 80 % of it is used."""
    url = sign(hub, cdn, life_s=2)
    with client_of(**NEAR) as client:
        client.read(url, 0, 10)
        client.read(url, 0, 10)
        assert len(hub.log) == 1
        threading.Event().wait(2.0)
        client.read(url, 0, 10)
        assert len(hub.log) == 2
        sign(hub, cdn, life_s=-5)  # over before it is there: every read resolves
        client.read(url, 0, 10)
    sign(hub, cdn, life_s=0)
    with client_of(**NEAR) as client:
        for n in range(3):
            assert client.read(url, n, 10) == DATA[n : n + 10]
        assert client.stats()["resolves"] == 3


@pytest.mark.parametrize("kind", ["s400", "s401", "s403", "s404", "s410"])
def test_a_signed_url_that_is_refused(hub, cdn, kind):
    url = sign(hub, cdn)
    with client_of(**NEAR) as client:
        client.read(url, 0, 10)
        cdn.fault(kind, 3)  # the known one, and two fresh ones
        assert client.read(url, 5, 10) == DATA[5:15]
        assert len(hub.log) == 4
        cdn.fault(kind, None)
        missing = kind in ("s404", "s410")
        expected = errors.NotFoundError if missing else errors.AuthError
        with pytest.raises(expected) as caught:
            client.read(url, 5, 10)
        assert len(hub.log) == 7
    assert "SIGNED" not in str(caught.value) + repr(vars(caught.value))
    assert caught.value.file == hub.url("/signed")


def test_the_hub_tells_the_version_the_cdn_has_its_own(hub, cdn):
    url = sign(hub, cdn, linked="sha-1")
    with client_of(**NEAR) as client:
        info = client.size(url)
        assert (info["size"], info["etag"]) == (len(DATA), "sha-1")
        assert client.read(url, 0, 10, len(DATA), "sha-1") == DATA[:10]
        cdn.etags["/blob"] = "stored anew"  # the CDN's name of the same bytes
        assert client.read(url, 0, 10, len(DATA), "sha-1") == DATA[:10]
        sign(hub, cdn, linked="sha-2", life_s=0)
        cdn.etags["/blob"] = "another"
        with pytest.raises(errors.DatasetChangedError, match="another version"):
            client.read(url, 0, 10)
    with client_of(**NEAR) as client, pytest.raises(errors.DatasetChangedError, match="size"):
        client.read(url, 0, 5, size=5)


def test_a_token_goes_to_its_origin_alone(hub, cdn):
    sign(hub, cdn)
    hub.redirects["/within"] = to("/f")
    hub.redirects["/back"] = to(cdn.url("/return"))
    cdn.redirects["/return"] = to(hub.url("/f"))
    token = {"token": CANARY, "token_origin": hub.origin}
    with client_of(**NEAR, **token) as client:
        for path in ("/f", "/within", "/within", "/signed", "/back"):
            client.read(hub.url(path), 0, 10)
        client.read(cdn.url("/blob"), 0, 10)
    assert all("Authorization" not in seen.headers for seen in cdn.log) and len(cdn.log) == 3
    sent = [(seen.path, seen.headers.get("Authorization")) for seen in hub.log]
    bearer = f"Bearer {CANARY}"
    assert sent == [
        ("/f", bearer),
        ("/within", bearer),
        ("/f", bearer),
        ("/f", bearer),
        ("/signed", bearer),
        ("/back", bearer),
        ("/f", None),  # a foreign origin sent us here
    ]
    with client_of(**NEAR, token=CANARY, token_origin=hub.origin.replace("127.0.0.1", "localhost"))\
            as client:  # fmt: skip
        client.read(hub.url("/f"), 0, 10)  # the same machine and port, another host
    assert "Authorization" not in hub.log[-1].headers


def test_no_fault_brings_the_token_to_light(hub, cdn, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    url = sign(hub, cdn)
    shown = []
    for server in (hub, cdn):
        for kind in AGAIN[:2] + ODD + CHANGED + list(FATAL):
            server.fault(kind, None)
            with client_of(
                **SHORT, allow_private_hosts=True, token=CANARY, token_origin=hub.origin
            ) as client:
                try:
                    client.read(url, 0, 100)
                except errors.ReelpoolError as error:
                    shown += [str(error), repr(error), repr(vars(error)), repr(error.__context__)]
                    shown.append(str(pickle.dumps(error)))
                shown += [repr(client), repr(client.stats())]
                with pytest.raises(TypeError):
                    pickle.dumps(client)
            server.calm()
    assert len(shown) > 100
    out = capfd.readouterr()
    everything = "\n".join([*shown, caplog.text, out.out, out.err])
    assert CANARY not in everything and "SIGNED" not in everything
    assert all(CANARY not in repr(seen) for seen in cdn.log)


def test_the_environment_is_not_read(hub, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with client_of(**SHORT) as client:
        assert client.read(hub.url("/f"), 0, 10) == DATA[:10]


def test_a_proxy_that_is_asked_for(hub):
    with client_of(**FAST, proxy=hub.origin, no_proxy="localhost") as client:
        assert client.read("http://far.invalid/f", 0, 10) == DATA[:10]
    assert hub.log[-1].headers["Host"] == "far.invalid"


def openssl(*words, cwd):
    subprocess.run(["openssl", *words], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Folder of a throwaway CA (ca.pem) and of certificates NAME.pem with NAME.key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program")
    folder = tmp_path_factory.mktemp("certificates")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Test CA",
            "-days", "2", cwd=folder)  # fmt: skip
    for name, host, days in (("good", "DNS:localhost,IP:127.0.0.1", 2),
                             ("wrong", "DNS:elsewhere.invalid", 2),
                             ("old", "DNS:localhost,IP:127.0.0.1", 0)):  # fmt: skip
        (folder / f"{name}.ext").write_text(f"subjectAltName={host}\n")
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=x",
                cwd=folder)  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-days", str(days), "-extfile", f"{name}.ext",
                "-out", f"{name}.pem", cwd=folder)  # fmt: skip
    time.sleep(1.1)  # "old" ends within the second it was made
    return folder


def tls_server(certificates, name, files):
    return FaultServer(files, tls=(certificates / f"{name}.pem", certificates / f"{name}.key"))


def test_tls(certificates):
    ca = str(certificates / "ca.pem")
    with tls_server(certificates, "good", {"/f": DATA}) as server:
        with client_of(**FAST, ca_file=ca) as client:
            server.fault("cut", 2)
            assert client.read(server.url("/f"), 0, 50_000) == DATA[:50_000]
        with FaultServer({"/f": DATA}) as plain, client_of(**NEAR, ca_file=ca) as client:
            server.redirects["/down"] = to(plain.url("/f"))
            with pytest.raises(errors.RemoteError, match="https to http"):
                client.read(server.url("/down"), 0, 10)
            assert not plain.log
        run_fork(server.url("/f"), ca)
    assert len({seen.port for seen in server.log if seen.path == "/f"}) >= 6


@pytest.mark.parametrize("name", ["good", "wrong", "old"])
def test_a_certificate_that_cannot_be_verified(certificates, name):
    """Of an unknown authority, for another host, too old: an error at once, nothing sent."""
    ca = None if name == "good" else str(certificates / "ca.pem")
    with tls_server(certificates, name, {"/f": DATA}) as server:
        with (
            client_of(**FAST | {"network_timeout": 60}, ca_file=ca) as client,
            pytest.raises(errors.RemoteError, match=r"1 request\b") as caught,
        ):
            client.read(server.url("/f"), 0, 10)
        assert type(caught.value) is errors.RemoteError and not server.log
        with (
            client_of(**FAST | {"network_timeout": 60}, ca_file="/no/such/file") as client,
            pytest.raises(errors.RemoteError),
        ):
            client.read(server.url("/f"), 0, 10)


NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/error;
events {{ worker_connections 64; }}
http {{
  access_log {folder}/access; client_body_temp_path {folder}/t; proxy_temp_path {folder}/t;
  fastcgi_temp_path {folder}/t; uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;
  limit_req_zone $binary_remote_addr zone=slow:1m rate=20r/s; limit_req_status 429;
  split_clients "$request_id" $unlucky {{ 20% 1; * ""; }}
  server {{
    listen 127.0.0.1:{port}; root {folder}/www;
    location /limited/ {{ alias {folder}/www/; limit_rate 400k; }}
    location /one/ {{ alias {folder}/www/; max_ranges 1; }}
    location /none/ {{ alias {folder}/www/; max_ranges 0; }}
    location /often/ {{ alias {folder}/www/; limit_req zone=slow burst=2 nodelay; }}
    location /unlucky/ {{ alias {folder}/www/; if ($unlucky) {{ return 503; }} }}
    location /gone/ {{ return 444; }}
    location /gzip/ {{ alias {folder}/www/; gzip on; gzip_types *; gzip_min_length 1; }}
  }}
}}
"""


@pytest.fixture(scope="module")
def nginx(tmp_path_factory):
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    if not os.access(program, os.X_OK):
        pytest.skip("no nginx")
    folder = tmp_path_factory.mktemp("nginx")
    folder.chmod(0o755)
    (folder / "www").mkdir()
    (folder / "www" / "f.bin").write_bytes(DATA)
    with FaultServer({}) as free:
        port = free.port
    (folder / "conf").write_text(NGINX.format(folder=folder, port=port))
    process = subprocess.Popen(
        [program, "-p", str(folder), "-c", str(folder / "conf")], stderr=subprocess.PIPE, text=True
    )
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.communicate(timeout=20)


@pytest.mark.parametrize("place", ["", "limited/", "one/", "often/", "unlucky/", "gzip/"])
def test_nginx(nginx, place):
    url, chance = f"{nginx}/{place}f.bin", random.Random(1)
    with client_of(**FAST) as client:
        info = client.size(url)  # waits for nginx to listen
        assert info["size"] == len(DATA) and info["accepts_ranges"]
        places = [(chance.randrange(len(DATA) - 4000), 4000) for _ in range(30)]
        with ThreadPoolExecutor(4) as pool:
            read = list(pool.map(lambda p: client.read(url, *p, etag=info["etag"]), places))
        assert all(got == DATA[o : o + n] for got, (o, n) in zip(read, places))


def test_nginx_without_ranges(nginx):
    url = f"{nginx}/none/f.bin"
    with client_of(**SHORT) as client:
        assert not client.size(url)["accepts_ranges"]
        with pytest.raises(errors.RemoteError, match="whole file"):
            client.read(url, 0, 10)
        assert client.read(url, 0, len(DATA), size=len(DATA), whole=True) == DATA
        with pytest.raises(errors.RemoteTimeoutError):
            client.read(f"{nginx}/gone/f.bin", 0, 10)
        with pytest.raises(errors.NotFoundError):
            client.read(f"{nginx}/absent", 0, 10)
