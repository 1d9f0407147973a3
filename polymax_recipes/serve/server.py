"""The HTTP server of `polymax serve` and `polymax explore`: uvicorn, with limits, and routes by starlette.

uvicorn and h11 read requests. Added here are a time limit for the arrival of a request and for reading its answer, a
limit of connections, and the refusal of framings that proxies parse differently. A connection is closed after every
answer to a request whose body was not read to its end.
"""

import asyncio
import ipaddress
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polymax_recipes.serve.errors import Refused
from polymax_recipes.serve.limits import Limits

if TYPE_CHECKING:
    import uvicorn

log = logging.getLogger("polymax_recipes.serve")

JSON = "application/json; charset=utf-8"
MISSING = "this command needs uvicorn and starlette: pip install 'polymax[serve]'"
# bytes of a refused body that are read, so that its client sees the answer
DRAINED = 64 << 20
# levels of lists and objects in a body
DEEPEST = 32
# connections that the system keeps until they are accepted
BACKLOG = 512
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# pages may connect only to this server, and run only its scripts
POLICY = "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", POLICY.encode()),
    (b"cache-control", b"no-store"),
]


@dataclass(frozen=True)
class Answer:
    """A response: its body, its type and its status."""

    body: bytes
    kind: str = JSON
    status: int = 200

    @classmethod
    def of(cls, data: Any, status: int = 200) -> "Answer":
        """The response with this object as JSON."""
        return cls(json.dumps(data, ensure_ascii=False, allow_nan=False).encode(), JSON, status)


# a route gets the rest of the path in its parts, and the body as JSON (None for GET)
Route = Callable[[list[str], Any], Answer | Awaitable[Answer]]
Routes = Mapping[tuple[str, str], Route]


