"""ASGI middleware of the live page: check host, origin, token; set security headers.

A request passes if it names one of our hosts, only reads, does not come from another
site, and carries the token where one is required. The check of the host stops DNS
rebinding: a foreign page whose name was re-pointed at this machine.
"""

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from starlette.requests import Request

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
        # Imported late: without Starlette `serve` names the extra that is missing.
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse

        request = Request(scope)
        app, cookie = self._app, ""
        if refused := self._refuse(request):
            status, reason = refused
            headers = {"www-authenticate": 'Bearer realm="frugax watch"'}
            app = PlainTextResponse(
                f"{reason}\n", status, headers if status == 401 else None
            )
        elif self._token is not None and _carries(request, self._token):
            # HttpOnly hides the cookie from scripts, and Strict keeps it from requests
            # that other sites start. Not Secure: the server speaks plain HTTP only.
            cookie = f"{_cookie_name(request)}={self._session}; "
            cookie += "Path=/; HttpOnly; SameSite=Strict"

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [*message.get("headers", ()), *_HEADERS]
                if cookie:
                    own.append((b"set-cookie", cookie.encode()))
                message = {**message, "headers": own}
            await send(message)

        await app(scope, receive, send_guarded)

    def _refuse(self, request: "Request") -> tuple[int, str] | None:
        """Return the status and the reason of a refusal; None for a request to pass."""
        # A proxy might have checked another one of several.
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not _is_own_host(hosts[0], self._hosts):
            return 421, "This server does not answer to that host name."
        # Without state-changing requests there is nothing to forge (CSRF).
        if request.method not in ("GET", "HEAD"):
            return 405, "This page is read-only."
        if _is_foreign(request):
            return 403, "Another site may not read this page."
        if self._token is None or _carries(request, self._token):
            return None
        session = request.cookies.get(_cookie_name(request), "")
        return None if _tokens_equal(session, self._session) else (401, _NO_TOKEN)


def _cookie_name(request: "Request") -> str:
    # Browsers share cookies between the ports of a host: without the port in its name,
    # two servers on one machine would overwrite each other's.
    _, port = request.scope.get("server") or ("", 0)
    return f"{_COOKIE}_{port}"


def _carries(request: "Request", token: str) -> bool:
    """Whether a request has the token, in a header or as the printed link has it."""
    kind, _, bearer = request.headers.get("authorization", "").partition(" ")
    given = request.query_params.get("token", "")
    if kind.lower() == "bearer":
        given = bearer.strip()
    return _tokens_equal(given, token)


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


def _is_foreign(request: "Request") -> bool:
    """Whether a page of another site sent the request; following a link is allowed."""
    if request.headers.get("sec-fetch-site") not in ("cross-site", "same-site"):
        return False
    return request.headers.get("sec-fetch-mode") != "navigate"


# Compared in constant time, so that response times do not reveal a prefix.
def _tokens_equal(presented: str, expected: str) -> bool:
    return hmac.compare_digest(presented.encode("utf-8", "replace"), expected.encode())
