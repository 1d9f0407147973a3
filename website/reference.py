"""The reference: every public name with its signature, shapes, formula and example, from the docstrings."""

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import polymax
from website import arguments, papers

PACKAGE = Path(polymax.__file__).parent
# modules that are imported by their own names, after those of `polymax` itself
MODULES = (
    ("polymax.nn", "pm.nn", "Modules"),
    ("polymax.factors", "pm.factors", "Factors of logic"),
    ("polymax.distributed", "pm.distributed", "Several processes"),
    ("polymax.plot", "pm.plot", "Pictures"),
    ("polymax_recipes.explore", "pm.explore", "Pictures that move"),
    ("polymax_recipes", "pm.recipes", "Recipes"),
    ("polymax.testing", "pm.testing", "Checks for your own"),
    ("polymax.integrations.transformers", "polymax.integrations.transformers", "Hugging Face Transformers"),
)
# methods that say nothing that the class does not say
OMITTED = ("extra_repr", "train", "eval", "reset_parameters")
# pages in the order in which readers need them; others follow in their own order
ORDER = (
    *("Mappings", "Structures", "Smoothed maxima over structures", "Losses", "Modules", "Regularizers", "Estimators"),
    *("Dynamic time warping", "Likelihoods of sequence models", "Alignments of speech", "Factor graphs"),
    *("Factors of logic", "Hugging Face Transformers", "Words of a large vocabulary", "Pictures", "Pictures that move"),
    *("Recipes", "Checks for your own", "Noise for perturbed scores"),
)
LAST = ("Alignments of sequences with gaps, to read", "Bands of cells for dynamic time warping")
# names of a page that come first, in this order
FIRST = (
    *("softmax", "sparsemax", "entmax", "fusedmax", "csparsemax"),
    *("Chain", "SpanningTree", "ProjectiveTree", "SpanTree", "Assignment", "Alignment", "CTC", "SemiMarkov", "Subset"),
    *("Marginals", "SparseMap", "LocalMax", "HardMax", "Perturbed"),
    *("entmax_loss", "sparsemax_loss", "linear_entmax_loss", "crf_loss", "sparsemap_loss", "fenchel_young"),
    *("scaled_dot_product_attention", "MultiheadAttention", "CRF", "AdaptiveEntmax", "LinearEntmaxLoss"),
    *("Gini", "Tsallis", "Shannon", "AlphaDivergence", "Fused", "StraightThrough", "PerturbAndMap", "ScoreFunction"),
    *("soft_dtw", "dtw", "ctc_loss", "forced_align", "FactorGraph", "register", "load"),
)
# methods by which a structure, regularizer or estimator of one's own is written, or which other parts of polymax call
HOOKS = frozenset(
    (
        "allowed",
        "along",
        "argmax_rows",
        "best_of",
        "best_score",
        "broadcast_scores",
        "broadcast_targets",
        "collect",
        "combination_losses",
        "compact",
        "complete",
        "complete_each",
        "derivations",
        "dims",
        "event",
        "event_dims",
        "feasible",
        "form",
        "full",
        "gibbs",
        "gradient_mask",
        "kbest",
        "lead",
        "linear_relaxation",
        "links_by_level",
        "marginals",
        "may_be_empty",
        "mean",
        "mixed",
        "most_parts",
        "named",
        "nu",
        "omega_at",
        "omega_of_structures",
        "omega_rows",
        "pairs",
        "parts_of",
        "potentials",
        "private",
        "problem",
        "projection",
        "relaxed_projection",
        "relaxed_projection_value",
        "rescore",
        "runs",
        "search",
        "slope",
        "squared_norm",
        "stack",
        "starts_by_level",
        "two_sides",
        "usable",
        "vertices",
        "vjp",
        "why_uncounted",
        "with_lengths",
        "zero_scores",
    )
)


class Group(NamedTuple):
    """A page of the reference: names of one module that belong together."""

    title: str
    prefix: str
    module: str
    names: list[str]

    @property
    def page(self) -> str:
        """The file of the page."""
        return re.sub(r"[^a-z]+", "-", self.title.split(":")[0].lower()).strip("-") + ".md"


