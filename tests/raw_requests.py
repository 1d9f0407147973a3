"""Raw requests that try to hide a second request in the body of the first, and random ones made of their parts."""

import random
import socket
import time

# in the answer to a hidden request
MARK = b"there is no /hidden"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
HOST = b"Host: localhost\r\n"
KIND = b"Content-Type: application/json\r\n"
CHUNKED = b"0\r\n\r\n" + HIDDEN
SIZE = b"%d" % len(HIDDEN)
CHUNK = b"%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)


HEALTH = b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _post(*lines, body=HIDDEN, first=b"POST /api/predict HTTP/1.1\r\n", host=HOST):
    return first + host + KIND + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def _length(text):
    return b"Content-Length: " + text


def _coding(text):
    return b"Transfer-Encoding: " + text


_GET = b"GET /api/health HTTP/1.1\r\n"
_HEAD = b"HEAD /api/health HTTP/1.1\r\n"
# by name: bytes of a request, and whether a success would be wrong
CORPUS = {
    "GET with a length": (_post(_length(SIZE), first=_GET), True),
    "HEAD with a length": (_post(_length(SIZE), first=_HEAD), True),
    "GET in chunks": (_post(_coding(b"chunked"), body=CHUNK, first=_GET), True),
    "HEAD in chunks": (_post(_coding(b"chunked"), body=CHUNKED, first=_HEAD), True),
    "DELETE with a length": (_post(_length(SIZE), first=b"DELETE /api/health HTTP/1.1\r\n"), True),
    "OPTIONS with a length": (_post(_length(SIZE), first=b"OPTIONS * HTTP/1.1\r\n"), True),
    "a length of 5,000 digits": (_post(_length(b"1" * 5_000)), True),
    "a length with 5,000 zeros before": (_post(_length(b"0" * 5_000 + SIZE)), True),
    "a length of 30 digits": (_post(_length(b"9" * 30)), True),
    "a length below zero": (_post(_length(b"-1")), True),
    "a length with a plus": (_post(_length(b"+" + SIZE)), True),
    "a length in hexadecimal": (_post(_length(b"0x2a")), True),
    "a length with a point": (_post(_length(SIZE + b".0")), True),
    "a length with an underscore": (_post(_length(b"4_2")), True),
    "a length of digits that are not ASCII": (_post(_length("٤٢".encode())), True),
    "an empty length": (_post(_length(b"")), True),
    "a length and a word": (_post(_length(SIZE + b" bytes")), True),
    "two lengths": (_post(_length(b"0"), _length(SIZE)), True),
    "two lengths, the other way round": (_post(_length(SIZE), _length(b"0")), True),
    "two lengths in one header": (_post(_length(b"0, " + SIZE)), True),
    "the same length twice": (_post(_length(SIZE), _length(SIZE)), True),
    "a length with a space before the colon": (_post(b"Content-Length : " + SIZE), True),
    "a length after a tab": (_post(b"\tContent-Length: " + SIZE, _length(b"0")), True),
    "a length folded": (_post(b"Content-Length:\r\n " + SIZE), True),
    "a length behind a null": (_post(b"Content-Length: 0\x00", _length(SIZE)), True),
    "a length with a carriage return inside": (_post(b"Content-Length: 0\rX: 1", _length(SIZE)), True),
    "a length and chunks": (_post(_length(b"5"), _coding(b"chunked"), body=CHUNKED), True),
    "chunks and a length": (_post(_coding(b"chunked"), _length(SIZE), body=CHUNK), True),
    "chunks": (_post(_coding(b"chunked"), body=CHUNK), True),
    "identity, then chunks": (_post(_coding(b"identity"), _coding(b"chunked"), body=CHUNKED), True),
    "identity and a length": (_post(_coding(b"identity"), _length(SIZE)), True),
    "chunks twice": (_post(_coding(b"chunked"), _coding(b"chunked"), body=CHUNKED), True),
    "chunks and identity in one": (_post(_coding(b"chunked, identity"), body=CHUNKED), True),
    "gzip and chunks": (_post(_coding(b"gzip, chunked"), body=CHUNKED), True),
    "chunks in capitals": (_post(b"TRANSFER-ENCODING: CHUNKED", body=CHUNKED), True),
    "chunks after a vertical tab": (_post(_coding(b"\x0bchunked"), _length(SIZE)), True),
    "chunks in quotes": (_post(_coding(b'"chunked"'), _length(SIZE)), True),
    "chunks misspelt": (_post(_coding(b"xchunked"), _length(SIZE)), True),
    "chunks with a space before the colon": (_post(b"Transfer-Encoding : chunked", _length(SIZE)), True),
    "chunks folded": (_post(b"Transfer-Encoding:\r\n chunked", _length(SIZE)), True),
    "chunks behind a line feed alone": (_post(b"X: 1\nTransfer-Encoding: chunked", body=CHUNKED), True),
    "chunks of HTTP/1.0": (_post(_coding(b"chunked"), body=CHUNKED, first=b"POST / HTTP/1.0\r\n"), True),
    "a chunk with an extension": (_post(_coding(b"chunked"), body=b"5;a=\n" + CHUNK), True),
    "a chunk of wrong size": (_post(_coding(b"chunked"), body=b"fffffffffffffffff1\r\n" + HIDDEN), True),
    "a chunk below zero": (_post(_coding(b"chunked"), body=b"-1\r\n" + CHUNKED), True),
    "a trailer": (_post(_coding(b"chunked"), body=b"0\r\nContent-Length: 9\r\n\r\n" + HIDDEN), True),
    "two hosts": (_post(_length(b"0"), body=b"", host=HOST + b"Host: evil.example\r\n", first=_GET), True),
    "the same host twice": (_post(body=b"", host=HOST + HOST, first=_GET), True),
    "no host": (_post(body=b"", host=b"", first=_GET), True),
    "another host in the target": (_post(body=b"", first=b"GET http://evil.example/hidden HTTP/1.1\r\n"), True),
    "a host with a port of words": (_post(body=b"", host=b"Host: localhost:evil.example\r\n", first=_GET), False),
    "a header without a colon": (_post(b"Content-Length", body=HIDDEN, first=_GET), True),
    "a space before the first header": (_post(b" X: 1", first=_GET, host=b"", body=b""), True),
    "an empty name": (_post(b": 1", _length(SIZE)), True),
    "100 continue": (_post(b"Expect: 100-continue", _length(b"9" * 9), body=b""), True),
    "an upgrade": (_post(b"Upgrade: h2c", b"Connection: Upgrade", b"HTTP2-Settings: AA", first=_GET), True),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN, True),
    "a line feed alone": (_post(b"X: 1\nContent-Length: 42", _length(b"0")), True),
    "a second request that is folded": (
        HEALTH + _post(b"X: 1", b"\tContent-Length: 42", _length(b"0"), body=HIDDEN),
        False,
    ),
    "HTTP/0.9": (b"GET /api/health\r\n" + HIDDEN, True),
    "a version that is not there": (_post(first=b"GET /api/health HTTP/9.9\r\n", body=b""), True),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + HIDDEN, True),
    "a refused body": (_post(_length(b"9999999"), body=HIDDEN), True),
    "a body of another kind": (b"POST /api/predict HTTP/1.1\r\n" + HOST + _length(SIZE) + b"\r\n\r\n" + HIDDEN, True),
    "a body for a path that is not there": (_post(_length(SIZE), first=b"POST /nowhere HTTP/1.1\r\n"), True),
    "a body from another host": (_post(_length(SIZE), host=b"Host: evil.example\r\n"), True),
    "a body that is too short": (_post(_length(b"999"), body=HIDDEN), True),
    "no length": (_post(body=HIDDEN), True),
    "long headers": (_post(b"X: " + b"a" * 200_000, body=HIDDEN), True),
    "many headers": (_post(*[b"X-%d: 1" % k for k in range(20_000)], body=HIDDEN), True),
}


