"""Attack the server on this machine: python -m tests.campaign.server [--fuzz N] [--slow N] [--ordinary N] [--seed S].

A tagger and a parser that were never trained are served on 127.0.0.1. Then come, bounded in number and in time: random
raw requests; clients that send or read slowly or are gone before their answer; and ordinary requests beside others that
ask for all the work there is. Every ordinary request must be answered within its limit, no byte of a body may be read
as a request, and memory must stay bounded.
"""

import argparse
import contextlib
import http.client
import json
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# the most that the server may take beyond what it has at first, and one process that computes beyond its models, in MiB
SERVER, PROCESS = 400, 1024
# requests of the loop: one that is refused, and the largest that are not
HUGE = ["a " * 9_999]
LARGE = [["a"] * 200]


def main(arguments=None):
    """Run all of it; True if nothing is wrong."""
    options = argparse.ArgumentParser(prog="python -m tests.campaign.server", description=__doc__.split("\n")[0])
    options.add_argument("--fuzz", type=int, default=10_000, help="random raw requests")
    options.add_argument("--slow", type=int, default=200, help="slow and killed clients")
    options.add_argument("--ordinary", type=int, default=100, help="ordinary requests beside heavy ones")
    options.add_argument("--timeout", type=float, default=8.0, help="seconds that a result may take")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args(arguments)
    breaches = []
    with served(chosen.timeout) as (server, pool):
        parts = {
            "raw": lambda: raw(server, chosen.fuzz, chosen.seed),
            "slow": lambda: slow(server, chosen.slow),
            "heavy": lambda: heavy(server, pool, chosen.ordinary, chosen.timeout),
        }
        before = memory("self")
        for name, part in parts.items():
            start = time.monotonic()
            told, found = part()
            breaches += [f"{name}: {one}" for one in found]
            more = memory("self") - before
            print(f"{name:6} {time.monotonic() - start:6.1f} s  {told}; server +{more} MiB", flush=True)
            if more > SERVER:
                breaches.append(f"{name}: the server took {more} MiB more")
        peaks = [memory(process.process.pid, "VmHWM") for process in pool._processes]
        print(f"processes ended {pool.ended}, their peaks {peaks} MiB, bodies held {server.held} bytes")
        if max(peaks) > PROCESS + memory("self") or server.held:
            breaches.append(f"memory: peaks {peaks} MiB, {server.held} bytes held")
    for breach in breaches:
        print("breach:", breach)
    return not breaches


@contextlib.contextmanager
def served(timeout):
    """A server of a tagger and a parser, in this process, and its pool."""
    # tables are plain modules beside the tests
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    from untrained import parser, tagger

    from polymax_recipes.serve.limits import Limits
    from polymax_recipes.serve.models import Given, LoadModels
    from polymax_recipes.serve.predictions import Served, routes
    from polymax_recipes.serve.server import Server
    from polymax_recipes.serve.workers import Pool

    limits = Limits(arrival=3.0, computing=timeout)
    with tempfile.TemporaryDirectory() as folder:
        models = (Given("tag", tagger()), Given("parse", parser(Path(folder))))
        pool = Pool(LoadModels(models), 2, memory=1 << 30)
        runs = [Served(**about) for about in pool.about]
        with Server(("127.0.0.1", 0), routes(pool, runs, limits), limits=limits, closing=[pool.close]) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            yield server, pool
            server.shutdown()
            thread.join()


def raw(server, count, seed):
    """Random raw requests; what is wrong with the answers."""
    from raw_requests import CORPUS, MARK, fuzzed, replies

    address = server.server_address[:2]

    def attack(one):
        sent = CORPUS[one][0] if isinstance(one, str) else fuzzed(one)
        found = replies(address, sent, patience=0.5)
        if MARK in found or b"HTTP/1.1 500" in found:
            return f"{one}: {sent[:300]!r} was answered {found[:300]!r}"
        return None

    with ThreadPoolExecutor(8) as threads:
        wrong = [one for one in threads.map(attack, [*CORPUS, *range(seed, seed + count)]) if one]
    return f"{count + len(CORPUS)} raw requests, {len(wrong)} read or answered wrongly", wrong


def slow(server, count):
    """Clients that are slow or gone, and ordinary ones beside them."""
    address = server.server_address[:2]
    body = json.dumps({"inputs": ["Anna sings."]}).encode()
    head = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    ways = [b"", whole[:20], whole[:-3], head + b"Content-Length: 999999\r\n\r\n{", whole]
    held = []
    for k in range(count):
        client = socket.create_connection(address)
        client.sendall(ways[k % len(ways)])
        if k % len(ways) == len(ways) - 1:
            # gone before the answer comes, without a word
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            client.close()
        else:
            held.append(client)
    wrong = [f"ordinary: {one}" for one in ordinary(server, 20, 20.0) if one]
    end = time.monotonic() + 4 * server.limits.arrival
    for client in held:
        client.settimeout(max(0.1, end - time.monotonic()))
        try:
            while client.recv(1 << 16):
                pass
        except TimeoutError:
            wrong.append("a slow client is still connected")
        except OSError:
            pass
        client.close()
    return f"{count} slow or killed clients, {len(wrong)} wrong", wrong


def heavy(server, pool, count, timeout):
    """Ordinary requests beside a loop of those that ask for too much work, or for all there is."""
    stop = threading.Event()
    statuses = []

    def loop(inputs):
        while not stop.is_set():
            statuses.append(ask(server, {"inputs": inputs, "run": 1}, 3 * timeout)[0])

    loops = [threading.Thread(target=loop, args=(inputs,)) for inputs in (HUGE, LARGE, LARGE)]
    for one in loops:
        one.start()
    start = time.monotonic()
    wrong, turns = [], 0
    # until heavy work was stopped twice, but not for ever
    while not turns or (pool.ended < 2 and time.monotonic() - start < 5 * timeout):
        wrong += [one for one in ordinary(server, count, timeout) if one]
        turns += 1
    took = time.monotonic() - start
    stop.set()
    for one in loops:
        one.join()
    counts = {status: statuses.count(status) for status in sorted(set(statuses))}
    return f"{turns * count} ordinary requests in {took:.1f} s, {len(wrong)} wrong, beside {counts}", wrong


def ordinary(server, count, timeout):
    """What is wrong with each of so many ordinary requests, from four clients."""

    def one(k):
        start = time.monotonic()
        status, answer = ask(server, {"inputs": [f"Anna sings {k}."], "run": k % 2}, 3 * timeout)
        took = time.monotonic() - start
        return None if status == 200 and took < timeout else f"{status} after {took:.1f} s: {answer[:200]!r}"

    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(one, range(count)))


def ask(server, body, timeout):
    """The status and the body of the answer to a request; 0 if there is none."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=timeout)
    try:
        connection.request("POST", "/api/predict", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError as error:
        return 0, str(error).encode()
    finally:
        connection.close()


def memory(process, what="VmRSS"):
    """The memory of a process in MiB, by its number or "self"; 0 where the system does not tell."""
    status = Path(f"/proc/{process}/status")
    if not status.exists():
        return 0
    return next(int(line.split()[1]) >> 10 for line in status.read_text().splitlines() if line.startswith(what))


if __name__ == "__main__":
    sys.exit(not main())
