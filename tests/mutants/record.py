"""A plugin of pytest that writes which functions of the packages each test enters, for a few rows of each test.

python -m tests.mutants --record
"""

import hashlib
import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2]
# of the rows of a test, so many are recorded
ROWS = 1


def pytest_collection_modifyitems(items):
    rows = defaultdict(list)
    for item in items:
        rows[item.nodeid.partition("[")[0]].append(item)

    def chance(item):
        return hashlib.sha256(item.nodeid.encode()).hexdigest()

    items[:] = sorted((item for few in rows.values() for item in sorted(few, key=chance)[:ROWS]), key=chance)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    seen = set()

    def note(frame, event, _):
        if event == "call":
            seen.add(frame.f_code)

    begin = time.monotonic()
    sys.setprofile(note)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        home = f"{HOME}/"
        entered = sorted(
            {
                f"{c.co_filename.removeprefix(home)}:{c.co_qualname}"
                for c in seen
                if c.co_filename.startswith((f"{home}polymax/", f"{home}polymax_recipes/"))
            }
        )
        line = {"test": item.nodeid, "seconds": round(time.monotonic() - begin, 2), "entered": entered}
        with open(os.environ["POLYMAX_RECORD"], "a") as file:
            file.write(json.dumps(line) + "\n")
