"""Word alignment: softmax is a likelihood, padding changes nothing, links are found without any being shown."""

import gzip
import itertools
import json
import random

import pytest
import torch
from torch.testing import assert_close as close
from typer.testing import CliRunner

import polymax as pm
import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.readers.alignments import WordAlignment
from polymax_recipes.training import fit
from polymax_recipes.training.vocabulary import BEGIN
from polymax_recipes.word_align.data import Pairs, Sides, read_sides, vocabularies_of, words_of
from polymax_recipes.word_align.explanations import EXPLANATIONS
from polymax_recipes.word_align.model import Aligner
from polymax_recipes.word_align.task import WordAlignOptions

PAIRS = [
    Sides("a dog sleeps", "un chien dort"),
    Sides("dog", "le chien noir"),
    Sides(["the", "nation", "sees", "a", "dog"], ["nation", "voit"]),
]
KNOWN = vocabularies_of(PAIRS, 100, False)


def model(attention, **options):
    torch.manual_seed(0)
    made = Aligner(WordAlignOptions(attention=attention, embedding=4, **options), KNOWN).eval()
    with torch.no_grad():
        for direction in (made.forth, made.back):
            torch.nn.init.normal_(direction.lexicon.given.weight)
            torch.nn.init.normal_(direction.lexicon.made.weight)
    return made


@pytest.mark.parametrize("attention", EXPLANATIONS)
def test_a_batch_is_its_pairs(attention):
    made, pairs = model(attention), Pairs(PAIRS, KNOWN)
    batch = pairs[torch.arange(3)]
    together, weights = made.loss(batch)["loss"], made.weights(batch)
    alone = [pairs[torch.tensor([row])] for row in range(3)]
    for part in (0, 1):
        close(together[part].float(), torch.stack([made.loss(one)["loss"][part].float() for one in alone]).sum())
    assert together[1] == 6 + 4 + 7
    for row, one in enumerate(alone):
        for both, single in zip(weights, made.weights(one)):
            n, m = single.shape[1:]
            close(both[row, :n, :m], single[0])
            assert both[row, n:].abs().sum() == both[row, :, m:].abs().sum() == 0


def alignments(attention, m, n):
    """All alignments of m words as indicators (k, m, n + 1): the word that explains each, or nothing in column 0."""
    if attention == "marginal-alignment":
        return torch.nn.functional.pad(pm.Alignment().vertices((m, n)), (1, 0)).double()
    chosen = list(itertools.product(range(n + 1), repeat=m))
    if attention == "sparsemap-assignment":
        chosen = [c for c in chosen if len({k for k in c if k}) == sum(k > 0 for k in c)]
    return torch.nn.functional.one_hot(torch.tensor(chosen), n + 1).double()


@pytest.mark.parametrize("attention", EXPLANATIONS)
def test_losses_and_weights_are_those_of_all_alignments(attention):
    made = model(attention).double()
    for row in range(3):
        batch = Pairs(PAIRS, KNOWN)[torch.tensor([row])]
        total = torch.zeros((), dtype=torch.float64)
        for scores in made(batch):
            m, n = int(scores.made[0]), int(scores.given[0])
            x = torch.cat([scores.nothing[0, :m, None], scores.words[0, :m, :n]], 1).detach()
            found = made.explanation.argmax(scores)[0, :m, :n].detach()
            total = total + value_of(attention, x, alignments(attention, m, n), found)
        close(-made.loss(batch)["loss"][0].detach(), total)


def value_of(attention, x, y, found):
    """The value of scores (m, n + 1), after a look at the weights found: the mean of all, or the best of their hull."""
    totals = (y * x).sum((1, 2))
    if attention in ("softmax", "marginal-alignment"):
        close(found, torch.einsum("k,kmn->mn", totals.softmax(0), y)[:, 1:])
        return totals.logsumexp(0)
    mu = torch.cat([1 - found.sum(1, keepdim=True), found], 1)
    # no alignment is better along the slope of the objective
    assert (y * (x - mu)).sum((1, 2)).max() <= (mu * (x - mu)).sum() + 1e-6
    return (x * mu).sum() - mu.square().sum() / 2 + (len(x) / 2 if attention == "sparsemax" else 0)


