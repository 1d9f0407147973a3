"""The browser of the tests: where it is, and how tests that use it fail."""

import functools
import shutil
import traceback

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)


def plain_failure(test):
    """Fail with a sentence instead of a traceback with its source.

    Playwright switches greenlets, after which Python 3.11 cannot parse source any more: pytest itself would fail.
    """

    @functools.wraps(test)
    def run(*args, **named):
        try:
            test(*args, **named)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)
            own = next((frame for frame in reversed(where) if "/tests/" in frame.filename), where[-1])
            pytest.fail(f"{own.filename}:{own.lineno}: {type(error).__name__}: {error}", pytrace=False)

    return run
