"""The commands plot-tree and compare-trees: draw the trees of a model, and compare the trees of several models."""

from itertools import combinations
from pathlib import Path
from typing import Annotated

import numpy as np
import rich
import torch
import typer

import polymax as pm
from polymax.plot.canvas import new_axes
from polymax.plot.matrix import figure_size
from polymax_recipes.cli import fail, plain_errors
from polymax_recipes.latent.classifier import Classifier
from polymax_recipes.latent.data import Example, Examples, tokens
from polymax_recipes.latent.draw import draw_listops
from polymax_recipes.latent.task import LatentTask, fitting
from polymax_recipes.latent.trees import Found, find_trees, uas
from polymax_recipes.metrics import self_f1
from polymax_recipes.outputs import save_picture, writable_file
from polymax_recipes.readers.lines import Line
from polymax_recipes.training.commands import Device, Late, RunDirectory, load_run, print_reports
from polymax_recipes.training.run import Run
from polymax_recipes.training.task import Report, Trained
from polymax_recipes.training.vocabulary import stored_words


def plot_tree(
    run: RunDirectory,
    source: Annotated[str, typer.Option(help="Sentence to parse, or an expression; two with a tab between them.")],
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("tree.png"),
    device: Device = "auto",
    options: Late = None,
) -> None:
    """Draw the tree that a model of latent trees finds, or the words of a rationale, and print the label."""
    with plain_errors("stopped", ValueError):
        writable_file(out, inputs=Run(run).files)
        trained = load_run(run, device, options)
        given = latent(trained, run).parse("--source", [Line(1, source, source)])
        if given is None:
            fail("--source must have a word")
        example = fitting(trained, given)
        made = trees(trained, [example])
        if not made.spans and not made.heads and not made.chosen:
            fail(f"{run} is a run of --model {trained.options.model}, which has no trees")
        words = stored_words(trained.vocabularies, "words")
        sides = [tokens(side, words) for side in example.sides]
        # as wide as the longer sentence needs
        width = max(6.4, 0.45 * max(map(len, sides)))
        height = max(figure_size(["chosen"], read)[1] for read in sides) if made.chosen else 4.8
        axes = np.atleast_1d(new_axes(width, height * len(sides), rows=len(sides)))
        for k, read in enumerate(sides):
            n = len(read)
            if made.chosen:
                y = torch.zeros(1, n)
                y[0, list(made.chosen[k])] = 1
                pm.plot.attention(y, ["chosen"], read, ax=axes[k])
            elif made.spans:
                y = torch.eye(n)
                for first, last in made.spans[k]:
                    y[first, last] = 1
                pm.plot.tree(y, read, ax=axes[k])
            else:
                y = torch.zeros(n + 1, n + 1)
                y[torch.tensor(made.heads[k]), torch.arange(1, n + 1)] = 1
                pm.plot.arcs(y, read, ax=axes[k])
        save_picture(axes[0].figure, out, bbox_inches="tight", dpi=150)
        label = next(iter(trained.predict([source])))
        rich.get_console().print(f"{label}\nwrote {out}", highlight=False, soft_wrap=True, markup=False)


def compare_trees(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN ...", help="Directories that train wrote.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="File like that of the training.")],
    device: Device = "auto",
) -> None:
    """Measure how much the trees of several runs agree, such as those of several seeds."""
    with plain_errors("stopped", ValueError):
        print_reports({data.name: agreement([load_run(run, device, None) for run in runs], runs, data)})


def add(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (plot_tree, compare_trees, draw_listops):
        app.command()(command)


def agreement(every: list[Trained], names: list[Path], data: Path) -> Report:
    """Return the mean over pairs of runs of F1 between their trees, or of the share of tokens with equal heads."""
    if len(every) < 2:
        raise ValueError(f"RUN must be given at least twice; got {len(every)}")
    made = [trees(one, latent(one, name).read([data])) for one, name in zip(every, names)]
    binary = bool(made[0].spans)
    for name, one in zip(names, made):
        if not (one.spans if binary else one.heads):
            raise ValueError(f"{name} must have {'binary' if binary else 'dependency'} trees, as all runs; it has not")
    if binary:
        scores = self_f1([one.spans for one in made])
        return {"runs": len(every), "self_f1": scores.sentence, "self_f1_corpus": scores.corpus}
    pairs = [uas(one.heads, other.heads) for one, other in combinations(made, 2)]
    return {"runs": len(every), "self_uas": sum(pairs) / len(pairs)}


def latent(trained: Trained, run: Path) -> LatentTask:
    """The task of a run, if it has latent trees."""
    if not isinstance(trained.task, LatentTask):
        raise ValueError(f"{run} is a run of {trained.task.name}; only listops and classify have latent trees")
    return trained.task


def trees(trained: Trained, examples: list[Example]) -> Found:
    """The trees that a model finds in examples."""
    data = trained.task.encode(examples, trained.vocabularies)
    assert isinstance(data, Examples)
    assert isinstance(trained.model, Classifier)
    return find_trees(trained.model, data, trained.options.batch)
