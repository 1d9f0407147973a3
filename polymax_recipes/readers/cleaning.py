"""Removal of traces and ids, of function labels, and of the root above the sentence from treebank trees."""

import re
from collections.abc import Callable

from polymax_recipes.readers.trees import Tree, fold

# labels of a root that only wraps a sentence
ROOTS = frozenset({"", "ROOT", "TOP", "S1"})


def is_trace(node: Tree) -> bool:
    """Return True if a node is an empty element of the Penn Treebank, (-NONE- *T*-1)."""
    return node.label == "-NONE-"


def is_zero(node: Tree) -> bool:
    """Return True if a node is an empty element of the Keyaki Treebank, (NP-SBJ *pro*), or an id, (ID 1_law)."""
    return node.word is not None and (node.label == "ID" or node.word.startswith("*"))


def without(tree: Tree, drop: Callable[[Tree], bool]) -> Tree | None:
    """Return the tree without some nodes, and without nodes that become empty; None if nothing is left.

    Example:
        >>> print(without(Tree("S", (Tree("NP", (Tree("-NONE-", (), "*"),)), Tree("VB", (), "go"))), is_trace))
        (S (VB go))
    """

    def kept(node: Tree, children: list[Tree | None]) -> Tree | None:
        if drop(node):
            return None
        if node.word is not None:
            return node
        left = tuple(child for child in children if child is not None)
        return Tree(node.label, left) if left else None

    return fold(tree, kept)


def plain_label(label: str) -> str:
    """A label without functions and indices.

    Example:
        >>> [plain_label(label) for label in ("NP-SBJ-1", "NP=2", "NP;*SBJ*", "-LRB-", "PRP$", "ADVP|PRT")]
        ['NP', 'NP', 'NP', '-LRB-', 'PRP$', 'ADVP|PRT']
    """
    # a label may begin with a separator
    return re.sub(r"(?<=.)[-=;].*", "", label, count=1) if not label.startswith("-") else label


def without_functions(tree: Tree) -> Tree:
    """The tree with plain labels.

    Example:
        >>> print(without_functions(Tree("S", (Tree("NP-SBJ", (Tree("PRP", (), "it"),)), Tree("VB", (), "works")))))
        (S (NP (PRP it)) (VB works))
    """
    return fold(tree, lambda node, children: Tree(plain_label(node.label), tuple(children), node.word))


def without_root(tree: Tree) -> Tree:
    """The only child of a root that wraps the sentence; other trees unchanged.

    Example:
        >>> print(without_root(Tree("", (Tree("NP", (Tree("NN", (), "dog"),)),))))
        (NP (NN dog))
    """
    wraps = tree.label in ROOTS and len(tree.children) == 1
    return tree.children[0] if wraps else tree
