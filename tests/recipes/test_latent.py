"""Latent trees: parsers act as probably as they say, every method learns, a run holds its trees and goes on."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close as close
from typer.testing import CliRunner

import polymax as pm
import polymax_recipes as recipes
from polymax.nn.shift_reduce import check_transitions
from polymax_recipes import cli
from polymax_recipes.latent import classify, expressions
from polymax_recipes.latent.classifier import sentences_of
from polymax_recipes.latent.cooperative import Cooperative
from polymax_recipes.latent.data import Example, Examples, Sentence, of_expression, read_classes, sentence, transitions
from polymax_recipes.latent.gradients import gradient_measures
from polymax_recipes.latent.merging import MergeParser
from polymax_recipes.latent.options import BASELINES, METHODS, ClassifyOptions, LatentOptions
from polymax_recipes.latent.parser import Drawn, TransitionParser
from polymax_recipes.latent.trees import Found, binary_measures, depth, head_measures, spans_of
from polymax_recipes.listops import Expression, Grammar, read_listops, write_listops
from polymax_recipes.training import fit
from polymax_recipes.training.vocabulary import UNKNOWN, Words

TINY = {"hidden": 7, "embedding": 5, "tracker": 4}
KINDS = [
    *[{"model": model, "method": method} for model, methods in METHODS.items() for method in methods],
    *[{"model": "spinn", "method": "cooperative", "baseline": baseline} for baseline in BASELINES[1:]],
    {"model": "dependency", "method": "spigot", "projective": True, "composition": "gcn"},
]
GOLD = [
    {"model": "spinn", "parser": "pretrained"},
    {"model": "dependency", "parser": "pretrained"},
    {"model": "spinn", "method": "cooperative", "multitask": 0.5},
    {"model": "spinn", "method": "beam", "multitask": 0.5},
    {"model": "spinn", "method": "reinforce", "multitask": 0.5},
    {"model": "dependency", "method": "sparsemap", "multitask": 0.5},
]
SHORT = Grammar(min_tokens=4, max_tokens=9)


def name_of(given):
    return "-".join(str(value) for value in given.values())


def drawn(count, seed=0):
    return list(SHORT.expressions(count, generator=torch.Generator().manual_seed(seed)))


SOME = [*map(of_expression, drawn(5)), of_expression(Expression(("7",)))]
WORDS = expressions.task.vocabularies(SOME, None)


def made(task=expressions.task, vocabularies=WORDS, **given):
    torch.manual_seed(0)
    return task.model(task.Options(**{**TINY, **given}), vocabularies)


def batch_of(examples, task=expressions.task, vocabularies=WORDS):
    return task.encode(examples, vocabularies)[torch.arange(len(examples))]


def pair_of(first, second):
    return Example("yes", (sentence(first, True), sentence(second, True)))


PAIRS = [pair_of("( a b )", "( ( b c ) a )"), pair_of("c", "( a c )")]
PAIR_WORDS = classify.task.vocabularies(PAIRS, ClassifyOptions())


@pytest.mark.parametrize("given", KINDS, ids=name_of)
def test_a_batch_is_its_sentences(given):
    model = made(**given).eval()
    scores, read = model(batch_of(SOME))
    for row, example in enumerate(SOME):
        alone, one = model(batch_of([example]))
        close(alone[0], scores[row], rtol=1e-4, atol=1e-5)
        for tree, other in ((read.transitions, one.transitions), (read.heads, one.heads)):
            assert tree is None or tree[row][: other.shape[1]].equal(other[0])


@pytest.mark.parametrize("given", [*KINDS, *GOLD], ids=name_of)
def test_every_parameter_learns(given):
    model = made(**given).train()
    batch, learned = batch_of(SOME), set()
    for epoch in (0, 5):
        model.start_epoch(epoch)
        # what is drawn may by chance be what it is compared with
        for _ in range(4):
            model.zero_grad()
            total, count = model.loss(batch)["loss"]
            assert count == len(SOME)
            total.backward()
            learned |= {
                name for name, p in model.named_parameters() if p.grad is not None and bool((p.grad != 0).any())
            }
    assert learned == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("given", KINDS, ids=name_of)
def test_pairs_are_judged_together(given):
    model = made(classify.task, PAIR_WORDS, **given)
    batch = batch_of(PAIRS, classify.task, PAIR_WORDS)
    model.train().loss(batch)["loss"][0].backward()
    scores, _ = model.eval()(batch)
    swapped = batch._replace(
        **{name: getattr(batch, name).flip(1) for name in ("words", "lengths", "transitions", "heads")}
    )
    assert scores.shape == (2, 1)
    assert not torch.allclose(scores, model(swapped)[0])
    assert sentences_of(batch).words[:2].equal(batch.words[0])


def test_a_low_temperature_leaves_few_trees():
    sentences, sizes = sentences_of(batch_of(SOME)), []
    for temperature in (1.0, 0.02):
        model = made(model="dependency", temperature=temperature)
        trees = model.latent.distribution(model.words(sentences.words), sentences.lengths, scores=model.arcs(sentences))
        sizes.append(trees.support_size.sum())
    assert sizes[1] < sizes[0] / 2


@pytest.mark.parametrize("kind", [TransitionParser, MergeParser])
def test_parsers_act_as_probably_as_they_say(kind):
    torch.manual_seed(1)
    parser, count = kind(9, 4, 5), 4000
    with torch.no_grad():
        for parameter in parser.parameters():
            parameter.mul_(3)
    words, lengths = torch.tensor([[4, 5, 6, 7]]).expand(count, -1), torch.full((count,), 4)
    acted = parser.draw(words, lengths, torch.ones(count, dtype=torch.bool))
    found = parser(words, parser.walk(acted, lengths, pm.nn.binary_plan(acted.transitions, 4)))
    actions = acted.transitions if kind is TransitionParser else acted.y.flatten(1)
    _, which, counts = actions.long().unique(dim=0, return_inverse=True, return_counts=True)
    probability = torch.zeros(len(counts)).scatter(0, which, found.log_prob.detach().exp())
    # 14 ways to shift and reduce would be those of 5 tokens; of 4 tokens there are 5, and 6 orders of merges
    assert len(counts) == (5 if kind is TransitionParser else 6)
    close(probability.sum(), torch.tensor(1.0))
    close(counts / count, probability, atol=0.03, rtol=0)
    log_p = probability.log()
    assert (found.entropy > 0).all()
    greedy = parser.draw(words[:1], lengths[:1], torch.zeros(1, dtype=torch.bool))
    best = parser(words[:1], parser.walk(greedy, lengths[:1], pm.nn.binary_plan(greedy.transitions, 4)))
    assert best.log_prob[0] >= log_p.mean()


@pytest.mark.parametrize("kind", [TransitionParser, MergeParser])
def test_a_parser_sees_no_padding(kind):
    torch.manual_seed(0)
    parser = kind(9, 4, 5)
    words, lengths = torch.randint(4, 9, (4, 6)), torch.tensor([6, 3, 1, 5])
    acted = parser.draw(words, lengths, torch.zeros(4, dtype=torch.bool))
    check_transitions(acted.transitions, lengths)
    together = parser(words, parser.walk(acted, lengths, pm.nn.binary_plan(acted.transitions, 6)))
    for row, n in enumerate(lengths.tolist()):
        one, length = words[row : row + 1, :n], lengths[row : row + 1]
        alone = parser.draw(one, length, torch.zeros(1, dtype=torch.bool))
        assert alone.transitions[0].equal(acted.transitions[row, : 2 * n - 1])
        found = parser(one, parser.walk(alone, length, pm.nn.binary_plan(alone.transitions, n)))
        close(found.log_prob[0], together.log_prob[row])
        close(found.entropy[0], together.entropy[row])


def test_a_parser_sees_the_nodes_of_the_machine():
    """Stack and buffer, step by step, against lists."""
    steps = torch.tensor([[0, 0, 1, 0, 0, 1, 1]])
    walk = TransitionParser(9, 4, 5).walk(Drawn(steps), torch.tensor([4]), pm.nn.binary_plan(steps, 4))
    stack, buffer, seen = [], [0, 1, 3, 4], []
    for t, action in enumerate(steps[0].tolist()):
        seen.append([buffer[0] if buffer else 7, stack[-1] if stack else 7, stack[-2] if len(stack) > 1 else 7])
        stack = [*stack[:-2], t] if action else [*stack, buffer.pop(0)]
    assert walk.seen.reshape(-1, 3).tolist() == seen


def test_parts_learn_in_turns():
    model = made(model="spinn", updates=3).train()
    assert isinstance(model, Cooperative)
    first, second = ({id(p) for p in part.parameters} for part in model.parts())
    assert first.isdisjoint(second)
    assert first | second == {id(p) for p in model.parameters()}
    turns = list(model.turns(batch_of(SOME)))
    assert [("loss" in turn, "turn" in turn) for turn in turns] == [(True, False), *[(False, True)] * 3]
    # until a step is taken the trees are as probable as when they were drawn
    assert all(one["turn"][0] == other["turn"][0] for one, other in pairwise(turns[1:]))
    turns[0]["loss"][0].backward()
    assert all(p.grad is None for p in model.parser.parameters())


def test_gradients_vary_where_trees_are_drawn():
    batch = batch_of(SOME)
    varied = {
        method: gradient_measures(made(model="spinn", method=method), batch, 4)["gradient_variance"]
        for method in ("straight-through", "reinforce", "cooperative", "st-gumbel")
    }
    assert varied["straight-through"] == 0
    assert min(varied[method] for method in ("reinforce", "cooperative", "st-gumbel")) > 0
    model = made(model="spinn", method="reinforce")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert gradient_measures(model, batch, 2) == gradient_measures(model, batch, 2)
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())


def test_gold_trees_are_those_of_the_expression():
    for expression in drawn(30):
        side = of_expression(expression).sides[0]
        steps = torch.tensor([transitions(side)])
        assert spans_of(steps) == [expression.spans]
        tree = pm.SpanningTree().encode(torch.tensor(side.heads))
        assert pm.ProjectiveTree().decode(tree).tolist() == list(side.heads)
        for token, head in zip(expression.tokens, side.heads):
            assert head == 0 or expression.tokens[head - 1].startswith("["), token


def test_trees_of_known_shape_are_measured_as_such():
    lengths = torch.tensor([4, 5, 1])
    trees = {name: spans_of(getattr(pm.nn, f"{name}_branching")(lengths)) for name in ("left", "right")}
    report = binary_measures(trees["left"], trees["right"], lengths)
    assert report["f1_left"] == 1
    # the whole is in all trees
    assert report["f1_gold"] == report["f1_right"] == pytest.approx((2 / 6 + 2 / 8) / 2)
    assert report["depth"] == pytest.approx((3 + 4 + 0) / 3)
    assert "f1_gold" not in binary_measures(trees["left"], None, lengths)
    assert [depth(tree) for tree in trees["right"]] == pm.nn.tree_depth(pm.nn.right_branching(lengths)).tolist()
    heads = head_measures([(0, 1, 2), (2, 0)], [(0, 1, 1), (2, 0)])
    assert heads == {"uas_gold": 0.8, "uas_left": 0.6, "uas_right": 0.4, "depth": 2.5}


def test_lists_count_in_any_order():
    example = of_expression(Expression(("[MAX", "2", "[SM", "7", "6", "]", "3", "]")))
    trees = {
        "( ( ( ( [MAX 2 ) ( [SM ( 7 ( 6 ] ) ) ) ) 3 ) ] )": 1,
        "( [MAX ( 2 ( [SM ( 7 ( 6 ( ] ( 3 ] ) ) ) ) ) ) )": 0,
    }
    for text, share in trees.items():
        made = Found(torch.zeros(1, 10), [sentence(text, True).spans], [], [])
        assert expressions.task.measures(made, [example]) == {"lists": share}
    assert expressions.task.measures(Found(torch.zeros(1, 10), [], [], []), [example]) == {}


BROKEN = [
    ("classify", "a\tb\n", "x\ta\tb\n", "2 columns between tabs expected, label, text; got 3"),
    ("classify", "a\tb\n", "x\t \n", "text is empty"),
    ("classify", "a\t( b c )\n", "x\t( a b c )\n", "text must be a binary tree: brackets hold 3"),
    ("classify", "a\t( b c )\n", "x\t( ( a b )\n", "text must be one binary tree, with every bracket closed"),
    ("classify", "a\tb\tc\n", "x\ta\n", "3 columns between tabs expected, label, text, second; got 2"),
    ("listops", "7\t7\n", "3\t[MAX 3\n", "tokens must be an expression; 1 operators are not closed"),
    ("listops", "7\t7\n", "3\t[MAX 3 2 ] ]\n", "tokens must be one expression; got ']' after its end"),
    ("listops", "7\t7\n", "3\t( [MAX ( 3 ] ) )\n", "round brackets must take arguments one by one"),
    ("listops", "7\t7\n", "4\t[MAX 3 2 ]\n", "value must be 3; got '4'"),
]


@pytest.mark.parametrize(("task", "first", "second", "message"), BROKEN)
def test_what_cannot_be_read_is_named(tmp_path, task, first, second, message):
    file = tmp_path / "t.tsv"
    file.write_text(first + second)
    with pytest.raises(ValueError) as error:
        recipes.training.task.named(task).read([file])
    assert str(error.value).startswith(f"{file}:2: {message}")


def test_texts_are_trees_where_all_of_them_are(tmp_path):
    file = tmp_path / "t.tsv"
    file.write_text("a\t( b c )\nx\tword\n")
    assert [example.sides[0].spans for example in read_classes(file)] == [((0, 1),), ()]
    file.write_text("a\t( b c )\nx\ttwo words\n")
    assert [example.sides[0].tokens[0] for example in read_classes(file)] == ["(", "two"]
    assert [example.sides[0].spans for example in read_classes(file)] == [None, None]


def test_words_are_read_as_the_options_say():
    example = Example("x", (Sentence(("It", "sleeps.")),))
    known = classify.task.vocabularies([example], ClassifyOptions(lower=True, punctuation=True))
    assert known["words"].words == (".", "it", "sleeps")
    batch = classify.task.encode([Example("new", (Sentence(("IT", "barks.")),))], known)[torch.tensor([0])]
    assert batch.words.tolist() == [[[5, UNKNOWN, 4]]]
    assert (batch.label.tolist(), batch.transitions.tolist()) == ([-1], [[[-1] * 5]])
    with pytest.raises(ValueError, match="all be of single sentences, or all of pairs"):
        Examples([example, PAIRS[0]], Words(()), Words(()))


REFUSED = [
    ({"model": "lstm", "method": "beam"}, "--method of --model lstm must be one of none; got beam"),
    ({"model": "lstm", "multitask": 1.0}, "--multitask must come with --model spinn or dependency; got lstm"),
    ({"model": "tree-lstm", "parser": "pretrained"}, "--parser pretrained must come with --model spinn or dependency"),
    ({"gradients": 1}, "--gradients must be 0 or at least 2; got 1"),
    ({"ratio": 1.0}, "--ratio must be between 0 and 1; got 1.0"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_options_that_do_not_fit_are_named(given, message):
    with pytest.raises(ValueError) as error:
        LatentOptions(**given)
    assert str(error.value).startswith(message)


def test_long_sentences_are_not_trained_on():
    options = LatentOptions(longest=4)
    kept = expressions.task.used(SOME, "train", options)
    assert [len(example.sides[0].tokens) <= 4 for example in SOME].count(True) == len(kept) > 0
    assert expressions.task.used(SOME, "dev", options) == SOME
    assert expressions.task.used(SOME, "train", replace(options, longest=0)) == SOME
    with pytest.raises(ValueError, match="--longest 3 leaves nothing of --train"):
        expressions.task.used(SOME[:1], "train", replace(options, longest=3))
    plain = [Example("x", (Sentence(("a", "b")),))]
    with pytest.raises(ValueError, match="--dev must have binary trees"):
        classify.task.used(plain, "dev", ClassifyOptions(model="tree-lstm"))
    with pytest.raises(ValueError, match="--train must have dependency trees"):
        classify.task.used(PAIRS, "train", ClassifyOptions(model="dependency", multitask=1.0))


def invoke(*arguments, **given):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments], **given)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_listops(folder / "train.tsv", drawn(48))
    write_listops(folder / "dev.tsv", drawn(12, seed=1))
    pair = [
        f"{label}\t{text}\t{text if label == 'same' else 'other words'}\n"
        for label in ("same", "new")
        for text in "abcdef"
    ]
    (folder / "pairs.tsv").write_text("".join(pair))
    return folder


def test_a_training_file_is_drawn(data, tmp_path):
    out = tmp_path / "train.tsv.gz"
    arguments = ("draw-listops", out, "--count", 30, "--without", data / "dev.tsv", "--seed", 2)
    assert invoke(*arguments).exit_code == 0
    made = list(read_listops(out))
    assert len(set(made)) == 30
    assert not set(made) & set(read_listops(data / "dev.tsv"))
    again = invoke(*arguments)
    assert again.exit_code == 1
    assert again.stderr == f"error: FILE: {out} exists; --force writes over it\n"
    assert invoke(*arguments, "--force").exit_code == 0


SMALL = ("--hidden", 8, "--embedding", 6, "--tracker", 4, "--batch-size", 16, "--accelerator", "cpu", "--lr", 0.01)


def trained(data, out, *more, task="listops", train="train.tsv", dev="dev.tsv"):
    pytest.importorskip("lightning", reason="lightning is not installed")
    result = invoke("train", task, "--train", data / train, "--dev", data / dev, "--out", out, *SMALL, *more)
    assert result.exit_code == 0, result.output
    return result.output


RESUMED = [
    ("--model", "gumbel-tree", "--method", "cooperative", "--updates", 2),
    ("--model", "spinn", "--parser", "pretrained", "--pretrain", 1),
]


@pytest.mark.parametrize("chosen", RESUMED, ids=["cooperative", "pretrained"])
def test_a_run_goes_on_to_the_same_bits(data, tmp_path, chosen):
    trained(data, tmp_path / "whole", *chosen, "--epochs", 2)
    trained(data, tmp_path / "parts", *chosen, "--epochs", 1)
    fit.train("listops", {}, tmp_path / "parts", {"epochs": 2}, resume=True)
    whole, parts = (
        torch.load(tmp_path / name / "last.ckpt", weights_only=True)["state_dict"] for name in ("whole", "parts")
    )
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    printed = trained(data, out, "--model", "spinn", "--epochs", 1, "--updates", 2)
    assert "f1_gold" in printed
    return out


def test_a_run_measures_and_writes_its_trees(run, data):
    loaded = recipes.load(run, gradients=2)
    report = loaded.evaluate(data / "dev.tsv")
    assert {"accuracy", "lists", "f1_gold", "f1_left", "f1_balanced", "depth", "gradient_variance"} <= report.keys()
    lines = (data / "dev.tsv").read_text().splitlines()
    written = invoke("predict", run, "-", "--set", "trees=true", input="\n".join([*lines, "", "7"]) + "\n").output
    rows = [line.split("\t") for line in written.splitlines()]
    assert (rows[-2], rows[-1][2:]) == ([""], ["7", "1"])
    right = [row[0] == line.split("\t")[0] for row, line in zip(rows, lines)]
    assert sum(right) / len(right) == pytest.approx(report["accuracy"])
    for row, line in zip(rows, lines):
        tree = sentence(row[2], is_tree=True)
        assert " ".join(tree.tokens) == line.split("\t")[1].replace("( ", "").replace(" )", "")
        assert 0 < float(row[3]) <= 1
    broken = invoke("predict", run, "-", input="7\n[MAX 2\n")
    assert broken.exit_code == 1
    assert "-:2: tokens must be an expression; 1 operators are not closed" in broken.stderr


def test_trees_are_drawn_and_compared(run, data, tmp_path):
    out = tmp_path / "tree.png"
    result = invoke("plot-tree", run, "--source", "[MAX 2 [MIN 4 7 ] ]", "--out", out)
    assert result.exit_code == 0, result.output
    assert out.stat().st_size > 1000
    same = invoke("compare-trees", run, run, data / "dev.tsv").output.split()
    assert same[same.index("self_f1") + 1] == "1"
    for arguments in ((run, data / "dev.tsv"), (run, tmp_path, data / "dev.tsv")):
        result = invoke("compare-trees", *arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert invoke("plot-tree", run, "--source", " ", "--out", out).exit_code == 1


def test_pairs_by_dependency_trees(data, tmp_path):
    out, files = tmp_path / "run", {"task": "classify", "train": "pairs.tsv", "dev": "pairs.tsv"}
    trained(data, out, "--model", "dependency", "--temperature", 0.5, "--epochs", 1, **files)
    report = recipes.load(out).evaluate(data / "pairs.tsv")
    assert (report["examples"], "uas_left" in report, "uas_gold" in report) == (12, True, False)
    written = list(recipes.load(out, trees=True).predict(["a\ta b", "same\ta\tb"]))
    assert [len(line.split("\t")) for line in written] == [4, 4]
    assert set(written[0].split("\t")[3].split()) <= {"0", "1", "2"}
    result = invoke("predict", out, "-", input="a\n")
    assert (
        result.stderr == "error: -:1: two texts between tabs expected, with a label before or without; got 1 columns\n"
    )
    result = invoke("evaluate", out, data / "dev.tsv")
    expected = "line 1: examples of 2 texts expected, as in the training; got 1"
    assert result.stderr == f"error: {data / 'dev.tsv'}: {expected}\n"
    assert invoke("plot-tree", out, "--source", "a b\tb c d", "--out", tmp_path / "t.png").exit_code == 0
    assert "self_uas" in invoke("compare-trees", out, out, data / "pairs.tsv").output
    assert json.loads((out / "vocabulary.json").read_text())["labels"]["words"] == ["new", "same"]


@pytest.mark.parametrize("contiguous", [False, True])
def test_rationales_are_short_and_all_that_is_read(contiguous):
    examples = [Example("a", (Sentence(("x", "y", "z", "x", "y")),)), Example("b", (Sentence(("z",)),))]
    known = classify.task.vocabularies(examples, ClassifyOptions())
    model = made(classify.task, known, model="lstm", rationale=2, contiguous=contiguous)
    with torch.no_grad():
        # words that are wanted, so that the limit counts
        model.score.bias.fill_(1.0)
    batch = batch_of(examples, classify.task, known)
    model.loss(batch)["loss"][0].backward()
    assert all(bool(p.grad.abs().sum() > 0) for p in model.scorer.parameters())
    model.eval()
    _, read = model(batch)
    assert read.chosen.sum(-1).tolist() == [2, 1]
    assert bool(((read.chosen == 0) | (read.chosen == 1)).all())
    places = read.chosen[0].nonzero().flatten().tolist()
    assert not contiguous or places[1] == places[0] + 1
    # another word where none is chosen changes nothing but the choice
    kept = model.words(batch.words.flatten(0, 1)) * read.chosen.unsqueeze(-1)
    state = model.lstm(kept)[0][torch.arange(2), torch.tensor([4, 0])]
    close(state, read.state)
    for given, message in (({"model": "spinn", "rationale": 2}, "--model lstm"), ({"contiguous": True}, "--rationale")):
        with pytest.raises(ValueError, match=message):
            ClassifyOptions(**{"model": "lstm", **given})
