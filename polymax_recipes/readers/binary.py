"""Trees in the form of charts: a unary chain as one label, two children at a node, one label for each span; and back.

    chart_spans(right_binary(collapsed(tree)))        expanded(unbinary(chart_tree(spans, words, tags)))

The second is the inverse of the first. An inserted node has the label of its original node, with "|<" after it.
"""

from collections.abc import Callable, Iterable, Sequence

from polymax_recipes.readers.spans import Span
from polymax_recipes.readers.trees import Tree, fold

INSERTED = "|<"
JOINT = "::"


def collapsed(tree: Tree) -> Tree:
    """Nodes with one child are joined with it, parts of speech included.

    Example:
        >>> print(collapsed(Tree("S", (Tree("VP", (Tree("VB", (), "go"), Tree("NP", (Tree("RB", (), "home"),)))),))))
        (S::VP (VB go) (NP::RB home))
    """

    def joined(node: Tree, children: list[Tree]) -> Tree:
        if JOINT in node.label or node.label.endswith(INSERTED):
            raise ValueError(f"labels must not hold {JOINT!r} or end in {INSERTED!r}; got {node.label!r}")
        if len(children) != 1:
            return Tree(node.label, tuple(children), node.word)
        (child,) = children
        return Tree(f"{node.label}{JOINT}{child.label}", child.children, child.word)

    return fold(tree, joined)


def expanded(tree: Tree) -> Tree:
    """The inverse of `collapsed`: a chain of nodes for each label that names several."""

    def chain(node: Tree, children: list[Tree]) -> Tree:
        *above, label = node.label.split(JOINT)
        result = Tree(label, tuple(children), node.word)
        for label in reversed(above):
            result = Tree(label, (result,))
        return result

    return fold(tree, chain)


def right_binary(tree: Tree) -> Tree:
    """Nodes with more than two children branch to the right.

    Example:
        >>> print(right_binary(Tree("NP", tuple(Tree(tag, (), tag.lower()) for tag in ("DT", "JJ", "NN")))))
        (NP (DT dt) (NP|< (JJ jj) (NN nn)))
    """

    def right(label: str, children: list[Tree]) -> tuple[Tree, ...]:
        rest = children[-1]
        for child in reversed(children[1:-1]):
            rest = Tree(label, (child, rest))
        return children[0], rest

    return _binary(tree, right)


def left_binary(tree: Tree) -> Tree:
    """Nodes with more than two children branch to the left.

    Example:
        >>> print(left_binary(Tree("NP", tuple(Tree(tag, (), tag.lower()) for tag in ("DT", "JJ", "NN")))))
        (NP (NP|< (DT dt) (JJ jj)) (NN nn))
    """

    def left(label: str, children: list[Tree]) -> tuple[Tree, ...]:
        rest = children[0]
        for child in children[1:-1]:
            rest = Tree(label, (rest, child))
        return rest, children[-1]

    return _binary(tree, left)


def _binary(tree: Tree, split: Callable[[str, list[Tree]], tuple[Tree, ...]]) -> Tree:
    def binary(node: Tree, children: list[Tree]) -> Tree:
        if len(children) > 2:
            # inserted nodes carry only the last label of a chain
            return Tree(node.label, split(node.label.split(JOINT)[-1] + INSERTED, children))
        return Tree(node.label, tuple(children), node.word)

    return fold(tree, binary)


def unbinary(tree: Tree) -> Tree:
    """The inverse of `right_binary` and `left_binary`: inserted nodes give their children to the node above."""

    def restored(node: Tree, groups: list[list[Tree]]) -> list[Tree]:
        children = [child for group in groups for child in group]
        inserted = node.word is None and node.label.endswith(INSERTED)
        return children if inserted else [Tree(node.label, tuple(children), node.word)]

    nodes = fold(tree, restored)
    # an inserted node at the top has no node above it, and is kept
    return nodes[0] if len(nodes) == 1 else Tree(tree.label.removesuffix(INSERTED), tuple(nodes))


def chart_spans(tree: Tree) -> list[Span]:
    """The 2 n - 1 spans of a collapsed binary tree over n words, as parts of `SpanTree`.

    The label of a word's span is the chain above its part of speech, "" if there is no chain.

    Example:
        >>> tree = Tree("S", (Tree("NP::PRP", (), "it"), Tree("VBZ", (), "works")))
        >>> [tuple(span) for span in chart_spans(tree)]
        [(0, 1, 'S'), (0, 0, 'NP'), (1, 1, '')]
    """
    if fold(tree, lambda node, binary: all(binary) and len(node.children) in (0, 2)) is False:
        raise ValueError(f"tree must have two children at every node above a word; got {tree}")
    words = [Span(place, place, tag.rpartition(JOINT)[0]) for place, tag in enumerate(tree.tags)]
    return tree.spans + words


def chart_tree(spans: Iterable[Span], words: Sequence[str], tags: Sequence[str]) -> Tree:
    """The inverse of `chart_spans`, for words and their parts of speech.

    Example:
        >>> print(chart_tree([Span(0, 1, "S"), Span(0, 0, "NP"), Span(1, 1)], ["it", "works"], ["PRP", "VBZ"]))
        (S (NP::PRP it) (VBZ works))
    """
    n = len(words)
    if len(tags) != n or n == 0:
        raise ValueError(f"tags must be one per word, and at least one; got {len(tags)} for {n} words")
    # shorter spans first: the nodes that a span holds are on the stack of those that begin no later
    nodes: dict[int, tuple[int, Tree]] = {}
    for start, last, label in sorted(spans, key=lambda span: (span.last - span.start, span.start)):
        if start == last and 0 <= start < n and start not in nodes:
            name = f"{label}{JOINT}{tags[start]}" if label else tags[start]
            nodes[start] = last, Tree(name, (), words[start])
            continue
        middle, left = nodes.get(start, (-1, None))
        end, right = nodes.pop(middle + 1, (-1, None))
        if left is None or right is None or end != last:
            raise ValueError(f"spans must be those of a binary tree over {n} words; got {Span(start, last, label)}")
        nodes[start] = last, Tree(label, (left, right))
    if set(nodes) != {0} or nodes[0][0] != n - 1:
        raise ValueError(f"spans must be those of a binary tree over {n} words, {2 * n - 1} of them; some are missing")
    return nodes[0][1]
