"""A plugin of pytest: the tests that say most about a mutant come first, and none begin when the time is over."""

import hashlib
import inspect
import json
import os
from pathlib import Path

import pytest

from tests.mutants.relevant import words


def _used():
    """Seconds of processor time of this process and of those that tests have started: others may share the machine."""
    return sum(os.times()[:4])


def _about(item, weights, seen):
    function = getattr(item, "function", None)
    if function is not None and function not in seen:
        try:
            seen[function] = words(inspect.getsource(inspect.unwrap(function)))
        except (OSError, TypeError):
            seen[function] = set()
    text = seen.get(function, set()) | words(item.nodeid)
    return sum(weight for word, weight in weights.items() if word in text)


def _recorded(item, entered):
    return 20 * entered.get(item.nodeid.partition("[")[0], 0.0)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    asked = json.loads(os.environ["POLYMAX_MUTANT"])
    seen = {}

    def place(item):
        # tests that say as much come in an order of their own, so that rows of one table do not fill the time
        chance = hashlib.sha256(item.nodeid.encode()).hexdigest()
        doctest = item.nodeid.startswith(asked["path"])
        about = _about(item, asked["weights"], seen) + _recorded(item, asked["entered"])
        return not doctest, -round(about, 3), chance

    items.sort(key=place)


def pytest_runtest_logstart(nodeid):
    Path(os.environ["POLYMAX_RUNNING"]).write_text(nodeid)


def pytest_runtest_logfinish():
    # read by pytest before the next test
    if _used() > json.loads(os.environ["POLYMAX_MUTANT"])["seconds"]:
        raise pytest.exit.Exception("the time is over", returncode=0)
