"""Processes that a server forks, which has imported torch and polymax: they take no seconds to import them again."""

import multiprocessing
import os
import runpy
import sys

FORKED = multiprocessing.get_context("forkserver")
# a server begins with the first process, and is the same for all others
FORKED.set_forkserver_preload(["torch", "polymax", "polymax.integrations.transformers"])


def run_script(file, *arguments, output, timeout=120):
    """Run a Python file as a script, without standard input: its exit code, and all that it wrote."""
    process = FORKED.Process(target=_run, args=(str(file), list(map(str, arguments)), str(output)))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode, output.read_text(encoding="utf-8")


def write_to(output):
    """Send standard output and errors of this process to a file, which is open until the process ends."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)


def _run(file, arguments, output):
    write_to(output)
    sys.argv = [file, *arguments]
    sys.path[0] = os.path.dirname(file)
    runpy.run_path(file, run_name="__main__")