def groups() -> list[Group]:
    """All pages: those of `polymax` by the comments between its imports, then a page for each module."""
    found = [Group(title, "pm", "polymax", names) for title, names in grouped_imports(PACKAGE / "__init__.py")]
    for module, prefix, title in MODULES:
        found.append(Group(title, prefix, module, public_names(module)))
    found = [group._replace(names=sorted(group.names, key=_importance)) for group in found if group.names]
    return sorted(found, key=_place)


def _importance(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def _place(group: Group) -> int:
    title = group.title.split(":")[0]
    if title in LAST:
        return len(ORDER) + 1 + LAST.index(title)
    return ORDER.index(title) if title in ORDER else len(ORDER)


def public_names(module: str) -> list[str]:
    """The names that a module offers: its __all__, or what it imports under its own name."""
    loaded = importlib.import_module(module)
    if hasattr(loaded, "__all__"):
        return sorted(name for name in loaded.__all__ if not inspect.ismodule(getattr(loaded, name)))
    text = Path(str(loaded.__file__)).read_text(encoding="utf-8")
    return sorted(set(re.findall(r"^from \S+ import (\w+) as \1$", text, re.MULTILINE)))


def grouped_imports(file: Path) -> Iterator[tuple[str, list[str]]]:
    """The names that a file imports, under the comment before them."""
    title = ""
    names: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("__version__"):
            break
        if line.startswith("# "):
            if names:
                yield title, names
            title, names = line[2].upper() + line[3:], []
        found = re.fullmatch(r"from \S+ import (\w+) as \1", line)
        if found and not found[1].startswith("_") and not inspect.ismodule(getattr(polymax, found[1])):
            names.append(found[1])
    if names:
        yield title, names


def page_of(group: Group) -> str:
    """The Markdown of a page."""
    module = importlib.import_module(group.module)
    about = inspect.getdoc(module) if group.module != "polymax" else None
    first = about.split("\n\n")[0] if about else ""
    parts = [f"# {group.title}\n", f"{first}\n" if first else ""]
    for name in group.names:
        parts.append(entry(f"{group.prefix}.{name}", getattr(module, name)))
    return "\n".join(parts)


def entry(name: str, value: Any) -> str:
    """A name: its heading, signature and docstring, and the methods of a class."""
    short = name.rsplit(".", 1)[-1]
    parts = [f"## `{name}` {{ #{short} }}\n"]
    if callable(value):
        call = signature(name, value)
        parts.append(f"```py\n{call}\n```\n")
        parts.append(explained(short, value))
        types = [_link(found) for found in dict.fromkeys(re.findall(r"\b[A-Z]\w+\b", call)) if found != short]
        if known := [found for found in types if found.startswith("[")]:
            parts.append(f"**Types:** {', '.join(known)}\n")
    else:
        parts.append(f"A value of the kind `{type(value).__name__}`.\n")
    if inspect.isclass(value):
        above = [base.__name__ for base in value.__mro__[1:-1] if base.__module__.startswith("polymax")]
        if above:
            parts.append(f"A kind of {', '.join(map(_link, above))}, with their methods.\n")
        for title, hooks in (("Methods", False), ("For extending", True)):
            methods = [f"- {line}" for method, line in _methods(value) if (method in HOOKS) is hooks]
            if methods:
                parts.append("\n".join([f"**{title}**\n", *methods, ""]))
    if place := _source(value):
        parts.append(f"[Source]({place}){{ .source }}\n")
    return "\n".join(parts)


def explained(name: str, value: Any) -> str:
    """Return the docstring of a name, with the meanings of arguments and the results of calls before its example."""
    doc = markdown(inspect.getdoc(value) or "")
    parts = []
    if name in arguments.HEADLINES:
        told = [
            f"- `{argument}`{f' = `{default}`' if default else ''}: {_escaped(meaning)}"
            for argument, default, meaning in arguments.listed(name, value)
        ]
        if told and "**Arguments**" not in doc:
            parts.append("\n".join(["**Arguments**\n", *told, ""]))
        for title, texts in (("Returns", arguments.RETURNS), ("Errors", arguments.RAISES)):
            if name in texts and f"**{title}" not in doc and not (title == "Errors" and "**Raises" in doc):
                parts.append(f"**{title}:** {_escaped(texts[name])}\n")
        if name in arguments.SEE and "**See:**" not in doc:
            doc += f"\n\n**See:** {papers.linked(arguments.SEE[name])}.\n"
    place = doc.find("```pycon")
    if place < 0:
        place = doc.find("**See:**")
    return "\n".join([doc, *parts]) if place < 0 else "\n".join([doc[:place], *parts, doc[place:]])


@cache
def places() -> dict[str, str]:
    """Return the page and heading of every public name; a name of two pages is on the first."""
    found: dict[str, str] = {}
    for group in groups():
        for name in group.names:
            found.setdefault(name, f"{group.page}#{name}")
    return found


def _link(name: str) -> str:
    place = places().get(name)
    return f"[`{name}`]({place})" if place else f"`{name}`"


def _source(value: Any) -> str | None:
    """Return the address of the lines that define a name, in the listing of its file on the site."""
    try:
        file, line = inspect.getsourcefile(inspect.unwrap(value)), inspect.getsourcelines(inspect.unwrap(value))[1]
    except TypeError:
        return None
    if file is None or not Path(file).is_relative_to(PACKAGE.parent):
        return None
    return f"../source/{source_page(Path(file))}#L{max(line, 1)}"


def source_page(file: Path) -> str:
    """Return the name of the page that lists a file of the package."""
    return file.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".") + ".html"


