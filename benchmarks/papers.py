"""Tables of the papers on which polymax is built: a task, its methods, and trainings that differ in the method alone.

    python -m benchmarks.papers tagging runs --data DATA --device cuda --keep
    python -m benchmarks.papers tagging runs --data DATA --short --minutes 10

DATA is a folder that has the published files, in whatever folders below it; a plan says which, if one is missing. Each
training is one of `polymax train`, whose run stays in the folder of runs; --short has fewer epochs and smaller models.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any

from benchmarks import grid
from polymax_recipes import api
from polymax_recipes.split import split


@dataclass(frozen=True)
class Split:
    """A file that has no parts: every item of so many goes to dev, and one to test, by a column or by place."""

    file: str
    every: int
    group: int = 0


@dataclass(frozen=True)
class Plan:
    """A task, its files by part, options of every training, and those of each method.

    measures: names in the report of the test file
    """

    task: str
    files: dict[str, str]
    options: dict[str, Any]
    methods: dict[str, dict[str, Any]]
    measures: tuple[str, ...]
    short: dict[str, Any] = field(default_factory=dict)
    divided: Split | None = None


def _each(option: str, *values: str) -> dict[str, dict[str, Any]]:
    return {value: {option: value} for value in values}


def _treebank(name: str) -> dict[str, str]:
    return {part: f"{name}-ud-{part}.conllu.gz" for part in ("train", "dev", "test")}


_ATTENTIONS = ("softmax", "sparsemax", "entmax", "fusedmax", "oscarmax", "sq-pnorm-max", "csoftmax", "csparsemax")
_TREES = ("crf", "svm", "perceptron", "sparsemap", "margin-sparsemap", "softmax-heads")
_TAGS = ("crf", "svm", "perceptron", "sparsemap", "sparse-dp", "softmax")
_LATENT: dict[str, dict[str, Any]] = {
    "LSTM": {"model": "lstm"},
    "gold trees": {"model": "tree-lstm"},
    "cooperative, merging": {"model": "gumbel-tree", "method": "cooperative", "parser_rate": 0.3, "entropy": 0.0001},
    "RL-SPINN": {"model": "spinn", "method": "reinforce", "entropy": 0.01},
    "SPINN, straight-through": {"model": "spinn", "method": "straight-through"},
    "Gumbel Tree-LSTM": {"model": "gumbel-tree", "method": "st-gumbel"},
    **{
        f"dependency, {method}": {"model": "dependency", "method": method, "composition": "gcn"}
        for method in (
            *("structured-attention", "sparsemap", "perturb", "spigot", "straight-through"),
            *("score-function", "sparse-expectation"),
        )
    },
}
_TRAINED: dict[str, Any] = {"decay": "linear", "lr": 0.002}
PLANS = {
    "translation": Plan(
        "seq2seq",
        {},
        {"subwords": 8_000, "batch_size": 128, "epochs": 5, **_TRAINED},
        _each("attention", *_ATTENTIONS),
        ("bleu",),
        {"epochs": 1, "hidden": 128, "embedding": 128},
        Split("eng-fra.tsv.gz", 50, 1),
    ),
    "entailment": Plan(
        "entail",
        {part: f"cad_nli_{part}.tsv.gz" for part in ("train", "dev", "test")},
        {"lower": True, "punctuation": True, "epochs": 5, "decay": "linear", "model": "esim"},
        _each("alignment", "softmax", "sparsemax", "assignment", "sequence"),
        ("accuracy",),
        {"epochs": 2},
    ),
    "entailment-attention": Plan(
        "entail",
        {part: f"cad_nli_{part}.tsv.gz" for part in ("train", "dev", "test")},
        {"lower": True, "punctuation": True, "epochs": 12, "decay": "linear"},
        _each("attention", "softmax", "sparsemax", "entmax", "fusedmax", "oscarmax", "sq-pnorm-max"),
        ("accuracy",),
        {"epochs": 2},
    ),
    "tagging": Plan(
        "tag",
        _treebank("en_ewt"),
        {"epochs": 10, "layers": 2, **_TRAINED},
        _each("loss", *_TAGS),
        ("accuracy",),
        {"epochs": 1, "layers": 1},
    ),
    "entities": Plan(
        "tag",
        {part: f"wnut17.{part}.conll.gz" for part in ("train", "dev", "test")},
        {"epochs": 15, "scheme": "BIOES", **_TRAINED},
        _each("loss", *_TAGS),
        ("f1", "precision", "recall"),
        {"epochs": 4, "batch_size": 16},
    ),
    "parsing": Plan(
        "parse",
        _treebank("en_ewt"),
        {"hidden": 300, "epochs": 12, "batch_size": 64, **_TRAINED},
        _each("loss", *_TREES),
        ("uas", "las"),
        {"epochs": 2, "hidden": 100},
    ),
    "parsing-vietnamese": Plan(
        "parse",
        _treebank("vi_vtb"),
        {"hidden": 300, "epochs": 20, "batch_size": 32, **_TRAINED},
        _each("loss", *_TREES),
        ("uas", "las"),
        {"epochs": 3, "hidden": 64},
    ),
    "parsing-chinese": Plan(
        "parse",
        _treebank("zh_gsd_v1"),
        {"hidden": 300, "epochs": 15, "batch_size": 32, **_TRAINED},
        _each("loss", *_TREES),
        ("uas", "las"),
        {"epochs": 2, "hidden": 100},
    ),
    "listops": Plan(
        "listops",
        {"test": "test_d20s.tsv.gz"},
        {"epochs": 12, "batch_size": 128, "hidden": 256, "weight_decay": 0.3, "longest": 40, **_TRAINED},
        _LATENT,
        ("accuracy",),
        {"epochs": 1, "longest": 10, "hidden": 128},
        Split("train_generated_d20s.tsv.gz", 45),
    ),
}


def main() -> int:
    """Train what has no file yet, print the measures of the test files, and keep all of it if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=__doc__)
    grid.add_options(parser, [*PLANS])
    parser.add_argument("--data", type=Path, required=True, help="folder with the published files, at any depth")
    parser.add_argument("--method", action="append", help="one of the plan; may be repeated; all by default")
    parser.add_argument("--short", action="store_true", help="fewer epochs and smaller models")
    options = parser.parse_args()
    return grid.main(f"papers_{options.plan.replace('-', '_')}", options, jobs, table)


