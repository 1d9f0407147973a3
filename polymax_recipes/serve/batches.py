"""Requests that come at the same time are computed together, by one thread that owns the model."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field
from typing import Any

from polymax_recipes.serve.errors import Refused

BUSY = "too many requests wait already; try again later"


@dataclass
class _Job:
    inputs: list[Any]

    result: Future = field(default_factory=Future)


class Batcher:
    """A function of a list of inputs, called with those of many requests at once.

    The first request waits `wait` seconds for others, until there are `most` inputs. At most `waiting` requests wait,
    and one more is refused with 503. A request whose time is over before it is computed is not computed any more. Where
    a batch raises a ValueError each of its requests is computed by itself, so that only the one at fault fails.
    """

    def __init__(
        self, function: Callable[[list[Any]], Sequence[Any]], most: int = 64, wait: float = 0.004, waiting: int = 1024
    ) -> None:
        self.function, self.most, self.wait = function, most, wait
        self._jobs: queue.Queue[_Job | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._work, name="polymax batches", daemon=True)
        self._thread.start()

    def __call__(self, inputs: list[Any], timeout: float) -> list[Any]:
        """The outputs of these inputs; a `Refused` where there is no room or no time for them."""
        job = _Job(inputs)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise Refused(503, BUSY) from None
        try:
            return job.result.result(timeout)
        except Late:
            # a cancelled job is not begun; one that is being computed is thrown away
            job.result.cancel()
            raise Refused(504, f"the result took longer than {timeout:g} s") from None

    def close(self) -> None:
        """Finish what waits, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            jobs, ended = self._next_batch(job)
            started = [one for one in jobs if one.result.set_running_or_notify_cancel()]
            if started:
                self._compute(started)
            if ended:
                return

    def _next_batch(self, first: _Job) -> tuple[list[_Job], bool]:
        """The jobs of the next batch, and True if the thread was asked to end meanwhile."""
        jobs, count, until = [first], len(first.inputs), time.monotonic() + self.wait
        while count < self.most:
            try:
                job = self._jobs.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if job is None:
                return jobs, True
            jobs.append(job)
            count += len(job.inputs)
        return jobs, False

    def _compute(self, jobs: list[_Job]) -> None:
        try:
            outputs = list(self.function([one for job in jobs for one in job.inputs]))
            for job in jobs:
                job.result.set_result([outputs.pop(0) for _ in job.inputs])
        except BaseException as error:
            if len(jobs) > 1 and isinstance(error, ValueError):
                for job in jobs:
                    self._compute([job])
                return
            for job in jobs:
                if not job.result.done():
                    job.result.set_exception(error)
