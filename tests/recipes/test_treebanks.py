"""Treebanks: CoNLL-U is written as it was read, and trees come back from charts."""

import gzip
from typing import Any

import pytest
import torch

import polymax as pm
from polymax_recipes import readers as r
from polymax_recipes.readers.conllu import tree_fault


def conllu(*words: tuple[str, int | str, str]) -> str:
    """Rows of id, head and relation."""
    rows = ("\t".join([id, f"w{id}", "_", "NOUN", "_", "_", str(head), rel, "_", "_"]) for id, head, rel in words)
    return "".join(row + "\n" for row in rows) + "\n"


GOOD = conllu(("1", 2, "nsubj"), ("2", 0, "root"))
RICH = (
    "# sent_id = 1\n1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_\n1\tde\tde\tADP\tP\tA=b|C=d\t3\tcase\t3:case\tX=1\n"
    "2\tle\t_\tDET\t_\t_\t3\tdet\t_\t_\n2.1\te\t_\t_\t_\t_\t_\t_\t1:x\t_\n3\tpays bas\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n"
)


FILES = [RICH * 2, "\ufeff" + RICH, RICH.replace("\n", "\r\n"), RICH[:-1], RICH[:-2], "\n" + RICH + "\n\n"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("text", FILES)
def test_conllu_comes_back_byte_for_byte(text, packed, tmp_path):
    path, back = tmp_path / "a", tmp_path / ("b.gz" if packed else "b")
    path.write_bytes(text.encode())
    r.write_conllu(back, r.read_conllu(path))
    data = back.read_bytes()
    assert (gzip.decompress(data) if packed else data).decode() == text
    r.write_conllu(tmp_path / "c.gz" if packed else tmp_path / "c", r.read_conllu(path))
    assert data == (tmp_path / ("c.gz" if packed else "c")).read_bytes()


def test_conllu_with_another_tree(tmp_path):
    path = tmp_path / "a"
    path.write_text(RICH, encoding="utf-8")
    (sentence,) = r.read_conllu(path)
    assert sentence.forms == ["de", "le", "pays bas"]
    assert sentence.comments == ["# sent_id = 1"]
    assert sentence.words[0].features == {"A": "b", "C": "d"}
    assert sentence.words[1].features == {}
    other = sentence.with_tree([0, 1, 1], ["root", "a", "b:c"])
    assert (other.heads, other.deprels) == ([0, 1, 1], ["root", "a", "b:c"])
    changes = (("\t3\tcase\t", "\t0\troot\t"), ("\t3\tdet\t", "\t1\ta\t"), ("_\t_\t0\troot", "_\t_\t1\tb:c"))
    text = RICH
    for old, new in reversed(changes):
        text = text.replace(old, new)
    assert str(other) == text
    assert str(sentence) == RICH
    broken = (([0, 1], ["a", "b"]), ([0, 1, 4], ["a"] * 3), ([0, 1, -1], ["a"] * 3), ([0, 1, 1], ["a\tb"] * 3))
    for heads, deprels in broken:
        with pytest.raises(ValueError, match=r"heads|deprels"):
            sentence.with_tree(heads, deprels)


def test_sentences_without_ends_are_separated(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    paths[0].write_bytes(GOOD[:-2].encode())
    paths[1].write_bytes(GOOD[:-1].encode())
    both = [sentence for path in paths for sentence in r.read_conllu(path)]
    r.write_conllu(tmp_path / "c", both)
    assert (tmp_path / "c").read_text() == GOOD + GOOD[:-1]


def test_text_to_be_parsed_needs_no_heads(tmp_path):
    path = tmp_path / "a"
    path.write_text(conllu(("1", "_", "_"), ("2", 2, "_")))
    (sentence,) = r.read_conllu(path, trees=False)
    assert sentence.heads == [-1, 2]
    assert "\t0\troot\t" in str(sentence.with_tree([0, 1], ["root", "dep"]))


def test_trees_are_told_from_others():
    """Against the definition: one root, and every word comes to it in n steps."""
    n = 4
    for code in range((n + 1) ** n):
        heads = [code // (n + 1) ** place % (n + 1) for place in range(n)]
        ends = list(range(1, n + 1))
        for _ in range(n):
            ends = [heads[end - 1] if end else 0 for end in ends]
        is_tree = heads.count(0) == 1 and not any(ends)
        assert (tree_fault(heads) is None) == is_tree


def test_aligned_sentences(tmp_path):
    source, target, alignment = tmp_path / "s", tmp_path / "t", tmp_path / "a"
    source.write_text(GOOD * 2)
    target.write_text(GOOD + conllu(("1", 0, "root")))
    alignment.write_text('[{"2": ["1"]},\n {"1": ["1"]}]')
    first, second = r.read_aligned(source, target, alignment)
    assert first[2].links == [(1, 0)]
    assert len(second[1].words) == 1
    alignment.write_text('[{"2": ["1"]},\n {"1": ["2"]}]')
    with pytest.raises(r.ReadError, match="a:2: id 2 of a sentence with 1 words"):
        list(r.read_aligned(source, target, alignment))
    alignment.write_text('[{"2": ["1"]}]')
    with pytest.raises(r.ReadError, match="a:1: ends after 1 sentences"):
        list(r.read_aligned(source, target, alignment))


TREES = [
    "(S (NP (DT the) (JJ old) (NN dog)) (VP (VBZ barks) (ADVP (RB now)) (PP (IN at) (NP (PRP me)))) (. .))",
    "(S (VP (VB go)))",
    "(NN dog)",
    "(S (X (Y (A a) (B b) (C c) (D d))))",
    "(NP (NP (A a)) (NP (B b) (NP (C c) (D d) (E e))))",
]


@pytest.mark.parametrize("text", TREES)
@pytest.mark.parametrize("binary", [r.left_binary, r.right_binary])
def test_trees_come_back_from_charts(text, binary, tmp_path):
    tree = r.parse_tree(text)
    assert str(tree) == text
    flat = binary(r.collapsed(tree))
    spans = r.chart_spans(flat)
    assert len(spans) == 2 * len(tree.words) - 1
    assert r.expanded(r.unbinary(r.chart_tree(reversed(spans), tree.words, tree.tags))) == tree
    r.write_trees(tmp_path / "a", [tree, tree])
    assert list(r.read_trees(tmp_path / "a")) == [tree, tree]


@pytest.mark.parametrize("text", TREES)
def test_charts_are_what_span_trees_encode(text):
    tree = r.parse_tree(text)
    spans = r.chart_spans(r.right_binary(r.collapsed(tree)))
    labels = sorted({span.label for span in spans})
    index = torch.tensor([[start, last, labels.index(label)] for start, last, label in spans])
    shape = (len(tree.words), len(tree.words), len(labels))
    structure = pm.SpanTree(labelled=True)
    # what is no binary tree is refused
    structure.compact.check(index, torch.zeros(shape))
    found = structure.decode(structure.encode(index, *shape)).tolist()
    assert sorted(r.Span(i, j, labels[label]) for i, j, label in found) == sorted(spans)


def test_binary_trees_branch_to_their_side():
    tree = r.parse_tree("(S (T (A a) (B b) (C c) (D d)))")
    assert str(r.left_binary(r.collapsed(tree))) == "(S::T (T|< (T|< (A a) (B b)) (C c)) (D d))"
    assert str(r.right_binary(r.collapsed(tree))) == "(S::T (A a) (T|< (B b) (T|< (C c) (D d))))"
    # a piece at the top, which a parser may predict, stands for its label
    assert str(r.unbinary(r.parse_tree("(T|< (A a) (T|< (B b) (C c)))"))) == "(T (A a) (B b) (C c))"
    with pytest.raises(ValueError, match="two children"):
        r.chart_spans(tree)
    with pytest.raises(ValueError, match="labels must not hold"):
        r.collapsed(r.parse_tree("(A::B (C c))"))


@pytest.mark.parametrize(
    "spans", [[(0, 0), (1, 1)], [(0, 1)], [(0, 0), (1, 1), (0, 1), (0, 1)], [(0, 0), (1, 1), (1, 2)]]
)
def test_charts_that_are_no_tree(spans):
    with pytest.raises(ValueError, match="binary tree over 2 words"):
        r.chart_tree([r.Span(a, b) for a, b in spans], ["a", "b"], ["A", "B"])


def test_spans_are_what_their_nodes_cover():
    tree = r.parse_tree(TREES[0])

    def check(node, start):
        if node.word is not None:
            return 1
        place = len(seen)
        seen.append(None)
        width = 0
        for child in node.children:
            width += check(child, start + width)
        seen[place] = r.Span(start, start + width - 1, node.label)
        return width

    seen: list[Any] = []
    check(tree, 0)
    assert tree.spans == seen


def test_treebank_trees_are_cleaned():
    penn = r.parse_tree("( (S (NP-SBJ-1 (-NONE- *T*-2)) (VP=3 (VB go) (NP (-LRB- -LRB-) (PRP$ my)))))")
    clean = r.without_root(r.without_functions(r.without(penn, r.is_trace)))
    assert str(clean) == "(S (VP (VB go) (NP (-LRB- -LRB-) (PRP$ my))))"
    keyaki = r.parse_tree("( (IP-MAT (PP (NP;*SBJ* (N 法律)) (P は)) (NP-SBJ *) (VB 行く)) (ID 1_law))")
    clean = r.without_root(r.without_functions(r.without(keyaki, r.is_zero)))
    assert str(clean) == "(IP (PP (NP (N 法律)) (P は)) (VB 行く))"
    assert r.without(r.parse_tree("(S (NP (-NONE- *)))"), r.is_trace) is None
    assert r.without_root(penn.children[0]) == penn.children[0]
    for label, children, word in (("A", (), None), ("A", (penn,), "a")):
        with pytest.raises(ValueError, match="children, or one word"):
            r.Tree(label, children, word)


def test_deep_trees_need_no_deep_stack(tmp_path):
    depth = 5_000
    text = "(A (B b) " * depth + "(C c)" + ")" * depth
    path = tmp_path / "a"
    path.write_text(text)
    (tree,) = r.read_trees(path)
    assert str(tree) == text
    assert len(tree.spans) == depth
    assert str(r.expanded(r.unbinary(r.right_binary(r.collapsed(r.without_functions(tree)))))) == text


@pytest.mark.parametrize("text", ["( ( a b ) c )", "( a ( b c ) )", "a", "( ( a\u00a0b c ) ( d e ) )"])
def test_binary_parses_come_back(text):
    assert r.format_binary(*r.parse_binary(text)) == text


@pytest.mark.parametrize("text", ["", "a b", "( a b", "( a )", "( a b c )", "( a b ) )", "( a b ) c", ")"])
def test_texts_that_are_no_binary_parse(text):
    with pytest.raises(ValueError, match="binary tree"):
        r.parse_binary(text)


@pytest.mark.parametrize("text", ["", "(A a) (B b)", "(A a", "a", "(A (B b)"])
def test_texts_that_are_no_tree(text):
    with pytest.raises(ValueError, match="must be a tree in brackets"):
        r.parse_tree(text)
