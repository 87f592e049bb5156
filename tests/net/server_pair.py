"""Fixtures of two servers whose origins differ, each reset before every test that asks for it."""

import contextlib

import pytest
from fault_server import FaultServer


@contextlib.contextmanager
def two_origins(files, far_files):
    """A server of 127.0.0.1 with `files` and one of localhost with `far_files`."""
    with FaultServer(files) as near, FaultServer(far_files, host="localhost") as far:
        yield near, far


def one_of(pair, place):
    """A fixture: server `place` of the fixture named `pair`, as it was at its start."""

    @pytest.fixture
    def server(request):
        chosen = request.getfixturevalue(pair)[place]
        chosen.reset()
        return chosen

    return server
