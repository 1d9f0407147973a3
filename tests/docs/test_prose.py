"""Rules of prose that a test can keep, in docstrings, comments, messages and pages for users."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# rooms and pages that these rules do not reach yet
OPEN = ("docs/design/",)
# the most words of a sentence in code, and on a page, where a list of measures or options is a sentence
IN_CODE, ON_PAGES = 30, 45
# a docstring begins with a verb, or with the noun that is returned
FIRST = re.compile(r"(What|Which|Who|Those|One (of|that|which|for|in|is)|The same|As|Whether|Where|How)\b")
NOUNS = "tag|tree|structure|dynamic program|program|vertex|name|word|row|label|file|kernel|indicator"
BANNED = {
    "a relative clause in place of a noun": r"\b(of|from|by|with|for|to|and|is|are) what\b"
    r"|\bwhat (is|was|are) not\b|\bwhat (no one|nobody|others)\b",
    "'where' for a condition": r"\bwhere (there (is|are)|it has|they have|(none|nothing|one|some|all|both) (is|are))\b",
    "code that acts like a person": r"\b(nobody|no one|whoever|somebody|everybody)\b"
    r"|\b(is|are|was) (asked|told) (for|what|by|of)\b|\b(hears|wishes)\b",
    "a negated noun": rf"(?<!there )\b(is|are|was) no ({NOUNS})s?\b",
    "'where' twice": r"\bwhere\b.*\bwhere\b",
}


def sentences(text: str):
    """Yield the sentences of a text without formulas, tables, shapes and examples; colons and semicolons end one."""
    text = re.split(r"\n\s*(?:Example|Args|Arguments|Returns|Shapes|See):", text)[0]
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|] |\d+\. ))", text):
        # an indented block is a formula; columns are a table of names
        if paragraph.strip() and not re.match(r" {4}|\s*\||\w+ {3,}", paragraph):
            yield from re.split(r"(?<=[.;:!?])\s+", " ".join(paragraph.split()))


def faults(place: str, text: str, most: int) -> list[str]:
    """A line for each sentence that breaks a rule; `most` is the largest number of words."""
    found = []
    for sentence in sentences(text):
        plain = re.sub(r"`[^`]*`|\"[^\"]*\"|\[[^\]]*\]|\$[^$]*\$", "", sentence)
        words = re.findall(r"(?<![\w(])[A-Za-z][a-z'-]*(?![\w(=])", plain)
        broken = [rule for rule, pattern in BANNED.items() if re.search(pattern, plain)]
        broken += [f"{len(words)} words"] if len(words) > most else []
        found += [f"{place}: {rule}: {sentence}" for rule in broken]
    return found


def docstrings(file: Path) -> list[str]:
    """The docstrings of a file."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, kinds)]
    return [text for node in nodes if (text := ast.get_docstring(node))]


def comments(file: Path) -> list[str]:
    """The comments of a file; adjacent lines are one comment."""
    found: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            before = found.pop(token.start[0] - 1, "")
            found[token.start[0]] = f"{before} {token.string.lstrip('# ')}".strip()
    return list(found.values())


def messages(file: Path) -> list[str]:
    """The parts of error messages between their values."""
    raised = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Raise)]
    parts = [part.value for node in raised for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return [part for part in parts if isinstance(part, str) and " " in part]


def closed(file: Path) -> bool:
    return not file.relative_to(ROOT).as_posix().startswith(OPEN)


@pytest.mark.parametrize("package", ["polymax", "polymax_recipes", "website"])
def test_code_is_described_in_plain_words(package):
    files = [file for file in sorted((ROOT / package).rglob("*.py")) if closed(file)]
    assert files
    broken = []
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        texts = docstrings(file)
        broken += [f"{name}: {text[:60]}" for text in texts if FIRST.match(text)]
        broken += [
            fault for text in (*texts, *comments(file), *messages(file)) for fault in faults(name, text, IN_CODE)
        ]
    assert broken == []


@pytest.mark.parametrize("page", [p for p in PAGES if closed(p)], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_are_in_plain_words(page):
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    assert faults(page.name, re.sub(r"^#.*$", "", text, flags=re.MULTILINE), ON_PAGES) == []


@pytest.mark.parametrize(
    "text",
    [
        "Return the sum of what is left.",
        "0 where there is none.",
        "X is no tag of the training.",
        "The number of weights that nobody reads.",
        "It is told by the row.",
        "Rows where a is 0, and where b is 1.",
        " ".join(["word"] * 31),
    ],
)
def test_the_rules_find_what_they_forbid(text):
    assert len(faults("here", text, IN_CODE)) == 1


def test_the_rules_allow_plain_words():
    assert faults("here", "Return the sum over rows of positive weight; 0 if there is no row.", IN_CODE) == []
    assert FIRST.match("What is left.")
    assert not FIRST.match("Return the rest.")
