"""storage_options: each key has its effect or an error; secrets stay; where ranges are kept."""

import pickle
import shutil
import signal
import threading
from types import SimpleNamespace

import pytest
from reelpool import remote_node_cache
from reelpool.errors import ClosedError
from reelpool.remote_manifest import Entry, Manifest, Manifests, folder_of, make_entry
from reelpool.remote_node_cache import file_system, node_cache
from reelpool.remote_options import client_keywords, is_private, parse_options
from reelpool.remote_root import at_once, cache_key
from reelpool.remote_root_http import HttpRoot

CANARY = "".join(["s3cr3t", "Canary"])


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE",
                 "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HF_HUB_OFFLINE"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("REELPOOL_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "given, cls",
    [
        ({"colour": 1}, TypeError),
        ({"network_timeout": 0}, ValueError),
        ({"network_timeout": "5"}, ValueError),
        ({"network_timeout": True}, ValueError),
        ({"max_connections": 0}, ValueError),
        ({"max_connections": 2.5}, ValueError),
        ({"disk_cache": -1}, ValueError),
        ({"disk_cache": "much"}, ValueError),
        ({"disk_cache": 1.5}, TypeError),
        ({"data_download_limit": "x"}, ValueError),
        ({"proxy": "http://h\n"}, ValueError),
        ({"ca_file": 5}, ValueError),
        ({"secret_access_key": CANARY + "\n"}, ValueError),
        ({"region": ""}, ValueError),
    ],
)
def test_what_cannot_be_honoured(given, cls):
    with pytest.raises(cls, match=next(iter(given))) as caught:
        parse_options(given)
    assert CANARY not in str(caught.value)


def test_values():
    options = parse_options({"disk_cache": "2GiB", "data_download_limit": "1kB"})
    assert (options.disk_cache, options.data_download_limit) == (2 << 30, 1000)
    assert parse_options({"disk_cache": False}).disk_cache == 0
    assert parse_options({"disk_cache": "auto"}) == parse_options({}) == parse_options(None)
    assert parse_options({"offline": True}).is_offline and not parse_options({}).is_offline


def test_secrets_do_not_travel():
    secret = {"proxy": f"http://u:{CANARY}@p:1", "access_key_id": CANARY,
              "secret_access_key": CANARY, "session_token": CANARY}  # fmt: skip
    options = parse_options({**secret, "region": "eu-west-1", "network_timeout": 5})
    copy = pickle.loads(pickle.dumps(options))
    assert CANARY not in repr(options) and CANARY.encode() not in pickle.dumps(options)
    assert copy == parse_options({"region": "eu-west-1", "network_timeout": 5})
    root = HttpRoot.of_url("https://h/x", options)
    assert CANARY.encode() not in pickle.dumps(root) and CANARY not in repr(vars(root))


def test_proxies_and_certificates(monkeypatch, tmp_path):
    pem = tmp_path / "ca.pem"
    pem.touch()
    plain = client_keywords("http://h/x", parse_options({}))
    assert not {"proxy", "no_proxy", "ca_file"} & set(plain)
    monkeypatch.setenv("HTTPS_PROXY", "http://secure:1")
    monkeypatch.setenv("http_proxy", "http://plain:2")
    monkeypatch.setenv("NO_PROXY", "a,b")
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    tls = client_keywords("https://h/x", parse_options({}))
    assert (tls["proxy"], tls["no_proxy"], tls["ca_file"]) == ("http://secure:1", "a,b", str(pem))
    assert client_keywords("http://h/x", parse_options({}))["proxy"] == "http://plain:2"
    other = tmp_path / "other.pem"
    other.touch()
    own = parse_options({"proxy": "http://mine:3", "ca_file": other, "network_timeout": 7})
    given = client_keywords("https://h/x", own)
    assert (given["proxy"], given["ca_file"]) == ("http://mine:3", str(other))
    assert given["network_timeout"] == 7 and "no_proxy" not in given
    with pytest.raises(ValueError, match="is not there"):
        client_keywords("https://h/x", parse_options({"ca_file": "/nowhere/ca.pem"}))


@pytest.mark.parametrize(
    "host, private",
    [("localhost", True), ("127.0.0.1", True), ("10.1.2.3", True), ("::1", True),
     ("8.8.8.8", False), ("huggingface.co", False), ("", False)],
)  # fmt: skip
def test_own_servers_may_lead_inside(host, private):
    assert is_private(host) == private
    url = f"http://[{host}]/" if ":" in host else f"http://{host}/"
    assert client_keywords(url, parse_options({}))["allow_private_hosts"] == private


# -- the node's cache --


def test_where_the_cache_is(tmp_path, monkeypatch):
    place = str(tmp_path / "cache/obj")
    free = {"free": 100 * 10**9}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(**free))
    monkeypatch.setattr(remote_node_cache, "file_system", lambda path: "ext4")
    assert node_cache("auto") == (place, 25 * 10**9)
    assert node_cache(0) == (None, 0) and node_cache(123) == (place, 123)
    free["free"] = 19 * 10**9
    assert node_cache("auto") == (None, 0) and node_cache(123) == (place, 123)
    free["free"] = 100 * 10**9
    for kind in ("nfs4", "lustre", "gpfs", "fuse.sshfs"):
        monkeypatch.setattr(remote_node_cache, "file_system", lambda path, kind=kind: kind)
        assert node_cache("auto") == (None, 0)
    told = HttpRoot.of_url("http://h/x", parse_options({"disk_cache": 5, "max_connections": 3}))
    assert told.remote_options() == {
        "cache_dir": place, "cache_bytes": 5, "read_ahead_bytes": 256 << 20,
        "max_connections": 3, "offline": False,
    }  # fmt: skip


