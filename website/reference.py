"""The reference: every public name with its signature, shapes, formula and example, from the docstrings."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import polymax

PACKAGE = Path(polymax.__file__).parent
# modules that are imported by their own names, after those of `polymax` itself
MODULES = (
    ("polymax.nn", "pm.nn", "Modules"),
    ("polymax.factors", "pm.factors", "Factors of logic"),
    ("polymax.plot", "pm.plot", "Pictures"),
    ("polymax_recipes.explore", "pm.explore", "Pictures that move"),
    ("polymax_recipes", "pm.recipes", "Recipes"),
    ("polymax.testing", "pm.testing", "Checks for your own"),
    ("polymax.integrations.transformers", "polymax.integrations.transformers", "Hugging Face Transformers"),
)
# methods that say nothing that the class does not say
OMITTED = ("extra_repr", "train", "eval")


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
    return [group for group in found if group.names]


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
        parts.append(f"```py\n{signature(name, value)}\n```\n")
        parts.append(markdown(inspect.getdoc(value) or ""))
    else:
        parts.append(f"A value of the kind `{type(value).__name__}`.\n")
    if inspect.isclass(value):
        above = [base.__name__ for base in value.__mro__[1:-1] if base.__module__.startswith("polymax")]
        if above:
            parts.append(f"A kind of {', '.join(f'`{base}`' for base in above)}, with their methods.\n")
        methods = [f"- {line}" for line in _methods(value)]
        if methods:
            parts.append("\n".join(["**Methods and properties**\n", *methods, ""]))
    return "\n".join(parts)


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
    """The arguments of a call, cut at the commas that are in no bracket, and what follows the call."""
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


def _methods(kind: type) -> Iterator[str]:
    for name, member in sorted(vars(kind).items()):
        if name.startswith("_") or name in OMITTED:
            continue
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        about = (inspect.getdoc(plain) or "").split("\n\n")[0].replace("\n", " ")
        if isinstance(member, property):
            yield f"`{name}`: {about}" if about else f"`{name}`"
        elif inspect.isfunction(plain):
            own = [part for part in inspect.signature(plain).parameters.values() if part.name not in ("self", "cls")]
            listed = ", ".join(("*" if part.kind is part.VAR_POSITIONAL else "") + part.name for part in own)
            yield f"`{name}({listed})`: {about}" if about else f"`{name}({listed})`"


def markdown(doc: str) -> str:
    """A docstring as Markdown: formulas stay as they are, examples become code, Shapes and See get their names."""
    out: list[str] = []
    lines = doc.splitlines()
    place = 0
    while place < len(lines):
        line = lines[place]
        bare = line.strip()
        heading = re.match(r"(Shapes?|See|Example|Examples):\s*(.*)", bare)
        if bare.startswith(">>>") or (heading and heading[1].startswith("Example")):
            block, place = _block(lines, place + (0 if bare.startswith(">>>") else 1))
            out += ["", "```pycon", *block, "```", ""]
            continue
        if heading:
            # what follows in the same paragraph belongs to it
            rest = [heading[2]]
            while (
                place + 1 < len(lines) and lines[place + 1].strip() and not re.match(r"\w+:", lines[place + 1].strip())
            ):
                place += 1
                rest.append(lines[place].strip())
            out += ["", f"**{heading[1]}:** {_escaped(' '.join(rest))}", ""]
        elif line.startswith("    ") and (not out or not out[-1].strip() or out[-1].startswith("```")):
            block, place = _indented(lines, place)
            out += ["```text", *block, "```", ""]
            continue
        else:
            out.append(_escaped(line))
        place += 1
    return "\n".join(out) + "\n"


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
    return "".join(part if part.startswith("`") else _plain(part) for part in parts)


def _plain(text: str) -> str:
    return re.sub(r"([*_\[\]])", r"\\\1", text.replace("<", "&lt;").replace(">", "&gt;"))