def replies(address, raw, patience=1.0):
    """All bytes that a server sends back until it closes, or is silent for so many seconds."""
    found = b""
    with socket.create_connection(address) as client:
        client.settimeout(patience)
        try:
            client.sendall(raw)
            client.shutdown(socket.SHUT_WR)
            end = time.monotonic() + 20
            while time.monotonic() < end and (part := client.recv(1 << 16)):
                found += part
        except OSError:
            pass
    return found


_NAMES = [b"Content-Length", b"Transfer-Encoding", b"content-length", b"Transfer-encoding", b"Host", b"Expect", b"X"]
_NAMES += [b"Connection", b"Content-Type", b"Content_Length", b"Upgrade", b"TE", b"Trailer", b" Content-Length"]
_VALUES = [
    b"chunked",
    b"identity",
    b"5",
    b"0",
    SIZE,
    b"-1",
    b"5, 5",
    b"5, 6",
    b"gzip, chunked",
    b"keep-alive",
    b"close",
]
_VALUES += [
    b"localhost",
    b"evil.example",
    b"100-continue",
    b"9" * 25,
    b"application/json",
    b"h2c",
    b"\x00",
    b"\x0bchunked",
]
_ENDS = [b"\r\n"] * 12 + [b"\n", b"\r", b"\r\n ", b"\r\n\t", b"\x00\r\n", b"\x0b\r\n"]
_FIRST = [b"POST", b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"get", b"P OST"]
_PATHS = [
    b"/api/predict",
    b"/api/health",
    b"/",
    b"/api/runs",
    b"*",
    b"/%00",
    b"//",
    b"/api/predict?x=1",
    b"http://localhost/",
]
_VERSIONS = [b" HTTP/1.1"] * 8 + [b" HTTP/1.0", b" HTTP/2.0", b"", b"  HTTP/1.1"]


def fuzzed(seed):
    """A random request made of the parts that matter to its framing.

    Its body hides a request, and the framing is never one by which the hidden request would be a second one: with a
    valid length, the body is as long as it says, or shorter.
    """
    chance = random.Random(seed)
    first = chance.choice(_FIRST) + b" " + chance.choice(_PATHS) + chance.choice(_VERSIONS) + b"\r\n"
    lines = [HOST] if chance.random() < 0.9 else []
    # a framing of more than the body there is: whatever the server makes of it, nothing after it is a request
    framing = [b"Content-Length: 90000\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 1e9\r\n"]
    lines.append(chance.choice(framing))
    for _ in range(chance.randrange(5)):
        lines.append(chance.choice(_NAMES) + chance.choice([b": ", b":", b" : ", b":\t"]) + chance.choice(_VALUES))
        lines[-1] += chance.choice(_ENDS)
    chance.shuffle(lines)
    raw = bytearray(first + b"".join(lines) + b"\r\n" + chance.choice([HIDDEN, CHUNK, b"5\r\n" + HIDDEN]))
    if chance.random() < 0.3:
        raw[chance.randrange(len(first))] = chance.randrange(256)
    return bytes(raw)
