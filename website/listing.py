"""Listings of the package's files: a plain page for each, with numbered lines, to which the reference links."""

from html import escape
from pathlib import Path

import polymax

PACKAGE = Path(polymax.__file__).parent
FOLDERS = ("polymax", "polymax_recipes")
STYLE = (
    "body{margin:0;font:14px/1.45 ui-monospace,monospace;background:#fff;color:#1f2328}"
    "header{padding:.8rem 1rem;border-bottom:1px solid #d0d7de;font-family:system-ui,sans-serif}a{color:#2f63c4}"
    "pre{margin:0;padding:1rem;white-space:pre-wrap;overflow-wrap:anywhere;tab-size:4}"
    "i{display:block;font-style:normal;padding-left:4.5em;text-indent:-4.5em}"
    "i::before{content:attr(data-n);display:inline-block;width:3.5em;margin-right:1em;text-align:right;color:#8c959f;"
    "text-indent:0}i:target{background:#fff8c5}b{font-weight:400}.k{color:#a3306e}.s{color:#1a6b3c}.c{color:#6e7781}"
    "@media (prefers-color-scheme:dark){body{background:#15181d;color:#e6edf3}header{border-color:#30363d}"
    "a{color:#7fa8f5}i:target{background:#3b3410}.k{color:#f38bb8}.s{color:#8fd6a8}.c{color:#8b949e}}"
)


def write_listings(folder: Path) -> None:
    """Write a page for every file of Python that a name of the reference may come from."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in FOLDERS:
        for file in sorted((PACKAGE.parent / package).rglob("*.py")):
            inside = file.relative_to(PACKAGE.parent)
            if "kernels" in inside.parts or "backend" in inside.parts:
                continue
            name = inside.with_suffix("").as_posix().replace("/", ".")
            (folder / f"{name}.html").write_text(page(inside.as_posix(), file.read_text("utf-8")), encoding="utf-8")


def page(name: str, code: str) -> str:
    """Return the page that lists a file."""
    lines = "".join(f'<i id="L{n}" data-n="{n}">{line or " "}</i>' for n, line in enumerate(coloured(code), 1))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(name)}</title><style>{STYLE}</style>"
        f'<header><a href="../reference/index.html">Reference</a> · {escape(name)}</header><pre>{lines}</pre></html>\n'
    )


def coloured(code: str) -> list[str]:
    """Return the lines of a file as HTML, with keywords, strings and comments marked.

    Example:
        >>> coloured("return 'a'  # b")
        ['<b class="k">return</b> <b class="s">&#x27;a&#x27;</b>  <b class="c"># b</b>']
    """
    import io
    import keyword
    import tokenize

    marks: list[list[tuple[int, int, str]]] = [[] for _ in range(code.count("\n") + 2)]
    lines = code.splitlines()
    kinds = {tokenize.STRING: "s", tokenize.COMMENT: "c"}
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        kind = "k" if token.type == tokenize.NAME and keyword.iskeyword(token.string) else kinds.get(token.type)
        if kind is None:
            continue
        (first, begin), (last, end) = token.start, token.end
        for place in range(first, last + 1):
            start = begin if place == first else 0
            marks[place].append((start, end if place == last else len(lines[place - 1]), kind))
    shown = []
    for number, line in enumerate(lines, 1):
        parts, done = [], 0
        for start, end, kind in marks[number]:
            parts.append(escape(line[done:start]))
            if end > start:
                parts.append(f'<b class="{kind}">{escape(line[start:end])}</b>')
            done = end
        shown.append("".join([*parts, escape(line[done:])]))
    return shown
