"""ASGI middleware of the live page: check host, origin, token; set security headers.

A request passes if it names one of our hosts, only reads, does not come from another
site, and carries the token where one is required. The check of the host stops DNS
rebinding: a foreign page whose name was re-pointed at this machine.
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

# Only files of this server may load, no inline script or style may run, and no other
# page may embed this one. Trusted types forbid innerHTML, so that a hostile name in a
# journal stays text even if a script forgets to escape it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# No-store, because pages show the data of a run; no-referrer, because the first address
# holds the token in its query.
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


class AccessGuard:
    """ASGI middleware that refuses requests without access to the page."""

    def __init__(self, app: App, *, token: str | None, hosts: frozenset[str]) -> None:
        """Wrap an application."""
        self._app = app
        self._token = token
        self._hosts = hosts
        # The cookie is not the token: a value stolen from a browser opens this server
        # only, and only until it restarts.
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        # WebSockets are not subject to the same-origin policy, and the page needs none.
        if scope["type"] != "http":
            return
        headers = _headers(scope)
        cookie: bytes | None = None
        if not _is_own_host(headers.get("host", ""), self._hosts):
            await _refuse(send, 421, "This server does not answer to that host name.")
            return
        # Without state-changing requests there is nothing to forge (CSRF).
        if scope["method"] not in ("GET", "HEAD"):
            await _refuse(send, 405, "This page is read-only.")
            return
        if _is_foreign(headers):
            await _refuse(send, 403, "Another site may not read this page.")
            return
        if self._token is not None:
            if _tokens_equal(_token_in(scope, headers), self._token):
                name = self._cookie_name(scope)
                # HttpOnly hides the cookie from scripts, and Strict keeps it from
                # requests that other sites start. Not Secure: the server speaks plain
                # HTTP only.
                text = f"{name}={self._session}; Path=/; HttpOnly; SameSite=Strict"
                cookie = text.encode()
            elif not _tokens_equal(self._cookie_in(scope, headers), self._session):
                await _refuse(send, 401, _NO_TOKEN)
                return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [*message.get("headers", ()), *_HEADERS]
                if cookie:
                    own.append((b"set-cookie", cookie))
                message = {**message, "headers": own}
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _cookie_name(self, scope: Scope) -> str:
        # Browsers share cookies between the ports of a host: without the port in its
        # name, two servers on one machine would overwrite each other's.
        _, port = scope.get("server") or ("", 0)
        return f"{_COOKIE}_{port}"

    def _cookie_in(self, scope: Scope, headers: dict[str, str]) -> str:
        jar: http.cookies.SimpleCookie = http.cookies.SimpleCookie()
        try:
            jar.load(headers.get("cookie", ""))
        except http.cookies.CookieError:
            return ""
        morsel = jar.get(self._cookie_name(scope))
        return "" if morsel is None else morsel.value


def own_host_names(host: str) -> frozenset[str]:
    """Return the names by which requests may reach a server bound to `host`."""
    names = {"localhost", host.lower()}
    if not is_loopback(host):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_own_host(host: str, names: frozenset[str]) -> bool:
    """Whether a Host header names this machine; its port may be that of a tunnel."""
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
    """Whether a page of another site sent the request; following a link is allowed."""
    if headers.get("sec-fetch-site") not in ("cross-site", "same-site"):
        return False
    return headers.get("sec-fetch-mode") != "navigate"


def _token_in(scope: Scope, headers: dict[str, str]) -> str:
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return bearer.strip()
    # The printed link carries the token; afterwards the browser sends the cookie.
    query = parse_qs(scope["query_string"].decode("latin-1"))
    return query.get("token", [""])[0]


# Compared in constant time, so that response times do not reveal a prefix.
def _tokens_equal(presented: str, expected: str) -> bool:
    return hmac.compare_digest(presented.encode("utf-8", "replace"), expected.encode())


def _headers(scope: Scope) -> dict[str, str]:
    """Return the first header of each name; a repeated Host counts as none."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        if key == "host" and key in found:
            # A proxy might have checked the other one.
            found[key] = ""
        found.setdefault(key, value.decode("latin-1"))
    return found


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = f"{reason}\n".encode()
    start = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        *_HEADERS,
    ]
    if status == 401:
        start.append((b"www-authenticate", b'Bearer realm="frugax watch"'))
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
