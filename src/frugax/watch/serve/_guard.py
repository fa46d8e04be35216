"""Who may see the page, and what a browser may do with it.

A request passes if it names a host that is ours (a page of somebody else's, whose name
was re-pointed at this machine, does not), only reads, does not come from another site,
and, where a token is asked for, carries it.
"""

import hmac
import http.cookies
import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import parse_qs

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
_COOKIE = "frugax_watch"
_NO_TOKEN = (
    "This page needs its token: open the address that `frugax watch serve` printed."
)


class Guard:
    """Stands in front of an application and lets through what may pass."""

    def __init__(self, app: App, *, token: str | None, hosts: frozenset[str]) -> None:
        """Guard an application.

        Args:
            app: the application.
            token: what a reader must know; None if whoever reaches the port may read.
            hosts: names under which this machine may be asked for, besides numeric
                addresses, which no other site can take over.
        """
        self._app = app
        self._token = token
        self._hosts = hosts
        # The cookie's value is no token: what a browser keeps opens this server only.
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = _headers(scope)
        cookie: bytes | None = None
        if not _is_ours(headers.get("host", ""), self._hosts):
            await _refuse(send, 421, "This server does not answer to that host name.")
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _refuse(send, 405, "This page is only to look at.")
            return
        if _is_foreign(headers):
            await _refuse(send, 403, "Another site may not read this page.")
            return
        if self._token is not None:
            if _same(_token_in(scope, headers), self._token):
                name = self._cookie_name(scope)
                text = f"{name}={self._session}; Path=/; HttpOnly; SameSite=Strict"
                cookie = text.encode()
            elif not _same(self._cookie_in(scope, headers), self._session):
                await _refuse(send, 401, _NO_TOKEN)
                return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [*_HEADERS, *([(b"set-cookie", cookie)] if cookie else [])]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _cookie_name(self, scope: Scope) -> str:
        # Cookies know no ports: two servers on one machine must not share one.
        server = scope.get("server")
        return f"{_COOKIE}_{server[1] if server else 0}"

    def _cookie_in(self, scope: Scope, headers: dict[str, str]) -> str:
        jar: http.cookies.SimpleCookie = http.cookies.SimpleCookie()
        try:
            jar.load(headers.get("cookie", ""))
        except http.cookies.CookieError:
            return ""
        found = jar.get(self._cookie_name(scope))
        return "" if found is None else found.value


def own_names(host: str) -> frozenset[str]:
    """Names by which a server bound to `host` may be asked for."""
    names = {"localhost", host.lower()}
    if not is_loopback(host):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_ours(host: str, names: frozenset[str]) -> bool:
    """Whether a Host header means this machine; the port may be a tunnel's."""
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        name, _, port = host.partition(":")
    if port and not port.isdecimal():
        return False
    if name.lower() in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_foreign(headers: dict[str, str]) -> bool:
    """Whether another site's page asks; to follow a link from there is allowed."""
    if headers.get("sec-fetch-site") not in ("cross-site", "same-site"):
        return False
    return headers.get("sec-fetch-mode") != "navigate"


def _token_in(scope: Scope, headers: dict[str, str]) -> str:
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return bearer.strip()
    query = parse_qs(scope["query_string"].decode("latin-1"))
    return query.get("token", [""])[0]


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _headers(scope: Scope) -> dict[str, str]:
    """The first of each, and no second Host that somebody else might go by."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        if key == "host" and key in found:
            found[key] = ""
        found.setdefault(key, value.decode("latin-1"))
    return found


async def _refuse(send: Send, status: int, why: str) -> None:
    body = f"{why}\n".encode()
    start = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        *_HEADERS,
    ]
    if status == 401:
        start.append((b"www-authenticate", b'Bearer realm="frugax watch"'))
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
