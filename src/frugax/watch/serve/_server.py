"""`serve`: run the web server of the live page until Ctrl-C."""

import asyncio
import errno
import os
import secrets
import socket
import webbrowser
from collections.abc import Callable

from frugax.errors import ConfigError, MissingExtraError

from ._app import page_app
from ._guard import is_loopback, own_host_names
from ._run_collection import RunCollection

DEFAULT_PORT = 8765


def serve(
    path: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    token: bool = False,
    open_browser: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Show a run, or many, in the browser until Ctrl-C; the runs are not touched.

    Args:
        path: the folder of a run, a journal file, or a folder of several of these: then
            the page compares them.
        host: the address to listen at. An address that other machines can reach always
            requires a token.
        port: the port; 0 picks a free one.
        token: require a token on this machine, too, against its other users.
        open_browser: open the page in a browser.
        say: called with the address of the page once it can be opened.

    Raises:
        ConfigError: there is no such run, or the server cannot listen at the address.
        MissingExtraError: Starlette or uvicorn is not installed.
    """
    try:
        import uvicorn
    except ImportError as e:
        raise MissingExtraError(
            'the live page needs uvicorn: pip install "frugax[serve]".'
        ) from e
    runs = RunCollection(path)
    secret = None
    if token or not is_loopback(host):
        secret = secrets.token_urlsafe(24)
    app = page_app(runs, token=secret, hosts=own_host_names(host))
    bound = _bind(host, port)
    address = _address(host, bound.getsockname()[1], secret)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            say(f"{runs.title}: {address}")
            if open_browser:
                await asyncio.to_thread(webbrowser.open, address)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # it would contain the token
        server_header=False,
        ws="none",
        # Of an answer that a slow reader has not taken.
        timeout_graceful_shutdown=3,
    )
    try:
        Server(config).run(sockets=[bound])
    except KeyboardInterrupt:
        pass  # uvicorn raises it again after an orderly shutdown
    finally:
        bound.close()


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise ConfigError(f"--port {port}: a port is from 0 (any free one) to 65535.")
    try:
        # Bound here and not by uvicorn, which would exit the process on an error.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, at = found[0]
        return socket.create_server(at, family=family, backlog=128)
    except OSError as e:
        where = f"--host {host} --port {port}"
        if e.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"{where}: the port is taken; choose another, or --port 0 for any free "
                "one."
            ) from e
        raise ConfigError(f"{where}: cannot listen there: {e.strerror or e}.") from e


def _address(host: str, port: int, token: str | None) -> str:
    if host in ("0.0.0.0", "::"):
        name = socket.gethostname()
    else:
        # IPv6 addresses stand in brackets, or the port could not be told apart.
        name = f"[{host}]" if ":" in host else host
    query = "/"
    if token:
        query = f"/?token={token}"
    return f"http://{name}:{port}{query}"
