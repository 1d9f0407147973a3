"""Processes that compute: each has the models, takes inputs that came at the same time, and can be killed.

A Python thread cannot be stopped from outside. A process can, which also frees its memory: an input that takes too long
ends its process, which is started again, and no other request fails.
"""

import logging
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from polymax_recipes.serve.errors import Refused
from polymax_recipes.serve.limits import Share
from polymax_recipes.serve.process import Failure, Work, work

log = logging.getLogger("polymax_recipes.serve")

BUSY = "too many requests wait already; try again later"
DIED = "the process that computed this ended before it had an answer; it may have needed too much memory"
# seconds in which a process must have loaded its models and compiled its kernels
STARTING = 600.0
# seconds between checks of a computing process
LOOK = 0.05
# seconds that abandoned work may continue, about the time to start a new process
GRACE = 2.0
# the share of its time that an input may wait for others of its batch
PATIENCE = 1 / 3


@dataclass(eq=False)
class Item:
    """A waiting input: its kind of work, its share of the largest work, and its deadline."""

    kind: str
    given: Any
    share: Share
    until: float
    result: Future = field(default_factory=Future)
    # True once it was in a batch that took too long, or that ended its process
    alone: bool = False

    @property
    def wanted(self) -> bool:
        """True if a request still waits for the result."""
        return not self.result.done() and time.monotonic() < self.until

    def end(self, outcome: Any) -> None:
        """Give the result, or the exception."""
        with suppress(InvalidStateError):
            if isinstance(outcome, Exception):
                self.result.set_exception(outcome)
            else:
                self.result.set_result(outcome)


class Late(Exception):
    """A process took longer than it may."""


