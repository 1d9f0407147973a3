"""Run the battery of all operators under compute-sanitizer: memcheck, then racecheck.

    python -m tests.device.sanitize [--tool memcheck|racecheck] [NAME ...]

Each tensor has memory of its own, so that a read beside one is seen: torch's cache of memory is off.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
# the exit status of compute-sanitizer where it finds something
FOUND = 86


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.device.sanitize", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--tool", choices=("memcheck", "racecheck"), action="append", help="both")
    parser.add_argument("--sanitizer", default=shutil.which("compute-sanitizer"), help="its path")
    parser.add_argument("names", nargs="*", help="parts of names of calls; all of them")
    given = parser.parse_args(arguments)
    if given.sanitizer is None:
        print("compute-sanitizer is not on the PATH: it comes with the CUDA toolkit; --sanitizer names it")
        return 2
    worst = 0
    for tool in given.tool or ["memcheck", "racecheck"]:
        print(f"{tool}: {' '.join(command(given.sanitizer, tool, given.names))}", flush=True)
        status = subprocess.run(
            command(given.sanitizer, tool, given.names), cwd=HOME, env=environment(), check=False
        ).returncode
        print(f"{tool}: {'found errors' if status == FOUND else 'clean' if status == 0 else f'ended by {status}'}")
        worst = worst or status
    return worst


def command(sanitizer: str, tool: str, names: list[str]) -> list[str]:
    options = ["--tool", tool, "--error-exitcode", str(FOUND), "--target-processes", "application-only"]
    return [sanitizer, *options, sys.executable, "-m", "tests.device.battery", *names]


def environment() -> dict[str, str]:
    path = os.pathsep.join((str(HOME), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": path, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


if __name__ == "__main__":
    sys.exit(main())
