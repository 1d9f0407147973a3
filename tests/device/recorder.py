"""A plugin of pytest for tests/device/__main__.py: a line for each test that begins and ends, as it happens."""

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

# after one of these, every later call of the process fails
FATAL = "illegal memory access", "misaligned address", "device-side assert", "unspecified launch failure", "CUDA error"
LOST = 70


def pytest_addoption(parser):
    parser.addoption("--record", help="a file for lines of JSON, one for each test that begins and ends")
    parser.addoption("--chosen", help="a file of tests, one a line, the only ones to run")
    parser.addoption("--claims", help="a folder in which processes claim the tests that they run")


def pytest_configure(config):
    config.pluginmanager.register(Recorder(Path(config.getoption("--record")), config.getoption("--claims")))


def claimed(folder, nodeid):
    """Claim a test; return False if another process has it."""
    try:
        (Path(folder) / hashlib.sha256(nodeid.encode()).hexdigest()[:32]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def pytest_collection_modifyitems(config, items):
    chosen = config.getoption("--chosen")
    if chosen is not None:
        wanted = {name: k for k, name in enumerate(Path(chosen).read_text().splitlines())}
        items[:] = sorted((item for item in items if item.nodeid in wanted), key=lambda item: wanted[item.nodeid])


class Recorder:
    """Writes lines: a list of tests that were collected; `begins` a test; a test, its outcome, seconds and message."""

    def __init__(self, path, claims):
        self._file, self._claims = path.open("a"), claims
        self._begun, self._worst, self._message = 0.0, "passed", ""

    def _write(self, **line):
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def pytest_collection_finish(self, session):
        if session.config.getoption("collectonly"):
            self._write(collected=[item.nodeid for item in session.items])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        if self._claims is None or claimed(self._claims, item.nodeid):
            return None
        # the ends of shares are taken over: nothing is left after this test
        item.session.shouldstop = "another process runs the other tests"
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid):
        self._begun, self._worst, self._message = time.time(), "passed", ""
        self._write(begins=nodeid, at=self._begun)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._worst, self._message = "failed", report.longreprtext[-4000:]
        elif report.skipped and self._worst == "passed":
            self._worst = "xfailed" if hasattr(report, "wasxfail") else "skipped"

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid):
        seconds = round(time.time() - self._begun, 3)
        self._write(ends=nodeid, outcome=self._worst, seconds=seconds, message=self._message)
        if self._worst == "failed" and any(words in self._message for words in FATAL):
            # the next tests have a process of their own
            os._exit(LOST)