class Pool:
    """Processes that do the same work, and the inputs that wait for them.

    `load` is called in each process, and returns a function of a kind of work and a list of inputs. If there are
    several processes, the first takes only light inputs, so that these never wait behind heavy ones. Inputs that come
    within `wait` seconds are computed together, at most `most` at a time; at most `waiting` inputs wait.

    An input whose time is over while it is computed ends its process, and a new process takes its place. If a batch
    takes too long or ends its process, each of its inputs is computed by itself.
    """

    def __init__(
        self,
        load: Callable[[], Work],
        count: int = 2,
        most: int = 64,
        wait: float = 0.004,
        waiting: int = 8192,
        memory: int = 0,
        threads: int = 0,
    ) -> None:
        self.load, self.most, self.wait, self.waiting = load, most, wait, waiting
        self.memory, self.threads = memory, threads or max(1, (os.cpu_count() or 1) // count)
        self._queue: deque[Item] = deque()
        self._changed = threading.Condition()
        self._closed = False
        # processes that had to be killed or ended by themselves
        self.ended = 0
        self._processes = [_Process(self) for _ in range(count)]
        try:
            self.about = [process.wait() for process in self._processes].pop()
        except BaseException:
            for process in self._processes:
                process.kill()
            raise
        self._threads = [
            threading.Thread(target=self._serve, args=(k,), name=f"polymax work {k}", daemon=True) for k in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, kind: str, given: Sequence[Any], shares: Sequence[Share], seconds: float) -> list[Item]:
        """Let inputs wait for a process; a `Refused` if too many wait already."""
        until = time.monotonic() + seconds
        items = [Item(kind, one, share, until) for one, share in zip(given, shares)]
        with self._changed:
            if self._closed or len(self._queue) + len(items) > self.waiting:
                raise Refused(503, BUSY)
            self._queue.extend(items)
            self._changed.notify_all()
        return items

    async def answers(self, kind: str, given: Sequence[Any], shares: Sequence[Share], seconds: float) -> list[bytes]:
        """Return the results of inputs, as JSON; raise `Refused` if the queue is full or the time is over."""
        import asyncio

        items = self.submit(kind, given, shares, seconds)
        try:
            async with asyncio.timeout(seconds):
                return list(await asyncio.gather(*(asyncio.wrap_future(item.result) for item in items)))
        except TimeoutError:
            raise Refused(504, f"the result took longer than {seconds:g} s") from None
        finally:
            # abandoned inputs are not computed
            for item in items:
                item.result.cancel()

    def close(self) -> None:
        """End all processes, whatever they do."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join(5)

    def _serve(self, number: int) -> None:
        while batch := self._next_batch(light=number == 0 and len(self._processes) > 1):
            try:
                self._compute(number, batch)
            except Exception as error:
                log.exception("a batch failed")
                for item in batch:
                    item.end(error)

    def _next_batch(self, light: bool) -> list[Item]:
        """The inputs that are computed next; none if the pool is closed."""
        with self._changed:
            batch: list[Item] = []
            while not self._closed and not batch:
                self._take(batch, light)
                if not batch:
                    self._changed.wait()
            until = time.monotonic() + self.wait
            while batch and not batch[0].alone and (left := until - time.monotonic()) > 0:
                self._take(batch, light)
                self._changed.wait(left)
            return [] if self._closed else batch

    def _take(self, batch: list[Item], light: bool) -> None:
        """Move inputs that fit the batch from the queue into it."""
        kept = []
        while self._queue:
            item = self._queue.popleft()
            if not item.wanted:
                item.result.cancel()
            elif (light and not item.share.light) or not self._fits(batch, item):
                kept.append(item)
            else:
                batch.append(item)
        self._queue.extend(kept)

    def _fits(self, batch: list[Item], item: Item) -> bool:
        if not batch:
            return True
        if item.kind != batch[0].kind or item.alone or batch[0].alone or len(batch) >= self.most:
            return False
        # inputs of a batch are padded to the longest
        return max(one.share.size for one in (*batch, item)) * (len(batch) + 1) <= 1

    def _compute(self, number: int, batch: list[Item]) -> None:
        """Let worker `number` compute the results of a batch; if it dies or is late, start another worker.

        A batch of several inputs gets only a part of the time that is left, after which each is computed alone.
        """
        process = self._processes[number]
        now = time.monotonic()
        latest, soonest = max(item.until for item in batch), min(item.until for item in batch)
        until = latest if len(batch) == 1 else now + PATIENCE * (soonest - now)
        try:
            outcomes = process.ask(batch, until)
        except (Late, EOFError, OSError) as error:
            self.ended += 1
            process.kill()
            if self._closed:
                return
            self._start(number)
            if len(batch) > 1:
                for item in batch:
                    item.alone = True
                with self._changed:
                    self._queue.extendleft(sorted(batch, key=lambda item: -item.share.size))
                    self._changed.notify_all()
            else:
                late = isinstance(error, Late)
                batch[0].end(Refused(504, "the result took too long") if late else Refused(500, DIED))
            return
        for item, outcome in zip(batch, outcomes):
            item.end(Refused(outcome.status, outcome.message) if isinstance(outcome, Failure) else outcome)

    def _start(self, number: int) -> None:
        """Start a process in the place of one that ended, again and again until it runs."""
        while not self._closed:
            try:
                self._processes[number] = _Process(self)
                self._processes[number].wait()
                return
            except Exception:
                self._processes[number].kill()
                if self._closed:
                    return
                log.exception("a process cannot be started")
                time.sleep(1.0)


class _Process:
    """A process and the pipe to it."""

    def __init__(self, pool: Pool) -> None:
        context = _context()
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=work, args=(other, pool.load, pool.memory, pool.threads), daemon=True)
        self.process.start()
        other.close()

    def wait(self) -> Any:
        """Wait until the models are loaded, and return the work's description, or raise its error."""
        if not self.pipe.poll(STARTING):
            raise OSError(f"a process did not load its models within {STARTING:g} s")
        try:
            found = self.pipe.recv()
        except EOFError:
            raise OSError("a process ended while it loaded its models") from None
        if isinstance(found, Exception):
            raise found
        return found

    def ask(self, batch: list[Item], until: float) -> list[Any]:
        """Return the outcomes of a batch; raise `Late` if the time is over, or if no request waits for it any more."""
        self.pipe.send((batch[0].kind, [item.given for item in batch]))
        begun = time.monotonic()
        while not self.pipe.poll(LOOK):
            now = time.monotonic()
            if now > until or (now > begun + GRACE and not any(item.wanted for item in batch)):
                raise Late
        return self.pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(5)
        with suppress(OSError):
            self.pipe.close()


def _context() -> Any:
    """Return the context of processes: a fork server that has imported everything and has no threads, if the system has
    it.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["polymax_recipes.serve.models"])
    return context