def jobs(options: argparse.Namespace) -> Iterator[grid.Job]:
    """Yield the trainings, seeds in the outermost loop."""
    plan = PLANS[options.plan]
    unknown = [name for name in options.method or () if name not in plan.methods]
    if unknown:
        raise ValueError(f"--method: {options.plan} has {', '.join(plan.methods)}; got {unknown[0]}")
    files = data(plan, options.data, options.runs)
    for seed in grid.seeds(options):
        for name in options.method or plan.methods:
            # a method's options win over those of a short training: they are what it is
            short = plan.short if options.short else {}
            chosen = {**plan.options, **short, **plan.methods[name], "seed": seed}
            stem = (
                f"{options.plan}{'-short' if options.short else ''}-{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            )
            facts = {"task": plan.task, "method": name, "seed": seed, "short": options.short, "options": chosen}
            chosen["accelerator"] = "gpu" if options.device == "cuda" else "cpu"
            yield grid.Job(stem, facts, partial(run, plan, files, options.runs / stem, chosen))


def data(plan: Plan, folder: Path, runs: Path) -> dict[str, Path]:
    """Return the file of each part; a file without parts is divided into the folder of runs."""
    found = {part: _only(folder, name) for part, name in plan.files.items()}
    if plan.divided is None:
        return found
    out = runs / "data" / plan.divided.file.partition(".")[0]
    if not out.exists():
        split(_only(folder, plan.divided.file), out, plan.divided.every, plan.divided.group)
    return {file.name.partition(".")[0]: file for file in sorted(out.iterdir())} | found


def _only(folder: Path, name: str) -> Path:
    found = sorted(folder.rglob(name))
    if not found:
        raise ValueError(f"--data: {folder} has no file {name}, which is published under that name")
    return found[0]


def run(plan: Plan, files: dict[str, Path], out: Path, chosen: dict[str, Any]) -> dict[str, Any]:
    """Train one method, and return the measures of dev and test. A run that was stopped goes on."""
    parts = {part: file for part, file in files.items() if part in ("train", "dev", "test")}
    began = perf_counter()
    trained = api.train(plan.task, out=out, resume=(out / "config.json").exists(), **parts, **chosen)
    reports = {
        part: {name: value for name, value in report.items() if isinstance(value, int | float)}
        for part, report in trained.reports.items()
    }
    return {"seconds": perf_counter() - began, "measures": list(plan.measures), "reports": reports}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line for each method: the mean over seeds of each measure of the test file, and the range."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        some = [row for row in rows if row["method"] == method]
        cells = [spread([row["reports"]["test"][name] for row in some]) for name in some[0]["measures"]]
        named = "  ".join(f"{name} {cell}" for name, cell in zip(some[0]["measures"], cells))
        lines.append(f"{method:<36} {len(some)} seeds  {named}")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Return the mean, and the least and the largest of several.

    Example:
        >>> spread([0.5, 0.75]), spread([0.5])
        ('0.6250 (0.5000 to 0.7500)', '0.5000')
    """
    middle = f"{mean(values):.4f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.4f} to {max(values):.4f})"


if __name__ == "__main__":
    sys.exit(main())