def test_file_systems(tmp_path):
    mounts = tmp_path / "mountinfo"
    (tmp_path / "a b/c").mkdir(parents=True)
    point = str(tmp_path / "a b").replace(" ", "\\040")
    mounts.write_text(
        "20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        f"21 20 0:40 / {point} rw - nfs4 server:/x rw\n"
        "nonsense\n"
    )
    assert file_system(tmp_path / "a b/c", str(mounts)) == "nfs4"
    assert file_system(tmp_path / "a b", str(mounts)) == "nfs4"
    assert file_system(tmp_path, str(mounts)) == "ext4"
    assert file_system(tmp_path, str(tmp_path / "absent")) == ""


@pytest.mark.parametrize(
    "version, key",
    [
        ("sha256-" + "ab" * 32, "sha256-" + "ab" * 32),
        ("sha256-" + "12" * 32, "sha256-" + "12" * 32),
        ("xet-" + "0f" * 32, "xet-" + "0f" * 32),
        ("sha256-" + "AB" * 32, None),
        ("xet-../../x", None),
        ("etag-x", None),
        ("", None),
    ],
)
def test_cache_keys(version, key):
    found = cache_key("http://h/x", Entry(5, version))
    if key is not None:
        assert found == key == cache_key("http://elsewhere/y", Entry(5, version))
        return
    assert found.startswith("loc-") and len(found) == 68
    entries = [("y", 5, version), ("x", 6, version), ("x", 5, version + "z")]
    others = [cache_key(f"http://h/{name}", Entry(n, text)) for name, n, text in entries]
    assert found not in others and len(set(others)) == 3


# -- manifests --


def test_manifests_are_kept_and_checked(tmp_path):
    url = "https://h/x"
    files = {"data/a": Entry(5, "etag-x", False), "data/b": Entry(0, "")}
    manifest = Manifest(url)
    manifest.put({"data": files})
    assert manifest.pin is None and Manifests(url).load(None) is None
    manifest.pin_to("one")
    assert Manifest(url, "one").folder("data") == files
    assert Manifest(url, "two").folder("data") is None
    manifest.put({"data": {"data/c": Entry(1, "")}}, add=True)
    again = Manifest(url)
    assert again.load_latest() and set(again.folder("data")) == {"data/a", "data/b", "data/c"}
    (kept,) = (tmp_path / "cache/manifest").rglob("*.json")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    data = kept.read_bytes()
    kept.write_bytes(data.replace(b"data/a", b"../../a"))
    assert Manifest(url, "one").folder("data") is None
    kept.write_bytes(data)
    assert Manifest(url, "one").folder("data") is not None
    kept.parent.chmod(0o777)
    assert Manifest(url, "one").folder("data") is None


def test_a_manifest_that_cannot_be_kept_is_no_error(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("REELPOOL_CACHE", str(tmp_path / "file"))
    manifest = Manifest("https://h/x")
    manifest.put({"data": {"data/a": Entry(1, "")}})
    manifest.pin_to("one")
    assert manifest.entry("data/a") == Entry(1, "") and "is not kept" in caplog.text


def test_entries():
    assert folder_of("meta/info.json") == "meta" and folder_of("data/x/y") == "data"
    assert folder_of("videos/cam/chunk-000/f.mp4") == "videos/cam"
    assert make_entry(-1, "") is make_entry("5", "") is make_entry(5, "md5-x") is None
    assert make_entry(True, "") is make_entry(5, "etag-a\nb") is None
    assert make_entry(5, "date-Mon, 1 Jan").last_modified == "Mon, 1 Jan"


def test_the_first_error_ends_the_others():
    done, closed = [], []

    def work(item):
        if item == 3:
            raise KeyError(item)
        done.append(item)
        return item * 2

    assert at_once(work, [0, 1, 2], lambda: closed.append(1), 2) == [0, 2, 4] and not closed
    with pytest.raises(KeyError):
        at_once(work, range(1000), lambda: closed.append(1), 2)
    assert closed == [1] and len(done) < 1000


def test_the_cause_is_told():
    closed = threading.Event()

    def work(item):
        if item == 1:
            raise KeyError(item)
        assert closed.wait(30)
        raise ClosedError("ended")

    with pytest.raises(KeyError):
        at_once(work, [0, 1, 2], closed.set, 3)


def test_ctrl_c_ends_them():
    begun, ended = threading.Event(), threading.Event()

    def work(item):
        begun.set()
        assert ended.wait(30)

    def interrupt():
        assert begun.wait(30)
        signal.raise_signal(signal.SIGINT)

    timer = threading.Thread(target=interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        at_once(work, [0, 1], ended.set, 2)
    timer.join()
    assert ended.is_set()
