"""What the documents show is what happens: their blocks of Python run in order, and print the blocks of text.

Links lead somewhere, and every public name is in the reference.
"""

import contextlib
import importlib
import inspect
import io
import re
import shlex
import warnings
from pathlib import Path

import pytest

import polymax as pm
from website import arguments, reference
from website.__main__ import design_pages, unnamed_pages

ROOT = Path(__file__).parents[2]
# Python, and what it prints where that is shown
BLOCKS = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks/README.md", *(ROOT / "docs").rglob("*.md")]
)
DOCUMENTS = [
    page.relative_to(ROOT).as_posix()
    for page in PAGES
    # the gallery is run as the site is built
    if "```python\n" in page.read_text(encoding="utf-8") and page.name not in ("gallery.md", "index.md")
]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_blocks(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    if "from transformers import" in text:
        pytest.importorskip("transformers")
    exports = "torch.onnx.export(" in text
    if exports:
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    names: dict = {}
    blocks = BLOCKS.findall(text)
    assert blocks
    for code, shown in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            if exports:
                # those of the exporter
                warnings.simplefilter("ignore")
            exec(compile(code, name, "exec"), names)
        if shown:
            assert printed.getvalue() == shown


def test_the_diffs_are_real():
    """Lines that docs/adding.md shows as added to a file are in that file, one after the other."""
    shown = re.findall(r"```diff\n(.*?)```", (ROOT / "docs/adding.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown
    for block in shown:
        for hunk in block.split("+++ b/")[1:]:
            name, _, lines = hunk.partition("\n")
            added = "\n".join(line.removeprefix("+") for line in lines.rstrip("\n").split("\n"))
            assert added in (ROOT / name).read_text(encoding="utf-8"), f"docs/adding.md shows what {name} has not"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links(page):
    """Files that are linked are there, and so are the headings in them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, part = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if part:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
            assert part in anchors, target


def test_every_document_is_on_the_site():
    template = (ROOT / "website" / "zensical.toml").read_text(encoding="utf-8")
    nav = template + unnamed_pages(template)
    nav += design_pages()
    names = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [name for name in names if f'"{name}"' not in nav] == []


def test_every_public_name_is_in_the_reference():
    groups = reference.groups()
    listed = {f"{group.module}.{name}" for group in groups for name in group.names}
    names = {f"polymax.{name}" for name in pm.__all__ if not inspect.ismodule(getattr(pm, name))}
    for module, _, _ in reference.MODULES:
        names |= {f"{module}.{name}" for name in reference.public_names(module)}
    assert names - listed == set()
    documented = {module for module, _, _ in reference.MODULES}
    assert {f"polymax.{name}" for name in pm.__all__ if inspect.ismodule(getattr(pm, name))} <= documented
    lazy = {prefix.rsplit(".", 1)[-1] for _, prefix, _ in reference.MODULES}
    assert {name for name in dir(pm) if not name.startswith("__") and name not in pm.__all__} <= lazy
    assert len({group.page for group in groups}) == len(groups)


def public_values():
    for group in reference.groups():
        module = importlib.import_module(group.module)
        yield from ((f"{group.prefix}.{name}", getattr(module, name)) for name in group.names)


def test_every_name_says_what_it_is():
    """Names have a docstring, and what can be made or called has an example."""
    bare = [name for name, value in public_values() if callable(value) and not inspect.getdoc(value)]
    assert bare == []
    without = {
        name
        for name, value in public_values()
        if callable(value) and not inspect.isabstract(value) and ">>>" not in (inspect.getdoc(value) or "")
    }
    # or a document has one
    blocks = "".join(code for page in PAGES for code, _ in BLOCKS.findall(page.read_text(encoding="utf-8")))
    assert {name for name in without if not re.search(rf"\b{name.rsplit('.', 1)[-1]}\b", blocks)} == set()


def test_names_that_people_use_first_are_explained():
    """Every argument has a meaning; the page has the result, the errors and a paper with its address."""
    assert len(arguments.HEADLINES) >= 60
    names = {name.rsplit(".", 1)[-1]: (name, value) for name, value in reversed(list(public_values()))}
    for short in arguments.HEADLINES:
        name, value = names[short]
        known = [argument for argument, _, _ in arguments.listed(short, value)]
        assert known == list(inspect.signature(value).parameters), name
        page = reference.entry(name, value)
        assert "**Returns" in page, name
        assert "**Errors" in page or "**Raises" in page, name
        assert re.search(r"\*\*See:\*\* .*\(https://", page), name
        assert "[Source](../source/" in page, name
        assert page.index("**Returns") < page.find("```pycon", 0) or "```pycon" not in page, name
    used = {key.split(".")[-1] for key in arguments.ARGUMENTS}
    parameters = {part for _, value in names.values() if callable(value) for part in _parameters(value)}
    assert used <= parameters


def _parameters(value):
    try:
        return set(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return set()


def test_users_methods_stand_apart_from_hooks():
    page = reference.entry("pm.Chain", pm.Chain)
    users, hooks = page.split("**For extending**")
    assert "`map(*scores)`" in users
    assert "`derivations(*scores)`" in hooks
    assert reference.groups()[0].title.startswith("Mappings")
    assert reference.groups()[-1].title.startswith("Bands")


def test_docstrings_have_arguments_and_papers():
    doc = (
        "One.\n\nArgs:\n    x: scores (*batch, n)\n        of any dtype\n    y: others\n\nSee: Mensch and Blondel 2018."
    )
    text = reference.markdown(doc)
    assert "- `x`: scores (\\*batch, n) of any dtype\n- `y`: others" in text
    assert "**See:** [Mensch and Blondel 2018](https://arxiv.org/abs/1802.03676)." in text


def test_docstrings_become_markdown():
    parts = ["One line of *text*.", "    Omega(p) = sum p_i", "Shapes: x (n,)", "Example:\n    >>> 1 + 1\n    2"]
    text = reference.markdown("\n\n".join([*parts, "See: A, 2000."]))
    assert "One line of \\*text\\*." in text
    assert "```text\nOmega(p) = sum p_i\n```" in text
    assert "**Shapes:** x (n,)" in text
    assert "```pycon\n>>> 1 + 1\n2\n```" in text
    assert "**See:** A, 2000." in text


def test_commands_that_are_shown_can_be_given():
    """Every `polymax ...` in the documents has the arguments and options of its command."""
    typer = pytest.importorskip("typer")
    from polymax_recipes.cli import application

    program = typer.main.get_command(application())
    shown = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^ {4}polymax (.*)$", text, re.MULTILINE):
            # a choice of words is not a command; a file of --task is run at once, and is not there
            if re.search(r"\.\.\.|\bTASK\b|\[(--|RUN)|--task ", line):
                continue
            command, words, above = program, shlex.split(line, comments=True), None
            while command is not None:
                above = command.make_context(command.name, words, parent=above)
                words = [*getattr(above, "_protected_args", ()), *above.args]
                command = command.resolve_command(above, words)[1] if hasattr(command, "resolve_command") else None
                words = words[1:]
            shown += 1
    assert shown > 50
