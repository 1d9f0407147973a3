"""Alignment of sequences: scores that were learned find what evolution did, files are FASTA, faults are named."""

import pytest
import torch
from torch.testing import assert_close as close
from typer.testing import CliRunner

import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.protein_align.data import Pairs, read_alignments
from polymax_recipes.protein_align.evolution import FREQUENCIES, evolved, substitution_probabilities
from polymax_recipes.protein_align.model import LOSSES
from polymax_recipes.protein_align.task import ProteinAlignOptions, task
from polymax_recipes.readers.fasta import read_fasta
from polymax_recipes.training import fit
from polymax_recipes.training.task import Trained


def invoke(*arguments):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proteins")
    for seed, (part, count) in enumerate({"train": 30, "dev": 10}.items()):
        assert invoke("draw-proteins", folder / f"{part}.fa.gz", "--count", count, "--seed", seed).exit_code == 0
    return {part: [folder / f"{part}.fa.gz"] for part in ("train", "dev")}


def test_scores_are_learned(files, tmp_path):
    options = {"lr": 0.1, "batch_size": 10, "accelerator": "cpu"}
    pairs = read_alignments(files["dev"])
    start = task.vocabularies(pairs, ProteinAlignOptions())
    model = task.model(ProteinAlignOptions(), start)
    first = task.evaluate(Trained(task, ProteinAlignOptions(), start, model), pairs)
    report = fit.train("protein-align", files, tmp_path / "run", {**options, "epochs": 4})["dev"]
    assert report["precision"] > 0.86 > first["precision"]
    assert report["recall"] > 0.86 > first["recall"]
    made = recipes.load(tmp_path / "run")
    letters = made.vocabularies["letters"].words
    similar = made.model.matrix()[4:, 4:]
    i, v, w = (letters.index(letter) for letter in "IVW")
    assert similar[i, v] > similar[i, w], "isoleucine becomes valine more often than tryptophan"
    result = invoke("predict", tmp_path / "run", files["dev"][0], "--output", tmp_path / "out.fa")
    assert result.exit_code == 0, result.output
    known, found = read_alignments(files["dev"]), read_alignments([tmp_path / "out.fa"])
    assert [one[:3] for one in known] == [one[:3] for one in found]
    right = sum(len(set(a.links) & set(b.links)) for a, b in zip(known, found))
    assert right / sum(len(one.links) for one in known) == pytest.approx(report["recall"])
    (one,) = made.results([(known[0].first, known[0].second.lower())])
    assert one.links == found[0].links
    assert one.rows[0].replace("-", "") == known[0].first
    assert bool((one.weights >= 0).all())
    assert bool((one.weights.sum(1) <= 1.001).all())


@pytest.mark.parametrize("loss", LOSSES)
def test_a_batch_is_its_pairs(files, loss):
    pairs = [one for one in read_alignments(files["dev"]) if len(one.first) < 60][:3]
    vocabularies = task.vocabularies(pairs, ProteinAlignOptions())
    model, data = task.model(ProteinAlignOptions(loss=loss), vocabularies), Pairs(pairs, vocabularies)
    total, count = model.loss(data[torch.arange(3)])["loss"]
    assert count == 3
    close(total, sum(model.loss(data[torch.tensor([k])])["loss"][0] for k in range(3)), rtol=1e-3, atol=1e-3)
    total.backward()
    assert all(bool(p.grad.any()) for p in model.parameters())


def test_evolution_is_reversible_and_keeps_frequencies():
    frequency = torch.tensor(list(FREQUENCIES.values()), dtype=torch.float64) / sum(FREQUENCIES.values())
    p = substitution_probabilities(0.5)
    close(p.sum(1), torch.ones(20, dtype=torch.float64))
    close(frequency @ p, frequency)
    close(frequency[:, None] * p, (frequency[:, None] * p).T)
    small = substitution_probabilities(1e-4)
    close(1 - frequency @ small.diag(), torch.tensor(1e-4, dtype=torch.float64), rtol=1e-2, atol=0.0)
    assert all("-" not in first + second for first, second in evolved(5, 0, 1.0, 0.0))
    assert all(first == second for first, second in evolved(5, 0, 0.0, 0.0))


def test_faults_are_one_line(tmp_path):
    file = tmp_path / "a.fa"
    cases = [
        ("ACGT\n", "1: a name after '>' expected; got 'ACGT'"),
        (">a\nAC\n>b\nACG\n", "3: a row of 2 columns expected, as that of 'a'; got 3"),
        (">a\nAC\n", "1: records must come in pairs; got 'a' alone at the end"),
        (">a\n>b\nAC\n", "1: letters expected after '>a'"),
        (">a\nA1\n>b\nAC\n", "2: letters and gaps expected; got '1'"),
        (">a\n--\n>b\nAC\n", "1: letters expected; 'a' has gaps alone"),
    ]
    for text, message in cases:
        file.write_text(text)
        result = invoke("train", "protein-align", "--train", file, "--dev", file, "--out", tmp_path / "run")
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: {file}:{message}")
    file.write_text(">a b\nac\n\nG-\n>c\nACGT\n")
    assert [tuple(record) for record in read_fasta(file)] == [("a b", "ACG-", 1), ("c", "ACGT", 5)]
