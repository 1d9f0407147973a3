"""ListOps: values and trees against their definition, and the distribution of what is drawn."""

import gzip
import statistics
from collections import Counter
from functools import reduce
from itertools import islice
from operator import mul

import pytest
import torch
from typer.testing import CliRunner

from polymax_recipes import cli
from polymax_recipes.latent.data import of_expression
from polymax_recipes.latent.expressions import task
from polymax_recipes.listops import LONG, Expression, Grammar, parse_expression, read_listops, write_listops

FUNCTIONS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
    "[FIRST": lambda values: values[0],
    "[LAST": lambda values: values[-1],
    "[PM": lambda values: reduce(mul, values) % 10,
    "[FLSUM": lambda values: (values[0] + values[1]) % 10,
}


PUBLISHED = Grammar()
ALL = Grammar(operators=tuple(FUNCTIONS))


def drawn(count=300, seed=0, grammar=PUBLISHED):
    return list(grammar.expressions(count, generator=torch.Generator().manual_seed(seed)))


def recursive(tokens):
    """Value, text of the binary tree, and depth of the expression at the front; the end has no value."""
    token = next(tokens)
    if token not in FUNCTIONS:
        return (None if token == "]" else int(token)), token, 0
    values, text, depth = [], token, 0
    while True:
        value, argument, inner = recursive(tokens)
        text, depth = f"( {text} {argument} )", max(depth, inner)
        if value is None:
            return FUNCTIONS[token](values), text, depth + 1
        values.append(value)


@pytest.mark.parametrize("grammar", [PUBLISHED, ALL])
def test_values_and_trees_are_those_of_the_definition(grammar):
    expressions = drawn(grammar=grammar)
    assert {t for e in expressions for t in e.tokens if t.startswith("[")} == set(grammar.operators)
    for expression in expressions:
        assert (expression.value, str(expression), expression.depth) == recursive(iter(expression.tokens))
        assert len(expression.spans) == len(expression.tokens) - 1


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("[MED 1 4 ]", 2), ("[MED 9 1 4 ]", 4), ("[SM 9 8 [MIN 3 5 ] ]", 0), ("[MAX [MIN 1 2 ] 0 ]", 1)]
    # of the authors' further files: first, last, product, and the sum of the first two
    + [("[FIRST 1 6 9 ]", 1), ("[LAST 3 3 7 ]", 7), ("[PM 2 2 8 5 ]", 0), ("[PM 3 9 ]", 7), ("[FLSUM 1 4 6 ]", 5)],
)
def test_values_by_hand(text, value):
    assert Expression(tuple(text.split())).value == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got none"),
        ("]", "without arguments"),
        ("[SM ]", "without arguments at 1"),
        ("[SM 1", "1 operators are not closed"),
        ("1 2", "got '2' after its end"),
        ("[SM 1 2 ] ]", "after its end"),
        ("[ADD 1 2 ]", r"must be among .*; got '\[ADD'"),
        ("[SM 1 12 ]", "got '12'"),
    ],
)
def test_texts_that_are_no_expression(text, message):
    with pytest.raises(ValueError, match=message):
        Expression(tuple(text.split()))


def test_the_same_seed_draws_the_same():
    assert drawn(50, seed=1) == drawn(50, seed=1)
    assert drawn(50, seed=1) != drawn(50, seed=2)
    torch.manual_seed(1)
    assert list(Grammar().expressions(50)) == drawn(50, seed=1)


def test_none_comes_twice():
    expressions = drawn(1000)
    assert len(set(expressions)) == 1000
    with pytest.raises(ValueError, match="count must be a number of expressions"):
        drawn(11, grammar=Grammar(operator=0.0))
    assert {expression.value for expression in drawn(10, grammar=Grammar(operator=0.0))} == set(range(10))


def test_others_are_left_out():
    known = drawn(20, seed=1)
    assert not set(known) & set(Grammar().expressions(50, without=known, generator=torch.Generator().manual_seed(1)))


def arguments(expression):
    """The number of arguments of each operator."""
    counts, stack = [], []
    for token in expression.tokens:
        if token == "]":
            counts.append(stack.pop())
        if stack and token not in FUNCTIONS:
            stack[-1] += 1
        if token in FUNCTIONS:
            stack.append(0)
    return counts