def test_softmax_is_the_likelihood_of_a_mixture():
    made = model("softmax")
    batch = Pairs(PAIRS, KNOWN)[torch.tensor([0])]
    (source,), (target,) = batch.source, batch.target
    direction = made.forth
    logits = direction.lexicon.given.weight @ direction.lexicon.made.weight.T + direction.lexicon.bias
    t = logits.softmax(-1)
    prior = direction.prior(*batch)[0].exp()
    close(prior.sum(-1), torch.ones(3))
    nothing = torch.sigmoid(direction.nothing)
    each = nothing * t[BEGIN, target] + (1 - nothing) * (prior * t[source][:, target].T).sum(1)
    close(EXPLANATIONS["softmax"].max(made(batch)[0])[0], each.log().sum())


def test_matchings_use_a_word_once():
    made = model("sparsemap-assignment")
    batch = Pairs(PAIRS, KNOWN)[torch.arange(3)]
    for weights in made.weights(batch):
        assert (weights.sum(1) <= 1 + 1e-5).all()
        assert (weights.sum(2) <= 1 + 1e-5).all()
    assert ((weights == 0) | (weights > 0)).all()


def test_terms_are_left_out_and_learned():
    batch = Pairs(PAIRS, KNOWN)[torch.arange(3)]
    made = model("softmax").train()
    made.loss(batch)["loss"][0].backward()
    assert all(bool((p.grad != 0).any()) for p in made.parameters())
    flat = model("softmax", slope=0, spelling=0)
    assert not [name for name, _ in flat.named_parameters() if "slope" in name or "weight" in name.split(".")[-2:][0]]
    close(flat.forth.prior(*batch)[0], torch.full((3, 5), -torch.inf).index_fill(1, torch.arange(3), -1.0986123))
    alike = model("softmax", slope=0).forth.prior(*batch)[2]
    assert alike[0].argmax() == 1


def test_words_of_texts():
    assert words_of("Qu'il n'aime pas l'école, I'm told.", True) == (
        ["qu'", "il", "n'", "aime", "pas", "l'", "école", ",", "i", "'m", "told", "."]
    )
    assert words_of(["New York", "L'"], True) == ["new york", "l'"]


