"""Rules on the tags of sentences and documents: their language, the best tags that keep them, and the command."""

from itertools import product

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.tag.agreed import agreed_tags, relaxed_tags
from polymax_recipes.tag.rules import read_rules, rules_on

NAMES = ["A", "B-X", "B-Y"]
POOL = [
    "at most 1 A",
    "at least 2 B-X or B-Y",
    "A implies B-Y",
    "exactly 2 B-Y per document",
    "B-X excludes A per document",
    "exactly 1 B-X per sentence",
    "at least 5 B-X",
    "at most 0 A per document",
    "B-X implies A or B-Y per document",
    "at least 9 A or B-* per document",
]


def rules(*texts):
    return rules_on([f"rules.txt:{k}\t{text}" for k, text in enumerate(texts, 1)], NAMES)


def best_of_all(listed, unary, transition):
    """By enumeration, over two sentences."""
    best, found = -np.inf, None
    sizes = [len(x) for x in unary]
    for tags in product(range(3), repeat=sum(sizes)):
        parts = [tags[: sizes[0]], tags[sizes[0] :]]
        if not all(r.keeps(tags) if r.document else all(r.keeps(part) for part in parts) for r in listed):
            continue
        total = sum(float(x[k, tag]) for x, part in zip(unary, parts, strict=True) for k, tag in enumerate(part))
        total += sum(float(transition[a, b]) for part in parts for a, b in zip(part, part[1:], strict=False))
        if total > best:
            best, found = total, parts
    return found


def test_the_best_tags_are_those_of_enumeration():
    draw = np.random.default_rng(0)
    for _ in range(25):
        listed = rules(*draw.choice(POOL, draw.integers(1, 4), replace=False))
        unary = [torch.from_numpy(draw.normal(size=(n, 3))) for n in (3, 2)]
        transition = torch.from_numpy(draw.normal(size=(3, 3)))
        transition[0, 1] = -torch.inf
        wanted = best_of_all(listed, unary, transition)
        if wanted is None:
            with pytest.raises(ValueError, match=r"rules.txt:\d: .* cannot be kept by a text of 2 sentences and 5 tok"):
                agreed_tags(listed, unary, transition)
        else:
            assert [tuple(tags.tolist()) for tags in agreed_tags(listed, unary, transition)] == wanted


def test_a_relaxation_finds_them_too():
    """If rules remember too much, chains and logic that must agree find tags that keep them."""
    draw = np.random.default_rng(1)
    listed = rules("at most 1 A", "B-X implies B-Y per document")
    unary = [torch.from_numpy(draw.normal(size=(n, 3))) for n in (2, 1)]
    unary[0][:, 0] += 2.0
    transition = torch.zeros(3, 3, dtype=torch.float64)
    found = [tuple(tags.tolist()) for tags in relaxed_tags(listed, unary, transition)]
    assert found == best_of_all(listed, unary, transition)
    impossible = rules("at least 1 A", "at most 0 A")
    with pytest.raises(ValueError, match=r"rules.txt:\d: .* cannot be kept"):
        relaxed_tags(impossible, unary[1:], transition)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("at most one A", "a count of at least 0 expected after 'at most'; got 'one'"),
        ("at most 1 C", "C is not a tag of the training, whose tags are A, B-X, B-Y"),
        ("at most 1 A B-X", "labels joined by 'or' expected; got 'A B-X'"),
        ("exactly 1 A per page", "'per sentence' or 'per document' expected; got 'per page'"),
        ("A implies A or B-X", "both sides of 'implies' name A"),
        ("no A", "expected; got 'no A'"),
    ],
)
def test_lines_that_are_no_rules_are_named(tmp_path, text, message):
    file = tmp_path / "rules.txt"
    file.write_text(f"# what must hold\n\nat most 1 A  # one\n{text}\n")
    with pytest.raises(ValueError, match=r"rules\.txt:4: ") as error:
        rules_on(read_rules(file), NAMES)
    assert message in str(error.value)


def test_predictions_keep_the_rules(tmp_path):
    sentences = ["a A\nb B-X\n", "b B-X\nd O\na A\n", "c B-Y\n"]
    (tmp_path / "train.txt").write_text("-DOCSTART- O\n\n" + "\n".join(sentences * 4))
    (tmp_path / "rules.txt").write_text("at most 1 A\nexactly 2 B-* per document\n")
    arguments = ["--train", "train.txt", "--dev", "train.txt", "--out", "run", "--constraints", "rules.txt"]
    paths = [str(tmp_path / word) if "." in word or word == "run" else word for word in arguments]
    small = ["--hidden", "4", "--embedding", "4", "--characters", "4", "--epochs", "1", "--accelerator", "cpu"]
    result = CliRunner().invoke(cli.application(), ["train", "tag", *paths, *small])
    assert result.exit_code == 0, result.output
    run = recipes.load(tmp_path / "run")
    document = ["-DOCSTART-", "", "a", "a", "a", "", "b", "c", ""]
    found = list(run.predict([*document, *document]))
    for start in (0, len(document)):
        part = found[start : start + len(document)]
        tags = [[line.split("\t")[1] for line in part[a:b]] for a, b in ((2, 5), (6, 8))]
        assert tags[0].count("A") <= 1
        assert sum(tag.startswith("B-") for tag in tags[0] + tags[1]) == 2
    assert run.evaluate(tmp_path / "train.txt")["sentences"] == 12
    # what cannot be kept is told, and left
    kept = run.model.rules
    for scope in ("sentence", "document"):
        run.model.rules = rules_on([f"r:1\tat least 1 A per {scope}", "r:2\tat most 0 A"], run.model.names)
        with pytest.warns(UserWarning, match="r:1: .* r:2: .* cannot be kept by a text of 1 sentences and 2 tokens"):
            assert len(list(run.predict(["a", "b", ""]))) == 3
    run.model.rules = kept
    with pytest.raises(ValueError, match="distribution must be false"):
        list(recipes.load(tmp_path / "run", distribution=True).predict(["a", ""]))
    (tmp_path / "rules.txt").write_text("at most 1 Z\n")
    paths[5] = str(tmp_path / "other")
    result = CliRunner().invoke(cli.application(), ["train", "tag", *paths, *small])
    assert result.exit_code != 0
    assert "Z is not a tag of the training" in f"{result.output}{result.exception}".replace("\n", " ")
