"""Waiting for something that happens soon in another thread or process."""

import time


def until(happened, seconds=30.0):
    """Wait until a function returns a true value, and return that; fail after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := happened():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s")