def test_choices_are_uniform():
    # long expressions hardly ever come twice, so that leaving repeats out changes nothing
    expressions = drawn(60, grammar=Grammar(min_tokens=100))
    operators = Counter(token for expression in expressions for token in expression.tokens if token in FUNCTIONS)
    digits = Counter(token for expression in expressions for token in expression.tokens if token.isdecimal())
    for counts, size in ((operators, 4), (digits, 10)):
        total = counts.total()
        assert len(counts) == size
        deviation = (total * (1 / size) * (1 - 1 / size)) ** 0.5
        assert all(abs(count - total / size) < 5 * deviation for count in counts.values())
    assert {count for expression in expressions for count in arguments(expression)} == {2, 3, 4, 5}


def test_default_depth_is_the_published_one():
    """Where more than one argument of an operator is a list, expressions end at the last depth, 20 with its digits."""
    deep = drawn(200, grammar=Grammar(operator=0.6, arguments=2))
    assert max(expression.depth for expression in deep) == 19


def test_options_limit_drawn_expressions():
    binary = drawn(50, grammar=Grammar(arguments=2, depth=3))
    assert {count for expression in binary for count in arguments(expression)} == {2}
    # the root is at depth 1, and at the last depth there are digits alone
    assert max(expression.depth for expression in binary) == 2
    short = drawn(50, grammar=Grammar(min_tokens=4, max_tokens=9))
    assert {len(expression.tokens) for expression in short} <= set(range(4, 10))
    # expressions of this grammar would grow without end
    endless = drawn(5, grammar=Grammar(operator=0.9, depth=1000, max_tokens=30))
    assert all(len(expression.tokens) <= 30 for expression in endless)
    for expression in islice(LONG.expressions(3, generator=torch.Generator().manual_seed(0)), 3):
        assert 500 < len(expression.tokens) < 2000
        assert expression.depth <= 9


@pytest.mark.parametrize(
    "options",
    [{"operator": 1.5}, {"operator": -0.1}, {"arguments": 1}, {"depth": 0}, {"min_tokens": 5, "max_tokens": 4}]
    + [{"operators": ()}, {"operators": ("[ADD",)}],
)
def test_options_that_make_no_sense(options):
    with pytest.raises(ValueError, match=f"{list(options)[-1]} must be"):
        Grammar(**options)


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_files_come_back(name, tmp_path):
    path = tmp_path / name
    expressions = drawn(100)
    write_listops(path, expressions)
    assert list(read_listops(path)) == expressions
    data = path.read_bytes()
    text = (gzip.decompress(data) if name.endswith("gz") else data).decode()
    first = expressions[0]
    assert text.splitlines()[0] == f"{first.value}\t{first}"


def test_the_long_range_arena_has_the_value_last(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n[MIN 4 2 ]\t2\n")
    assert [expression.value for expression in read_listops(path)] == [9, 2]
    path.write_text("Source\tTarget\n[MIN 4 2 ]\t4\n")
    with pytest.raises(ValueError, match=r"a\.tsv:2: value must be 2; got '4'"):
        list(read_listops(path))


def test_a_run_accepts_the_operators_of_its_training():
    def read(*texts):
        return [of_expression(parse_expression(text)) for text in texts]

    few = task.vocabularies(read("[MAX 1 2 ]"), None)
    assert few["words"].words == (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
    more = task.vocabularies(read("[MAX 1 [PM 2 3 ] ]", "[FIRST 1 2 ]"), None)
    assert more["words"].words == (*few["words"].words[:-1], "[FIRST", "[PM", "]")
    assert len(task.encode(read("[PM 2 3 ]"), more).words.values) == 4
    with pytest.raises(ValueError, match=r"unknown operator \[LAST; the training has "):
        task.encode(read("[LAST 2 3 ]"), more)


def test_operators_are_drawn_as_asked(tmp_path):
    result = CliRunner().invoke(
        cli.application(), ["draw-listops", str(tmp_path / "a.tsv"), "--count", "40", "--operators", "FIRST,pm"]
    )
    assert result.exit_code == 0, result.output
    tokens = {token for expression in read_listops(tmp_path / "a.tsv") for token in expression.tokens}
    assert {token for token in tokens if token.startswith("[")} == {"[FIRST", "[PM"}
    result = CliRunner().invoke(cli.application(), ["draw-listops", str(tmp_path / "b.tsv"), "--operators", "ADD"])
    assert "--operators must be of MIN, MAX, MED, SM, FIRST, LAST, PM, FLSUM" in result.output
    assert not (tmp_path / "b.tsv").exists()