class Server:
    """The routes and files of one application, on one address.

    `serve_forever` answers until `shutdown` is called or Ctrl-C is pressed. The functions in `closing` are called when
    the server is closed.
    """

    def __init__(
        self,
        address: tuple[str, int],
        routes: Routes,
        files: Mapping[str, Answer] | None = None,
        limits: Limits | None = None,
        closing: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.routes, self.files, self.limits = dict(routes), dict(files or {}), limits or Limits()
        self.closing = list(closing)
        self.is_local = is_loopback(address[0])
        self.socket = listening(address)
        self.server_address = self.socket.getsockname()
        # bytes of bodies in memory
        self.held = 0
        self._server = _uvicorn(self)

    @property
    def url(self) -> str:
        """The address at which the server listens."""
        host, port = self.server_address[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def serve_forever(self) -> None:
        """Answer requests until the server is shut down."""
        self._server.run(sockets=[self.socket])

    def shutdown(self) -> None:
        """End `serve_forever`, which may run in another thread."""
        self._server.should_exit = True

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.socket.close()
        for close in self.closing:
            close()

    async def answer(self, method: str, path: str, body: Any) -> Answer:
        """The answer of a file or a route; a `Refused` if there is none."""
        if method in ("GET", "HEAD") and path in self.files:
            return self.files[path]
        parts = path.strip("/").split("/")
        there = []
        for (verb, prefix), route in self.routes.items():
            named = [part for part in prefix.strip("/").split("/") if part]
            if parts[: len(named)] != named or (not named and parts != [""]):
                continue
            there.append(verb)
            if verb == ("GET" if method == "HEAD" else method):
                found = route(parts[len(named) :], body)
                return found if isinstance(found, Answer) else await found
        if there:
            raise Refused(405, f"{path} takes {' and '.join(sorted(set(there)))}; got {method[:20]}")
        raise Refused(404, f"there is no {path[:200]}")


def is_loopback(host: str) -> bool:
    """True if an address is reached by this machine alone.

    Example:
        >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK


def listening(address: tuple[str, int]) -> socket.socket:
    """Return a socket that listens on an address; an OSError names the address if it is not available."""
    host, port = address
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, ValueError):
        raise OSError(f"--host: {host!r} is not an address of this machine") from None
    family, _, _, _, place = found[0]
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(place)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        # the system's error does not name the address
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return opened


def _uvicorn(server: Server) -> "uvicorn.Server":
    try:
        import uvicorn

        from polymax_recipes.serve.connections import watched
    except ImportError as error:
        raise ValueError(MISSING) from error
    config = uvicorn.Config(
        _Application(server),
        http=watched(server),
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=max(1, int(server.limits.arrival)),
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=1 << 16,
    )
    return uvicorn.Server(config)


class _Application:
    """The ASGI application: refuses ambiguous requests, reads bodies, and turns errors into answers."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        from starlette.requests import Request
        from starlette.responses import Response

        request, body = Request(scope), _Body(scope, receive)
        close = False
        try:
            check_framing(request)
            answer = await self._answer(request, body)
        except _Doubtful as refused:
            answer, close = _error(refused), True
        except Exception as error:
            answer = _error(error, request)
            await body.drain(self.server.limits.arrival / 2)
        finally:
            self.server.held -= body.size
        response = Response(answer.body, answer.status, media_type=None)
        response.raw_headers += [(b"content-type", answer.kind.encode()), *HEADERS]
        if close or not body.ended:
            response.raw_headers.append((b"connection", b"close"))
        await response(scope, receive, send)

    async def _answer(self, request: Any, body: "_Body") -> Answer:
        self._check_host(request.headers.get("host", ""))
        method = request.method
        data = await self._json(request, body) if method == "POST" else None
        found = asyncio.ensure_future(self.server.answer(method, request.url.path, data))
        if method != "POST":
            return await found
        # stop if the client disconnects before its answer
        gone = asyncio.ensure_future(body.receive())
        try:
            await asyncio.wait({found, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not found.done():
                raise ConnectionError("the client went away")
            return found.result()
        finally:
            gone.cancel()
            found.cancel()

    def _check_host(self, host: str) -> None:
        """Refuse requests whose Host is the name of another site, resolved to this machine's address."""
        if not self.server.is_local:
            return
        name = host.strip("[]") if host.endswith("]") else host.rpartition(":")[0].strip("[]") or host
        if not is_loopback(name):
            raise Refused(403, f"this server is for {', '.join(LOOPBACK)} alone; got the host {host[:200]!r}")

    async def _json(self, request: Any, body: "_Body") -> Any:
        limits, length = self.server.limits, int(request.headers["content-length"])
        if length > limits.body:
            raise Refused(413, f"a body may have {limits.body} bytes; got {length}")
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, f"Content-Type must be application/json; got {kind[:80] or 'none'}")
        if self.server.held + length > limits.waiting:
            raise Refused(503, "too many requests wait already; try again later")
        body.size = length
        self.server.held += body.size
        try:
            data = json.loads(await body.read(), parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is not JSON: {error}") from None
        check_depth(data)
        return data


class _Doubtful(Refused):
    """The error of a request whose end a proxy might find at another byte than this server."""


class _Body:
    """The body of a request as it is received; `ended` is True if all of it was read."""

    def __init__(self, scope: Any, receive: Any) -> None:
        self.receive = receive
        headers = dict(scope["headers"])
        self.ended = b"transfer-encoding" not in headers and int(headers.get(b"content-length", b"0")) == 0
        self.expects = b"expect" in headers
        self.size = 0

    async def read(self) -> bytes:
        """The whole body."""
        parts = []
        while not self.ended:
            parts.append(await self._part())
        return b"".join(parts)

    async def drain(self, seconds: float) -> None:
        """Read and discard the rest for a limited time: a client sees no answer while it is still sending."""
        left = 0 if self.expects else DRAINED
        try:
            async with asyncio.timeout(seconds):
                while left > 0 and not self.ended:
                    left -= len(await self._part())
        except (TimeoutError, ConnectionError):
            return

    async def _part(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client went away")
        self.ended = not message.get("more_body", False)
        return message.get("body", b"")


def check_framing(request: Any) -> None:
    """Refuse a request with an ambiguous end: a body in chunks, two hosts, or a body for a method without one."""
    headers = request.headers
    if request.scope["http_version"] not in ("1.0", "1.1"):
        raise _Doubtful(505, "this server speaks HTTP/1.1")
    if "transfer-encoding" in headers or (request.method == "POST" and "content-length" not in headers):
        raise _Doubtful(411, "a request must have a Content-Length; Transfer-Encoding is not supported")
    if len(headers.getlist("content-length")) > 1 or len(headers.getlist("host")) > 1:
        raise _Doubtful(400, "a request may have one Content-Length and one Host")
    if request.method != "POST" and headers.get("content-length", "0") != "0":
        raise _Doubtful(400, f"{request.method[:20]} takes no body; got a Content-Length")
    if "upgrade" in headers:
        raise _Doubtful(400, "this server upgrades to no other protocol")


def check_depth(data: Any) -> None:
    """Refuse lists and objects that are nested more than 32 deep."""
    level = [data]
    for _ in range(DEEPEST):
        level = [
            one
            for part in level
            if isinstance(part, list | dict)
            for one in (part.values() if isinstance(part, dict) else part)
        ]
        if not level:
            return
    raise Refused(400, f"lists and objects of the body may be {DEEPEST} deep")


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number of JSON")


def _error(error: Exception, request: Any = None) -> Answer:
    if isinstance(error, Refused):
        return Answer.of({"error": str(error)}, error.status)
    if isinstance(error, ConnectionError):
        return Answer.of({"error": "the request ended before its body"}, 400)
    if isinstance(error, ValueError | TypeError | IndexError | OverflowError):
        return Answer.of({"error": str(error)}, 400)
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return Answer.of({"error": "the server failed; its log says why"}, 500)
