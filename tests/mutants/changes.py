"""The changes that make a mutant of a file: what they replace, by the syntax of the file."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

COMPARED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
COMPUTED = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")}
COMPUTED |= {ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.FloorDiv: ("//", "*")}
RENAMED = {"min": "max", "amin": "amax", "argmin": "argmax", "minimum": "maximum", "any": "all", "zeros": "ones"}
RENAMED |= {"zeros_like": "ones_like", "floor": "ceil", "triu": "tril", "cumsum": "cumprod", "exp2": "exp"}
RENAMED |= {new: old for old, new in RENAMED.items() if old != "exp2"}
# calls of these are left out: x.clamp(0, 1) becomes x
MASKS = {"clamp", "clamp_", "masked_fill", "masked_fill_", "abs", "detach", "nan_to_num", "contiguous", "flip"}
# these take a dimension by its number
BY_DIM = {"sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "softmax", "logsumexp", "cumsum", "flip"}
BY_DIM |= {"stack", "cat", "unsqueeze", "squeeze", "gather", "sort", "any", "all", "topk", "select", "narrow", "diff"}
# constants that are named so, and these options of calls, choose how fast something is computed and not what
SPEED = {"AT", "BLOCK", "CHUNK", "CELLS", "ENTRIES", "FEW", "GATHERED", "GRAIN", "GROUP", "HEAVY", "LANES", "LARGEST"}
SPEED |= {"LONGEST", "MOST", "PIECE", "PROGRAMS", "RESIDENT", "ROOM", "ROWS", "SHORT", "SMALL", "STAGES", "STRIP"}
SPEED |= {"TILE", "TOGETHER", "WARPS", "WIDENED", "WIDEST"}
QUICKER = {"num_warps", "num_stages", "maxsize", "stacklevel"}


@dataclass(frozen=True)
class Change:
    """The bytes from `start` to `end` of a file become `text`."""

    kind: str
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


class Source:
    """The text of a file by the nodes of its syntax."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def start(self, node: ast.AST) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.AST) -> int:
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.AST) -> str:
        return self.source[self.start(node) : self.end(node)].decode()

    def replace(self, kind: str, node: ast.AST, text: str) -> Change:
        return Change(kind, self.start(node), self.end(node), text)

    def between(self, kind: str, left: ast.AST, right: ast.AST, old: str, new: str) -> Iterator[Change]:
        """Replace the operator between two expressions; parentheses and comments may stand there, too."""
        gap = self.source[self.end(left) : self.start(right)].decode()
        found = re.search(rf"(?<![\w<>=!*/]){re.escape(old)}(?![\w<>=*/])", gap)
        if found and "#" not in gap:
            at = self.end(left) + len(gap[: found.start()].encode())
            yield Change(kind, at, at + len(old), new)


def changes(source: bytes) -> dict[str, list[Change]]:
    """Return all changes of a file that are tried, by their kinds."""
    read = Source(source)
    found = defaultdict(list)
    for node in _code(ast.parse(source)):
        for change in _of(read, node):
            found[change.kind].append(change)
    return dict(found)


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that compute: no annotations, messages, docstrings, decorators or imports."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not _silent(node):
                yield node
                yield from _code(node)


def _silent(node: ast.AST) -> bool:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    # a check of lengths that are equal anyway
    if isinstance(node, ast.keyword) and (node.arg == "strict" or node.arg in QUICKER):
        return True
    if isinstance(node, ast.Assign) and _names_speed(node.targets[0]):
        return all(isinstance(n, _PLAIN) for n in ast.walk(node.value))
    named = getattr(node, "name", None) in ("__repr__", "__str__", "extra_repr", "__dir__")
    return named or isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom)


# what a number is written with
_PLAIN = ast.Constant | ast.Tuple | ast.BinOp | ast.operator | ast.UnaryOp | ast.unaryop | ast.expr_context