def signature(name: str, value: Any) -> str:
    """The call, an argument a line where one line would be long."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    text = re.sub(r"<factory>|<object object at \w+>|<function (\w+) at \w+>", lambda m: m[1] or "...", str(found))
    text = re.sub(r"<([\w.]+) object at 0x\w+>", "...", text).replace("torch.Tensor", "Tensor")
    text = re.sub(r"\b(?:polymax|collections\.abc|typing|torch)\.(?:\w+\.)*", "", text).replace("'", "")
    if inspect.isclass(value):
        text = text.removesuffix(" -> None")
    line = f"{name}{text}"
    if len(line) <= 88:
        return line
    inside, end = _split(text)
    return f"{name}(\n" + "".join(f"    {part},\n" for part in inside) + f"){end}"


def _split(text: str) -> tuple[list[str], str]:
    """The arguments of a call, split at commas outside of brackets, and the text after the call."""
    parts, depth, begin = [], 0, 1
    for place, letter in enumerate(text):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if (letter == "," and depth == 1) or (letter == ")" and depth == 0):
            parts.append(text[begin:place].strip())
            begin = place + 1
        if letter == ")" and depth == 0:
            break
    return [part for part in parts if part], text[begin:]


def _methods(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the public methods of a class and a line for each; torch's own sentence on `forward` is left out."""
    for name, member in sorted(vars(kind).items()):
        if name.startswith("_") or name in OMITTED:
            continue
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        about = _escaped(_first_sentence(kind, name))
        if isinstance(member, property):
            yield name, f"`{name}`: {about}" if about else f"`{name}`"
        elif inspect.isfunction(plain):
            own = [part for part in inspect.signature(plain).parameters.values() if part.name not in ("self", "cls")]
            listed = ", ".join(("*" if part.kind is part.VAR_POSITIONAL else "") + part.name for part in own)
            yield name, f"`{name}({listed})`: {about}" if about else f"`{name}({listed})`"


def _first_sentence(kind: type, name: str) -> str:
    """Return the first paragraph of a method's docstring, its own or one that it inherits from polymax."""
    for base in kind.__mro__:
        if name in vars(base) and base.__module__.startswith("polymax"):
            member = vars(base)[name]
            plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            doc = getattr(plain, "__doc__", None)
            if doc:
                return inspect.cleandoc(doc).split("\n\n")[0].replace("\n", " ")
    return ""


