"""The process: prints its address, ends on Ctrl-C, reports errors."""

import http.client
import socket
import sys
import threading

import pytest

from frugax.errors import ConfigError, MissingExtraError
from frugax.watch.serve import is_loopback, serve
from refusals import refuses
from watched_pages import Server

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")


def _ask(port, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers=headers)
    return connection, connection.getresponse()


@pytest.mark.slow
def test_ctrl_c_ends_it_cleanly_while_a_page_is_open(folder):
    server = Server(folder, "--port", 0)
    assert server.host == "127.0.0.1"
    listening, answer = _ask(server.port, "/api/run?run=0")
    assert b"small" in answer.read()  # the connection stays open
    status, said = server.leave()
    listening.close()
    assert status == 0, said
    assert "Traceback" not in said


@pytest.mark.slow
def test_an_address_beyond_this_machine_needs_a_token(folder):
    server = Server(folder, "--port", 0, "--host", "0.0.0.0")
    try:
        assert server.path.startswith("/?token=")
        for path, status in (("/api/runs", 401), (server.path, 200)):
            connection, answer = _ask(server.port, path)
            assert answer.status == status
            connection.close()
        connection, answer = _ask(server.port, server.path, Host="evil.example")
        assert answer.status == 421
        connection.close()
    finally:
        status, said = server.leave()
    assert status == 0, said
    # The token is printed once, in the address, and is not in any log.
    assert said.count(server.path.partition("=")[2]) == 1


def test_an_address_that_cannot_be_had_is_reported(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with refuses(ConfigError, port):
            serve(folder, port=port)
    before = threading.active_count()
    with refuses(ConfigError, 0):
        serve(folder, port=70_000)
    with pytest.raises(ConfigError):
        serve(folder / "nothing", port=0)
    assert threading.active_count() == before
    with refuses(ConfigError, "listen"):
        serve(folder, host="no.such.host.invalid", port=0)


@pytest.mark.parametrize("package", ["uvicorn", "starlette"])
def test_a_missing_package_is_reported(folder, monkeypatch, package):
    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, package, None)
    with refuses(MissingExtraError, "frugax[serve]"):
        serve(folder, port=0)


def test_only_this_machine_is_loopback():
    assert all(map(is_loopback, ["127.0.0.1", "localhost", "::1", "127.8.9.1"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "example.org", ""]))