def _names_speed(node: ast.AST) -> bool:
    """Tell whether names of constants say that they choose how fast something is computed."""
    if isinstance(node, ast.Tuple):
        return all(map(_names_speed, node.elts))
    name = getattr(node, "id", getattr(node, "attr", ""))
    return name.isupper() and not SPEED.isdisjoint(name.split("_"))


def _of(read: Source, node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare():
            for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators):
                # at the very size where another way begins, both give the result
                if not (_names_speed(left) or _names_speed(right)):
                    yield from read.between("comparison", left, right, *COMPARED[type(op)])
        # text and paths would only be of a wrong type
        case ast.BinOp() if type(node.op) in COMPUTED and not any(map(_is_text, (node.left, node.right))):
            old, new = COMPUTED[type(node.op)]
            kind = "mask" if old in "&|" else "arithmetic"
            yield from read.between(kind, node.left, node.right, old, new)
            if old in ("+", "-", "&", "|"):
                yield read.replace("dropped term", node, read.text(node.left))
        case ast.BoolOp():
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in pairwise(node.values):
                # an `or` inside of an `and` would bind otherwise
                if len(node.values) == 2:
                    yield from read.between("condition", left, right, old, new)
            yield read.replace("dropped term", node, f" {old} ".join(read.text(v) for v in node.values[:-1]))
        case ast.If() | ast.IfExp() | ast.While():
            yield read.replace("condition", node.test, f"not ({read.text(node.test)})")
        case ast.UnaryOp(op=ast.Not()):
            yield read.replace("condition", node, f"({read.text(node.operand)})")
        case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
            yield read.replace("sign", node, read.text(node.operand))
        case ast.Constant():
            yield from _constant(read, node)
        case ast.Call():
            yield from _call(read, node)
        case ast.AugAssign():
            yield read.replace("dropped statement", node, "pass")
        case ast.Slice():
            for bound, end in ((node.lower, "lower"), (node.upper, "upper")):
                if bound is not None and not isinstance(bound, ast.Constant):
                    yield read.replace("off by one", bound, f"{read.text(bound)} {'+' if end == 'lower' else '-'} 1")
        case ast.Break() | ast.Continue():
            yield read.replace("dropped statement", node, "pass")


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _constant(read: Source, node: ast.Constant) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield read.replace("constant", node, str(not node.value))
    elif isinstance(node.value, int):
        yield read.replace("off by one", node, str(node.value + 1))
        if node.value > 1:
            yield read.replace("off by one", node, str(node.value - 1))
    elif isinstance(node.value, float):
        yield read.replace("constant", node, repr(2 * node.value if node.value else 1.0))


def _call(read: Source, node: ast.Call) -> Iterator[Change]:
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    plain = not any(isinstance(a, ast.Starred) for a in node.args)
    if name in RENAMED:
        end = read.end(node.func)
        yield Change("function", end - len(name), end, RENAMED[name])
    if name in MASKS and isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") != "torch":
        yield read.replace("mask", node, read.text(node.func.value))
    if name == "where" and plain and len(node.args) == 3:
        yield read.replace("mask", node, f"({read.text(node.args[1])})")
        yield read.replace("mask", node, f"({read.text(node.args[2])})")
    if name in BY_DIM:
        dims = [a for a in node.args if isinstance(a, ast.UnaryOp) and isinstance(a.operand, ast.Constant)]
        dims += [k.value for k in node.keywords if k.arg in ("dim", "axis")]
        for dim in dims:
            if read.text(dim) in ("-1", "-2", "0", "1"):
                yield read.replace("axis", dim, {"-1": "-2", "-2": "-1", "0": "1", "1": "0"}[read.text(dim)])
    if plain and name not in ("isinstance", "getattr", "range", "cast", "zip"):
        for one, two in pairwise(node.args):
            a, b = read.text(one), read.text(two)
            if a != b and not {type(one), type(two)} & {ast.Constant, ast.Lambda}:
                gap = read.source[read.end(one) : read.start(two)].decode()
                yield Change("swapped arguments", read.start(one), read.end(two), f"{b}{gap}{a}")