def conllu(sentences):
    return "".join(
        "".join(f"{k}\t{word}\t_\tX\t_\t_\t{k - 1}\troot\t_\t_\n" for k, word in enumerate(words, 1)) + "\n"
        for words in sentences
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pairs of word-by-word translations with two neighbours swapped: a table, and CoNLL-U with the links."""
    folder, draw = tmp_path_factory.mktemp("pairs"), random.Random(0)
    names = [f"{a}{b}" for a in "bdfgk" for b in "aeiou"]
    rows, links = [], []
    for _ in range(150):
        words = draw.sample(names, draw.randint(3, 6))
        order = list(range(len(words)))
        place = draw.randrange(len(words) - 1)
        order[place : place + 2] = order[place + 1], order[place]
        rows.append((words, [words[k].upper()[::-1] + "X" for k in order]))
        links.append({str(k + 1): [str(j + 1)] for j, k in enumerate(order)})
    (folder / "train.tsv").write_text("".join(f"{' '.join(a)}\t{' '.join(b)}\n" for a, b in rows[:120]))
    for name, side in (("source", 0), ("target", 1)):
        (folder / f"{name}.conllu").write_text(conllu(row[side] for row in rows[120:]))
        (folder / f"{name}.txt").write_text("".join(" ".join(row[side]) + "\n" for row in rows[120:]))
    (folder / "gold.json.gz").write_bytes(gzip.compress(json.dumps(links[120:]).encode()))
    return folder


def invoke(*arguments):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments])


SMALL = {"embedding": 24, "batch_size": 16, "lr": 0.05, "accelerator": "cpu", "spelling": 0}


def parts(files):
    gold = [files / "source.conllu", files / "target.conllu", files / "gold.json.gz"]
    return {"train": [files / "train.tsv"], "dev": gold}


@pytest.mark.parametrize(("attention", "error"), [("softmax", 0.05), ("sparsemap-assignment", 0.05)])
def test_links_are_found(files, tmp_path, attention, error):
    report = fit.train("word-align", parts(files), tmp_path / "run", {**SMALL, "attention": attention, "epochs": 5})
    assert report["dev"]["aer"] < error
    assert (report["dev"]["zeros"] == 0) == (attention == "softmax")
    made = recipes.load(tmp_path / "run")
    lines = ["ba de fi\tEDX ABX IFX", "", "ba de fi ||| ABX EDX IFX"]
    assert list(made.predict(lines)) == ["0-1 1-0 2-2", "", "0-0 1-1 2-2"]
    assert list(recipes.load(tmp_path / "run", threshold=1.5).predict(lines)) == ["", "", ""]
    with pytest.raises(ValueError, match=r"2: source and target expected, with a tab or \|\|\| between; got 'a b'"):
        list(made.predict(["a\tb", "a b"]))
    picture = tmp_path / "links.png"
    drawn = invoke("plot-attention", tmp_path / "run", "--source", lines[2], "--out", picture)
    assert drawn.exit_code == 0, drawn.output
    assert drawn.output.startswith("abx edx ifx\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "aer" not in made.evaluate(files / "source.txt", files / "target.txt")


def test_a_stopped_run_goes_on_to_the_same_bits(files, tmp_path, monkeypatch):
    options = {**SMALL, "epochs": 2, "attention": "sparsemax"}
    fit.train("word-align", parts(files), tmp_path / "whole", options)
    calls, loss = [], Aligner.loss

    def failing(self, batch):
        calls.append(batch)
        if len(calls) == 13:
            raise RuntimeError("the machine stopped")
        return loss(self, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Aligner, "loss", failing)
        with pytest.raises(RuntimeError, match="machine stopped"):
            fit.train("word-align", parts(files), tmp_path / "stopped", options)
    assert invoke("train", "word-align", "--out", tmp_path / "stopped", "--resume").exit_code == 0
    first, second = (torch.load(tmp_path / name / "weights.pt", weights_only=True) for name in ("whole", "stopped"))
    assert all(first[name].equal(second[name]) for name in first)


def test_pairs_come_in_any_files(files):
    gold = parts(files)["dev"]
    aligned, texts = read_sides(gold), read_sides([files / "source.txt", files / "target.txt"])
    assert isinstance(aligned[0].gold, WordAlignment)
    assert read_sides(gold[:2]) == [pair._replace(gold=None) for pair in aligned]
    assert [pair.source.split() for pair in texts] == [pair.source for pair in aligned]
    assert read_sides([files / "train.tsv", *gold]) == read_sides([files / "train.tsv"]) + aligned


def test_faults_are_one_line(files, tmp_path):
    broken = tmp_path / "broken.tsv"
    broken.write_text("a\tb\nc\n")
    short = tmp_path / "short.conllu"
    short.write_text(conllu([["a"]]))
    train = ("train", "word-align", "--out", tmp_path / "run", "--dev", files / "train.tsv")
    cases = [
        ((broken,), f"{broken}:2: 2 columns between tabs expected, source, target; got 1"),
        ((files / "source.txt",), f"pairs must come in a table or in two files; got {files / 'source.txt'} alone"),
        ((files / "source.conllu", short), f"{short}:2: ends after 1 sentences, before {files / 'source.conllu'}"),
    ]
    for given, message in cases:
        result = invoke(*train, *(part for file in given for part in ("--train", file)))
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: {message}")
        assert result.stderr.count("\n") == 1
