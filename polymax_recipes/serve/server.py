"""A small HTTP server with limits: for one user on one machine, or behind a proxy.

Every connection has a thread, so that one slow client holds up nobody; the number of connections, the size of a body,
and the time in which a request must have arrived are limited. A route is a function of the request; paths of files are
compared with a fixed table and never looked up in a file system.
"""

import io
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from polymax_recipes.serve.errors import Refused

log = logging.getLogger("polymax_recipes.serve")

JSON = "application/json; charset=utf-8"
# bytes of a body that is refused, which are read and thrown away
DRAINED = 64 << 20
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# a page of ours asks this server alone, and runs no script but its own files
POLICY = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"


@dataclass(frozen=True)
class Limits:
    """What one request and all of them may take: bytes of a body, seconds, inputs, and connections at a time."""

    body: int = 1 << 20
    arrival: float = 10.0
    computing: float = 30.0
    inputs: int = 256
    characters: int = 20_000
    connections: int = 256


@dataclass(frozen=True)
class Answer:
    """A response: its status, its type and its body."""

    body: bytes
    kind: str = JSON
    status: int = 200

    @classmethod
    def of(cls, data: Any, status: int = 200) -> "Answer":
        """The response with this object as JSON."""
        return cls(json.dumps(data, ensure_ascii=False, allow_nan=False).encode(), JSON, status)


# what a route gets: the parts of the path after its own, and the body as JSON, None for GET
Route = Callable[[list[str], Any], Answer]


class _Timed(io.RawIOBase):
    """A socket that is read until a moment: a client that sends a byte now and then does not stay for ever."""

    def __init__(self, connection: socket.socket, limit: float) -> None:
        self.connection, self.limit = connection, limit
        self.restart()

    def restart(self) -> None:
        self.until = time.monotonic() + self.limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.connection.settimeout(left)
        return self.connection.recv_into(buffer)


class Handler(BaseHTTPRequestHandler):
    """One connection, which may bring several requests after one another."""

    protocol_version = "HTTP/1.1"
    server_version = "polymax"
    sys_version = ""
    # headers and body are sent together: two small packets would wait for each other
    disable_nagle_algorithm = True
    wbufsize = -1
    server: "Server"
    # bytes of a refused body that may still come
    _unread = 0

    def setup(self) -> None:
        super().setup()
        self._raw = _Timed(self.connection, self.server.limits.arrival)
        self.rfile = io.BufferedReader(self._raw)

    def handle_one_request(self) -> None:
        self._raw.restart()
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError, OSError):
            # whoever has gone, or does not read, gets no answer
            self.close_connection = True

    def do_GET(self) -> None:
        self._answer("GET")

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_POST(self) -> None:
        self._answer("POST")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send what the base class refuses by itself as JSON, like all other errors."""
        self.close_connection = True
        self._send(Answer.of({"error": message or "the request cannot be read"}, code), "GET")

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)

    def _answer(self, method: str) -> None:
        try:
            answer = self._answer_for(method)
        except Refused as refused:
            answer = Answer.of({"error": str(refused)}, refused.status)
        except (ValueError, TypeError, IndexError) as error:
            answer = Answer.of({"error": str(error)}, 400)
        except (ConnectionError, TimeoutError):
            raise
        except Exception:
            log.exception("%s %s failed", method, self.path)
            answer = Answer.of({"error": "the server failed; its log says why"}, 500)
        self._send(answer, method)

    def _answer_for(self, method: str) -> Answer:
        # the body is read first: what is left of it would be taken for the next request
        body = self._body() if method == "POST" else None
        self._check_host()
        path = self.path.split("?", 1)[0].split("#", 1)[0]
        found = self.server.files.get(path)
        if found is not None and method != "POST":
            return found
        parts = path.strip("/").split("/")
        there = False
        for (verb, prefix), route in self.server.routes.items():
            named = prefix.strip("/").split("/")
            if parts[: len(named)] != named:
                continue
            there = True
            if verb == ("GET" if method == "HEAD" else method):
                return route(parts[len(named) :], body)
        if there:
            raise Refused(405, f"{method} is not what {path} takes")
        raise Refused(404, f"there is no {path}")

    def _check_host(self) -> None:
        """Refuse a page of another site whose name leads to this machine's address."""
        if not self.server.is_local:
            return
        host = self.headers.get("Host", "")
        name = host.rsplit(":", 1)[0].strip("[]") if not host.endswith("]") else host.strip("[]")
        if name not in LOOPBACK:
            raise Refused(403, f"this server is for {', '.join(LOOPBACK)} alone; got the host {host!r}")

    def _body(self) -> Any:
        length = self.headers.get("Content-Length", "")
        if (
            "chunked" in self.headers.get("Transfer-Encoding", "").lower()
            or not length.isascii()
            or not length.isdigit()
        ):
            self.close_connection = True
            raise Refused(411, "a request must say its Content-Length")
        if int(length) > self.server.limits.body:
            self.close_connection = True
            self._unread = int(length)
            raise Refused(413, f"a body may have {self.server.limits.body} bytes; got {int(length)}")
        text = self.rfile.read(int(length))
        if len(text) < int(length):
            raise ConnectionError("the client went away")
        kind = self.headers.get("Content-Type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, f"Content-Type must be application/json; got {kind or 'none'}")
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is not JSON: {error}") from None

    def _send(self, answer: Answer, method: str) -> None:
        self.connection.settimeout(self.server.limits.arrival)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if method != "HEAD":
            self.wfile.write(answer.body)
        self.wfile.flush()
        self._drain()

    def _drain(self) -> None:
        """Read the rest of a body for a while and discard it: a client sees no answer while it is still sending."""
        left, self._unread = min(self._unread, DRAINED), 0
        while left > 0 and (read := self.rfile.read1(min(left, 1 << 16))):
            left -= len(read)


class Server(ThreadingHTTPServer):
    """The routes and files of one application, on one address."""

    daemon_threads = True
    # connections that the system keeps until they are accepted
    request_queue_size = 512

    def __init__(
        self,
        address: tuple[str, int],
        routes: Mapping[tuple[str, str], Route],
        files: Mapping[str, Answer] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.routes, self.files, self.limits = dict(routes), dict(files or {}), limits or Limits()
        self.is_local = address[0] in LOOPBACK
        self._slots = threading.BoundedSemaphore(self.limits.connections)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        try:
            super().__init__(address, Handler)
        except OSError as error:
            # the system does not say which address cannot be had
            raise OSError(error.errno, error.strerror, f"{address[0]}:{address[1]}") from None

    @property
    def url(self) -> str:
        """The address at which the server listens."""
        host, port = self.server_address[:2]
        name = host.decode() if isinstance(host, bytes | bytearray) else str(host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the connection, or answer that there are too many."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        body = b'{"error": "too many connections; try again later"}'
        about = f"Content-Type: {JSON}\r\nContent-Length: {len(body)}\r\nConnection: close"
        head = f"HTTP/1.1 503 Service Unavailable\r\n{about}\r\n\r\n"
        try:
            request.settimeout(0.1)
            request.sendall(head.encode() + body)
        except OSError:
            pass
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection failed", exc_info=True)
