"""Connections with time limits: a client that sends or reads too slowly is disconnected."""

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from polymax_recipes.serve.server import Server

HEAD = (
    b"HTTP/1.1 %s\r\ncontent-type: application/json; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
)


def _refusal(status: bytes, message: bytes) -> bytes:
    body = b'{"error": "%s"}' % message
    return HEAD % (status, len(body), body)


BUSY = _refusal(b"503 Service Unavailable", b"too many connections; try again later")
MALFORMED = _refusal(b"400 Bad Request", b"this is not a request of HTTP/1.1")
# h11 accepts headers continued in the next line, and lines that end in a bare line feed; proxies may not
DOUBTFUL = re.compile(rb"\n[ \t]|(?<!\r)\n")
END = re.compile(rb"\n\r?\n")
# seconds between checks of a connection
TICK = 0.25
# bytes of an answer that a client must read within each period of `arrival` seconds
PROGRESS = 1 << 16


def doubtful(data: bytes, before: bytes = b"") -> bool:
    """Return True if these bytes, a part of a request's head, have a line that proxies may parse differently.

    Example:
        >>> doubtful(b"X: 1\\r\\nY: 2\\r\\n\\r\\n\\n"), doubtful(b"X: 1\\r\\n Y: 2"), doubtful(b"X: 1\\nY: 2")
        (False, True, True)
    """
    # the bytes before were checked, but a line may end between both parts
    last = before[-3:]
    data = (b"\r" if last.startswith(b"\n") else b"") + last + data
    end = END.search(data)
    return DOUBTFUL.search(data, 0, end.start() + 2 if end else len(data)) is not None


def watched(server: "Server") -> type[asyncio.Protocol]:
    """The protocol of the connections of a server: uvicorn's for h11, with the limits of the server.

    The time is measured from the first byte of a request to the last, so that single bytes do not keep a connection
    open.
    """

    class Watched(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._timer: asyncio.TimerHandle | None = None
            self._refused = len(self.connections) > server.limits.connections
            if self._refused:
                transport.write(BUSY)
                transport.close()
                return
            self._waits_since = self._written_since = time.monotonic()
            self._unwritten = 0
            self._look()

        def data_received(self, data: bytes) -> None:
            if self._refused or self.transport.is_closing():
                return
            if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
                # the first bytes of a request on a connection that was kept open
                self._waits_since = time.monotonic()
            if self.conn.their_state is h11.IDLE and doubtful(data, self.conn.trailing_data[0]):
                self.send_400_response("Invalid HTTP request received.")
                return
            super().data_received(data)

        def on_response_complete(self) -> None:
            self._waits_since = time.monotonic()
            if doubtful(self.conn.trailing_data[0]):
                # drop a second request that was sent with this one
                self.transport.close()
            super().on_response_complete()

        def send_400_response(self, msg: str) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                # do not answer a request whose body cannot be read
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self.transport.write(MALFORMED)
            self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            now, limit = time.monotonic(), server.limits.arrival
            waits = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
            left = self.transport.get_write_buffer_size()
            if left == 0 or left <= self._unwritten - PROGRESS:
                self._unwritten, self._written_since = left, now
            elif left > self._unwritten:
                self._unwritten = left
            if (waits and now - self._waits_since > limit) or now - self._written_since > limit:
                self.transport.abort()
                return
            self._timer = self.loop.call_later(TICK, self._look)

    return Watched
