"""Datasets in S3 buckets: credentials, regions, lists in pages; against moto, where it is."""

import pickle
import sys
from pathlib import Path

import pytest
from demo_sets import ROOT, STARTS, open_demo
from hub_sets import same_items
from reelpool import LeRobotDataset, StreamingLeRobotDataset, errors
from reelpool.remote_options import parse_options
from reelpool.remote_root_s3 import S3Root, find_keys
from test_remote_root_hub import VIDEOS, ranges, same_stream

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))

from hub_stand_in import files_of

CANARY = "/".join(["s3Canary", "that", "must", "not", "sing"])


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    """An environment that says nothing of AWS, proxies or being offline."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "REGION",
                 "DEFAULT_REGION", "ENDPOINT_URL", "ENDPOINT_URL_S3"):  # fmt: skip
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTP_PROXY", "http_proxy",
                 "ALL_PROXY", "all_proxy"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("REELPOOL_CACHE", str(tmp_path / "cache"))
    return tmp_path


# -- without a server --


@pytest.mark.parametrize(
    "options, base",
    [
        ({}, "https://robots.s3.us-east-1.amazonaws.com"),
        ({"region": "eu-west-3"}, "https://robots.s3.eu-west-3.amazonaws.com"),
        ({"endpoint_url": "http://minio:9000/"}, "http://minio:9000/robots"),
    ],
)
def test_addresses(options, base):
    root = S3Root.of_url("s3://robots/a b/c", parse_options({"anonymous": True, **options}))
    assert root.url == f"{base}/a%20b/c" == str(root.path)
    assert root._file_url("meta/x y") == f"{base}/a%20b/c/meta/x%20y"
    dotted = S3Root.of_url("s3://my.robots/", parse_options({"anonymous": True}))
    assert dotted.url == "https://s3.us-east-1.amazonaws.com/my.robots"


def test_regions_and_endpoints_of_the_environment(monkeypatch):
    options = parse_options({"anonymous": True})
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert "eu-north-1" in S3Root.of_url("s3://robots", options).url
    monkeypatch.setenv("AWS_REGION", "eu-south-1")
    assert "eu-south-1" in S3Root.of_url("s3://robots", options).url
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one:1")
    assert S3Root.of_url("s3://robots", options).url == "http://one:1/robots"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://two:2")
    assert S3Root.of_url("s3://robots", options).url == "http://two:2/robots"


@pytest.mark.parametrize(
    "url", ["s3://", "s3://b", "s3://robots//x", "s3://robots/../x", "s3://robots/x?a=abc"]
)
def test_malformed_urls(url):
    with pytest.raises(ValueError, match="use s3://BUCKET") as caught:
        S3Root.of_url(url, parse_options({}))
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["minio:9000", "http://a:abc@h", "ftp://h", "http://h?abc"])
def test_malformed_endpoints(endpoint):
    with pytest.raises(ValueError, match="endpoint_url") as caught:
        S3Root.of_url("s3://robots", parse_options({"endpoint_url": endpoint}))
    assert "abc" not in str(caught.value)


def test_where_credentials_come_from(bare, monkeypatch):
    with pytest.raises(errors.AuthError, match="anonymous"):
        find_keys(parse_options({}))
    assert find_keys(parse_options({"anonymous": True})) is None
    (bare / "credentials").write_text(
        "[default]\naws_access_key_id = D\naws_secret_access_key = d\n"
        "[work]\naws_access_key_id = W\naws_secret_access_key = w\naws_session_token = t\n"
    )
    (bare / "config").write_text("[profile work]\nregion = eu-west-1\n")
    assert find_keys(parse_options({})) == ("D", "d", None)
    assert find_keys(parse_options({"profile": "work"})) == ("W", "w", "t")
    assert "eu-west-1" in S3Root.of_url("s3://robots", parse_options({"profile": "work"})).url
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert find_keys(parse_options({})) == ("W", "w", "t")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "E")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "e")
    assert find_keys(parse_options({})) == ("E", "e", None)
    given = {"access_key_id": "A", "secret_access_key": CANARY}
    keys = find_keys(parse_options(given))
    assert keys == ("A", CANARY, None) and CANARY not in repr(keys)
    with pytest.raises(ValueError, match="go together"):
        find_keys(parse_options({"access_key_id": "A"}))
    with pytest.raises(ValueError, match="no AWS profile 'play'"):
        find_keys(parse_options({"profile": "play"}))


# -- with one --


@pytest.fixture(scope="session")
def moto():
    """A server that speaks S3, with the demo set below some/where in the bucket robots."""
    pytest.importorskip("moto", reason="needs moto")
    pytest.importorskip("flask", reason="needs moto's server")
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="x",
        aws_secret_access_key="y",
    )  # fmt: skip
    client.create_bucket(Bucket="robots")
    for rel, blob in files_of(ROOT).items():
        client.put_object(
            Bucket="robots", Key=f"some/where/{rel}", Body=blob.data(), ACL="public-read"
        )
    client.put_object(Bucket="robots", Key="some/whereabouts/meta/info.json", Body=b"{}")
    yield endpoint, client
    server.stop()


KEYS = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": CANARY}


def open_s3(endpoint, url="s3://robots/some/where", **options):
    storage = {"endpoint_url": endpoint, "network_timeout": 20, **KEYS}
    storage |= options.pop("storage_options", {})
    return LeRobotDataset(url, num_threads=1, storage_options=storage, **options)


def test_files_of_a_bucket(moto):
    dataset = open_s3(moto[0])
    assert dataset.reads_ranges and dataset.num_frames == STARTS[-1]
    for rel in VIDEOS:
        video = dataset.meta._files.video(rel)
        assert video.url == f"{moto[0]}/robots/some/where/{rel}"
        assert video.size == (ROOT / rel).stat().st_size and len(video.etag) == 32
        assert ranges(dataset, rel) == (ROOT / rel).read_bytes()
    assert dataset.hf_dataset.data.column("index").to_pylist() == list(range(STARTS[-1]))
    stream = StreamingLeRobotDataset(
        "x/y", ROOT, num_threads=1, data_root="s3://robots/some/where",
        storage_options={"endpoint_url": moto[0], **KEYS},
    )  # fmt: skip
    assert ranges(stream, VIDEOS[0]) == (ROOT / VIDEOS[0]).read_bytes()


def test_samples_are_the_local_ones(moto):
    storage = {"endpoint_url": moto[0], "disk_cache": False, **KEYS}
    assert same_stream("s3://robots/some/where", storage_options=storage)
    remote = open_s3(moto[0], return_uint8=True)
    assert same_items(remote, open_demo(), range(0, 184, 7))


def test_without_credentials(moto):
    options = {"endpoint_url": moto[0], "anonymous": True}
    dataset = LeRobotDataset("s3://robots/some/where", storage_options=options, num_threads=1)
    assert ranges(dataset, VIDEOS[0]) == (ROOT / VIDEOS[0]).read_bytes()
    with pytest.raises(errors.AuthError, match="anonymous"):
        LeRobotDataset("s3://robots/some/where", storage_options={"endpoint_url": moto[0]})


def test_pages_and_odd_names(moto, monkeypatch):
    endpoint, client = moto
    names = [f"meta/a b+c%41&é~({n}).json" for n in range(7)] + ["meta/info.json"]
    client.create_bucket(Bucket="odd-names")
    for name in names:
        client.put_object(Bucket="odd-names", Key=name, Body=name.encode())
    options = parse_options({"endpoint_url": endpoint, **KEYS})
    root = S3Root.of_url("s3://odd-names", options)
    page, asked = root._page, []

    def small(query):
        asked.append(query)
        return page(query + "&max-keys=3")

    monkeypatch.setattr(root, "_page", small)
    root.open()
    assert root.files_in("meta") == sorted(names) and len(asked) == 3
    for name in names:
        assert root.read_bytes(name) == name.encode()


def test_pickles_hold_no_keys(moto, monkeypatch):
    dataset = open_s3(moto[0])
    data = pickle.dumps(dataset)
    root = dataset.meta._remote
    assert CANARY.encode() not in data and b"AKIAEXAMPLE" not in data
    assert CANARY not in repr(root) + repr(vars(root)) and "AKIAEXAMPLE" not in repr(vars(root))
    copy = pickle.loads(data)
    assert len(copy) == len(dataset)
    with pytest.raises(errors.AuthError, match="AWS_ACCESS_KEY_ID"):
        ranges(copy, VIDEOS[0])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "E")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "e")
    assert ranges(copy, VIDEOS[0]) == (ROOT / VIDEOS[0]).read_bytes()


@pytest.mark.parametrize(
    "url, words",
    [
        ("s3://no-such-bucket/x", "there is no bucket no-such-bucket"),
        ("s3://robots/some", "meta/info.json is missing"),
        ("s3://robots", "meta/info.json is missing"),
    ],
)
def test_no_dataset(moto, url, words):
    with pytest.raises(errors.NotFoundError, match=words) as caught:
        open_s3(moto[0], url)
    assert len(str(caught.value).splitlines()) <= 3


def test_an_endpoint_that_is_none(moto, tmp_path):
    from fault_server import FaultServer

    with FaultServer({"/robots": b"<html>hello</html>", "/x": b""}) as server:
        with pytest.raises(errors.RemoteError) as caught:
            open_s3(server.origin)
        assert CANARY not in str(caught.value)
        server.files["/robots"] = b'<!DOCTYPE x [<!ENTITY y "z">]><ListBucketResult/>'
        with pytest.raises(errors.RemoteError, match="endpoint_url"):
            open_s3(server.origin)
        server.fault("s403", None)
        with pytest.raises(errors.AuthError, match="s3:ListBucket") as caught:
            open_s3(server.origin)
        assert CANARY not in str(caught.value)


def test_offline(moto):
    endpoint, _ = moto
    with pytest.raises(errors.OfflineError, match="aws s3 sync s3://robots/some/where DIR"):
        open_s3(endpoint, storage_options={"offline": True})
    open_s3(endpoint)
    away = {"offline": True, "endpoint_url": endpoint}
    assert len(open_s3(endpoint, cameras=[], storage_options=away)) == STARTS[-1]
    with pytest.raises(errors.OfflineError) as caught:
        open_s3(endpoint, storage_options=away)
    assert caught.value.file in VIDEOS


def test_signatures_are_checked(moto):
    """moto verifies signatures once it is told to."""
    import json
    import urllib.request

    import boto3

    endpoint, _ = moto
    iam = boto3.client(
        "iam", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="x",
        aws_secret_access_key="y",
    )  # fmt: skip
    iam.create_user(UserName="reader")
    allow = {"Version": "2012-10-17",
             "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}  # fmt: skip
    iam.put_user_policy(UserName="reader", PolicyName="p", PolicyDocument=json.dumps(allow))
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    good = {"access_key_id": key["AccessKeyId"], "secret_access_key": key["SecretAccessKey"]}

    def checks(count):
        request = urllib.request.Request(
            f"{endpoint}/moto-api/reset-auth", str(count).encode(), {"Content-Type": "text/plain"}
        )
        urllib.request.urlopen(request).read()

    checks(0)
    try:
        dataset = open_s3(endpoint, storage_options=good)
        assert ranges(dataset, VIDEOS[0]) == (ROOT / VIDEOS[0]).read_bytes()
        with pytest.raises(errors.AuthError, match="may not be listed") as caught:
            open_s3(endpoint, storage_options={**good, "secret_access_key": CANARY})
        assert CANARY not in str(caught.value)
    finally:
        checks(10**9)