def markdown(doc: str) -> str:
    """A docstring as Markdown: formulas stay as they are, examples become code, arguments become a list."""
    out: list[str] = []
    lines = doc.splitlines()
    place = 0
    while place < len(lines):
        line = lines[place]
        bare = line.strip()
        heading = re.match(r"(Shapes?|See|Returns|Raises|Example|Examples):\s*(.*)", bare)
        if bare.startswith(">>>") or (heading and heading[1].startswith("Example")):
            block, place = _block(lines, place + (0 if bare.startswith(">>>") else 1))
            out += ["", "```pycon", *block, "```", ""]
            continue
        if found := re.fullmatch(r"(Args|Arguments|Raises|Returns|Attributes):\s*", bare):
            block, place = _indented(lines, place + 1)
            title = "Arguments" if found[1] == "Args" else found[1]
            out += ["", f"**{title}**", "", *_items(block, title == "Returns"), ""]
            continue
        if heading:
            # what follows in the same paragraph belongs to it
            rest = [heading[2]]
            while (
                place + 1 < len(lines) and lines[place + 1].strip() and not re.match(r"\w+:", lines[place + 1].strip())
            ):
                place += 1
                rest.append(lines[place].strip())
            told = _escaped(" ".join(rest))
            out += ["", f"**{heading[1]}:** {papers.linked(told) if heading[1] == 'See' else told}", ""]
        elif line.startswith("    ") and (not out or not out[-1].strip() or out[-1].startswith("```")):
            block, place = _indented(lines, place)
            out += ["```text", *block, "```", ""]
            continue
        else:
            out.append(_escaped(line))
        place += 1
    return "\n".join(out) + "\n"


def _items(block: list[str], plain: bool) -> list[str]:
    """Return the lines below a heading as a list: `name: text`, continued by lines that are indented deeper."""
    if plain:
        return [_escaped(" ".join(line.strip() for line in block))]
    items: list[str] = []
    for line in block:
        named = re.match(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)", line)
        if named:
            items.append(f"- `{named[1]}`: {_escaped(named[2])}")
        elif items and line.strip():
            items[-1] += f" {_escaped(line.strip())}"
        elif line.strip():
            items.append(f"- {_escaped(line.strip())}")
    return items


def _block(lines: list[str], place: int) -> tuple[list[str], int]:
    """An example: lines up to an empty one after which there is no more of it."""
    block: list[str] = []
    depth = len(lines[place]) - len(lines[place].lstrip()) if place < len(lines) else 0
    while place < len(lines):
        line = lines[place]
        if not line.strip():
            following = next((one for one in lines[place:] if one.strip()), "")
            if not following.startswith(" " * max(depth, 1)) and not following.strip().startswith(">>>"):
                break
        elif not line.startswith(" " * depth):
            break
        block.append(line[depth:])
        place += 1
    return block, place


def _indented(lines: list[str], place: int) -> tuple[list[str], int]:
    block = []
    while place < len(lines) and (lines[place].startswith("    ") or not lines[place].strip()):
        block.append(lines[place][4:])
        place += 1
    while block and not block[-1].strip():
        block.pop()
    return block, place


def _escaped(text: str) -> str:
    """Plain text of a docstring, whose stars, underscores and angles are no Markdown; what is in backticks stays."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(_name(part) if part.startswith("`") else _plain(part) for part in parts)


def _name(code: str) -> str:
    """Return code in backticks as a link, if it is a public name."""
    found = re.fullmatch(r"`(?:pm\.)?(?:nn\.|factors\.|plot\.)?(\w+)(?:\(.*\))?`", code)
    # names of functions are also those of arguments
    if found and (found[1][0].isupper() or code.startswith("`pm.")) and found[1] in places():
        return f"[{code}]({places()[found[1]]})"
    return code


def _plain(text: str) -> str:
    return re.sub(r"([*_\[\]])", r"\\\1", text.replace("<", "&lt;").replace(">", "&gt;"))
