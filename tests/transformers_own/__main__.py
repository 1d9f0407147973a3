"""Run the tests of Transformers itself with attention of polymax in the place of sdpa, and compare with the baseline.

    git clone --depth 1 --branch v5.15.1 https://github.com/huggingface/transformers CHECKOUT
    python -m tests.transformers_own CHECKOUT
    python -m tests.transformers_own CHECKOUT --mapping entmax --models llama bert

The installed version of Transformers must be that of the checkout. Nothing is downloaded. With softmax the tests should
pass that pass without polymax. Any other mapping takes the places of sdpa and of eager: sdpa by the paths of
`scaled_dot_product_attention`, eager by the matrix of all scores, so that tests that compare the two compare our paths.
The exit status is 1 if a test fails that passes in the baseline.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

import polymax

MODELS = [
    *("llama", "bert", "gpt2", "t5", "bart", "whisper", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "opt"),
    *("roberta", "modernbert", "distilbert", "vit", "siglip"),
]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.transformers_own", description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a clone of transformers at the tag of the installed version")
    parser.add_argument("--mapping", default="softmax", help="softmax, or a mapping that takes the place of eager, too")
    parser.add_argument("--models", nargs="+", default=MODELS, help="folders of tests/models")
    parser.add_argument("--select", default="", help="an expression for pytest -k")
    given = parser.parse_args(arguments)
    folders = [given.checkout / "tests" / "models" / name for name in given.models]
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        parser.error(f"not in the checkout: {', '.join(missing)}")
    baseline, swapped = (run(given.checkout, folders, given.select, name) for name in (None, given.mapping))
    broken = sorted(name for name, passed in swapped.items() if not passed and baseline.get(name))
    lost = sorted(name for name, passed in baseline.items() if passed and name not in swapped)
    for label, found in (("baseline", baseline), (f"polymax {given.mapping}", swapped)):
        print(f"{label}: {sum(found.values())} of {len(found)} tests pass")
    for name in broken:
        print(f"fails with polymax alone: {name}")
    for name in lost:
        print(f"did not run with polymax: {name}")
    return int(bool(broken or lost or not any(baseline.values())))


def run(checkout: Path, folders: list[Path], select: str, mapping: str | None) -> dict[str, bool]:
    """Return True for each test that passes and False for each that fails, by its name; those skipped are left out."""
    here = Path(__file__).parent
    paths = [str(here), str(Path(polymax.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    place = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}"]
        command += ["-p", "transformers_swap", f"--polymax-mapping={mapping}"] if mapping else []
        command += ["-k", select] if select else []
        done = subprocess.run(
            [*command, *map(str, (f.resolve() for f in folders))],
            cwd=checkout,
            env=place,
            capture_output=True,
            text=True,
        )
        if not report.is_file():
            raise SystemExit(f"pytest wrote no report:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        cases = xml.parse(report).getroot().iter("testcase")
        return {
            f"{case.get('classname')}.{case.get('name')}": all(case.find(k) is None for k in ("failure", "error"))
            for case in cases
            if case.find("skipped") is None
        }


if __name__ == "__main__":
    sys.exit(main())
