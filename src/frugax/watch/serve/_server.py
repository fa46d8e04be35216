"""The process that serves the page: binds, says where, and leaves on Ctrl-C."""

import asyncio
import errno
import os
import secrets
import socket
import webbrowser
from collections.abc import Callable
from typing import Any

from frugax.errors import ConfigError, MissingExtraError

from ._app import page_app
from ._feed import Feed
from ._guard import is_loopback, own_names
from ._watched import Watched

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
    """Show a run in the browser until Ctrl-C; the run itself is not touched.

    Args:
        path: a run's folder, or a journal file.
        host: the address to listen at. Beyond this machine a token is always asked for.
        port: 0 picks a free one.
        token: ask for a token on this machine, too, where other users could read along.
        open_browser: open the page there.
        say: told the page's address, once it can be opened.

    Raises:
        ConfigError: there is no such run, or the address cannot be listened at.
        MissingExtraError: Starlette or uvicorn is not installed.
    """
    try:
        import uvicorn
    except ImportError as e:
        raise MissingExtraError(
            'the live page needs uvicorn: pip install "frugax[serve]".'
        ) from e
    watched = Watched(path)
    secret = secrets.token_urlsafe(24) if token or not is_loopback(host) else None
    feed = Feed(watched)
    app = page_app(feed, token=secret, hosts=own_names(host))
    bound = _bind(host, port)
    address = _address(host, bound.getsockname()[1], secret)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            self._loop = asyncio.get_running_loop()
            say(f"{watched.title}: {address}")
            if open_browser:
                await asyncio.to_thread(webbrowser.open, address)

        def handle_exit(self, sig: int, frame: Any) -> None:
            # Pages hold their event streams open; uvicorn would wait for them.
            self._loop.call_soon_threadsafe(feed.stop)
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # it would write the token down
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=3,
    )
    try:
        Server(config).run(sockets=[bound])
    except KeyboardInterrupt:
        pass  # raised anew by uvicorn after it has shut down in good order
    finally:
        bound.close()


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: the address is taken, not ours, or needs rights.
    """
    if not 0 <= port < 65536:
        raise ConfigError(f"--port {port}: a port is from 0 (any free one) to 65535.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, at = found[0]
        return socket.create_server(at, family=family, backlog=128)
    except OSError as e:
        what = f"--host {host} --port {port}"
        if e.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"{what}: the port is taken; choose another, or --port 0 for any free "
                "one."
            ) from e
        raise ConfigError(f"{what}: cannot listen there: {e.strerror or e}.") from e


def _address(host: str, port: int, token: str | None) -> str:
    if host in ("0.0.0.0", "::"):
        name = socket.gethostname()
    else:
        name = f"[{host}]" if ":" in host else host
    query = f"/?token={token}" if token else "/"
    return f"http://{name}:{port}{query}"
