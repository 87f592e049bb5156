"""A range that is late is asked for a second time; the first answer that is whole wins."""

import pytest
from reelpool import errors
from test_http import DATA, FAST, FaultServer
from test_http_redirects import client_of

EAGER = FAST | {"hedge_time": 0.02, "stall_time": 60, "network_timeout": 60}


@pytest.fixture(scope="module")
def one_server():
    with FaultServer({"/f": DATA}) as server:
        yield server


@pytest.fixture
def server(one_server):
    one_server.reset()
    return one_server


def warm(server, client, times):
    for n in range(times):
        assert client.read(server.url("/f"), n, 1000) == DATA[n : n + 1000]


@pytest.mark.parametrize("kind", ["silent", "stall"])
def test_a_late_range_is_asked_for_once_more(server, kind):
    """Nothing else would end these tries: they do not count as stalled for a minute."""
    with client_of(**EAGER) as client:
        warm(server, client, 60)
        server.fault(kind, 1)
        assert client.read(server.url("/f"), 500, 200_000) == DATA[500:200_500]
        stats = client.stats()
        assert stats["hedges"] == 1 and sum(stats["retries"].values()) == 0
        assert stats["requests"] == 62 and stats["connections"] == 2
        assert stats["bytes_fetched"] == 60_000 + 200_000
        warm(server, client, 10)  # connections are sound
    asked = [seen for seen in server.log if seen.headers["Range"] == "bytes=500-200499"]
    assert len(asked) == 2 and asked[0].port != asked[1].port


@pytest.mark.parametrize("kind", ["s503", "reset_before", "html", "cut", "short", "new_etag"])
def test_a_second_one_that_fails_leaves_the_first(server, kind):
    with client_of(**EAGER | {"stall_time": 1.5}) as client:
        warm(server, client, 60)
        server.fault("stall", 1)
        server.fault(kind, 1)
        assert client.read(server.url("/f"), 500, 20_000) == DATA[500:20_500]
        stats = client.stats()
        assert stats["hedges"] == 1 and stats["retries"]["network"] == 1
        assert sum(stats["retries"].values()) == 1


def test_a_first_one_that_fails_leaves_the_second(server):
    with client_of(**EAGER | {"stall_time": 1.5}) as client:
        warm(server, client, 60)
        server.fault("stall", 1)
        server.fault("slow_body", 1)
        assert client.read(server.url("/f"), 500, 20_000) == DATA[500:20_500]
        assert client.stats()["hedges"] == 1 and sum(client.stats()["retries"].values()) == 0


def test_second_requests_are_rare(server):
    with client_of(**EAGER | {"stall_time": 0.3}) as client:
        warm(server, client, 40)  # one of fifty may be
        for _ in range(5):
            server.fault("stall", 1)
            assert client.read(server.url("/f"), 500, 20_000) == DATA[500:20_500]
        assert client.stats()["hedges"] == 0 and client.stats()["retries"]["network"] == 5
        warm(server, client, 20)
        for _ in range(5):
            server.fault("stall", 1)
            assert client.read(server.url("/f"), 500, 20_000) == DATA[500:20_500]
        assert client.stats()["hedges"] <= 1 and client.stats()["retries"]["network"] >= 9


def test_none_where_it_is_switched_off_or_makes_no_sense(server):
    with client_of(**EAGER | {"stall_time": 0.1, "hedge_time": 0}) as client:
        warm(server, client, 60)
        server.fault("stall", 1)
        assert client.read(server.url("/f"), 500, 20_000) == DATA[500:20_500]
        assert client.stats()["hedges"] == 0
    with client_of(**EAGER | {"stall_time": 0.3}) as client:
        warm(server, client, 60)
        server.fault("silent", 2)
        assert client.get(server.url("/f"), len(DATA)) == DATA  # a page
        server.fault("silent", 1)
        assert client.size(server.url("/f"))["size"] == len(DATA)
        assert client.stats()["hedges"] == 0
    with pytest.raises(ValueError, match="time limit"), client_of(hedge_time=-1):
        pass


def test_both_without_end(server):
    with client_of(**EAGER | {"network_timeout": 2}) as client:
        warm(server, client, 60)
        server.fault("silent", None)
        with pytest.raises(errors.RemoteTimeoutError):
            client.read(server.url("/f"), 500, 20_000)
        assert client.stats()["hedges"] == 1
