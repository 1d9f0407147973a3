"""Examples and notebooks with their outputs and pictures: `python -m website.shown` runs them and keeps their outputs.

Outputs are kept with the digest of the code that made them; a test compares it with the code of today.
"""

import ast
import base64
import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "docs" / "notebooks"
EXAMPLES = ROOT / "examples"
OUTPUTS = EXAMPLES / "outputs.json"
PICTURES = ROOT / "docs" / "pictures" / "examples"
# examples that draw, with the option that names the file
DRAWING = {
    "07_latent_estimators": ["--steps", "200", "--seeds", "1"],
    "08_soft_dtw": [],
    "10_entmax_heads": [],
    "12_parse_alternatives": [],
}
# how the page of examples orders them
ORDER = (
    *("06_own_dynamic_program", "12_parse_alternatives", "10_entmax_heads", "11_entities", "13_match_boxes"),
    *("14_bert_crf", "15_bert_parser", "16_distillation"),
    *("04_chain_crf", "01_sparse_classifier", "02_learn_alpha", "08_soft_dtw", "09_series_prediction"),
    *("05_latent_tree", "07_latent_estimators", "03_own_regularizer"),
)


def digest(text: str) -> str:
    """Return the digest of code that is kept with its outputs."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def ordered() -> list[Path]:
    """Return the examples in the order of the page."""
    files = {file.stem: file for file in sorted(EXAMPLES.glob("*.py"))}
    return [files[stem] for stem in (*ORDER, *(stem for stem in files if stem not in ORDER))]


def title(file: Path) -> tuple[str, str, str]:
    """Return the first sentence of an example, what else it says, and its code."""
    text = file.read_text(encoding="utf-8")
    found = re.match(r'"""(.*?)"""\n+', text, re.DOTALL)
    if found is None:
        raise ValueError(f"{file.name} must begin with a docstring")
    first, _, rest = " ".join(found[1].split("\n\n")[0].split()).partition(". ")
    more = "\n\n".join([rest, *found[1].strip().split("\n\n")[1:]]).strip()
    return first.rstrip("."), more, text[found.end() :]


def examples() -> str:
    """Return the page of all examples: the subject of each, and a part of its output or its picture."""
    kept = json.loads(OUTPUTS.read_text(encoding="utf-8"))
    cards = []
    for file in ordered():
        stem = file.stem
        first, _, _ = title(file)
        picture = PICTURES / f"{stem}.png"
        lines = kept.get(stem, {}).get("output", "").splitlines()
        if picture.exists():
            shown = f'<img src="pictures/examples/{stem}.png" alt="" loading="lazy">'
        else:
            shown = f"<pre>{escape(chr(10).join(lines[:9]))}</pre>"
        cards.append(f'<a class="card" href="examples/{stem}.html">{shown}<b>{escape(first)}</b></a>')
    return (
        "# Examples\n\nSingle files that run in about a minute: `python examples/06_own_dynamic_program.py`. "
        "Each page has the code, what it prints and what it draws.\n\n"
        f'<div class="cards thumbs">{"".join(cards)}</div>\n'
    )


def example(file: Path) -> str:
    """Return the page of one example."""
    kept = json.loads(OUTPUTS.read_text(encoding="utf-8")).get(file.stem, {})
    first, more, code = title(file)
    parts = [f"# {first}\n", f"{more}\n" if more else ""]
    if (PICTURES / f"{file.stem}.png").exists():
        parts.append(f"![What the example draws](../pictures/examples/{file.stem}.png)\n")
    if kept:
        command = " ".join(["python", f"examples/{file.name}", *kept["arguments"]])
        parts.append(f"`{command}` prints:\n\n```text\n{kept['output'].rstrip()}\n```\n")
    parts.append(f"## Code\n\n```py\n{code}```\n")
    return "\n".join(parts)


def notebooks(staged: Path) -> str:
    """Return a page of the notebooks: text, code and outputs. Pictures go to files below `staged`."""
    parts = [
        "# Notebooks\n",
        "They are in `docs/notebooks`, with their outputs, and run from top to bottom in the tests.\n",
    ]
    for file in sorted(NOTEBOOKS.glob("*.ipynb")):
        body = []
        for place, cell in enumerate(json.loads(file.read_text(encoding="utf-8"))["cells"]):
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                body.append(re.sub(r"^#", "##", source, flags=re.MULTILINE))
                continue
            body.append(f"```py\n{source}\n```")
            for number, output in enumerate(cell["outputs"]):
                data = output.get("data", {})
                if "image/png" in data:
                    name = f"{file.stem}-{place}-{number}.png"
                    (staged / "pictures" / name).write_bytes(base64.b64decode("".join(data["image/png"])))
                    body.append(f"![What the cell above draws](pictures/{name})")
                else:
                    text = "".join(output.get("text", data.get("text/plain", "")))
                    body.append(f"```text\n{text.rstrip()}\n```")
        parts.append("\n\n".join(body) + "\n")
    return "\n".join(parts)


def run_notebook(file: Path, draw: Any = None) -> dict[str, Any]:
    """Return a notebook with the outputs of its cells; `draw` makes a PNG of a picture that moves."""
    stored = json.loads(file.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    count = 0
    for cell in stored["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        source = "".join(cell["source"])
        tree = ast.parse(source)
        last: Any = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, file.name, "exec"), names)
            value = eval(compile(ast.Expression(last.value), file.name, "eval"), names) if last else None
        outputs: list[dict[str, Any]] = []
        if printed.getvalue():
            outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)})
        if value is not None:
            data: dict[str, Any] = {"text/plain": [repr(value)]}
            if hasattr(value, "html") and draw is not None:
                data["image/png"] = draw(value)
            outputs.append({"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}})
        cell |= {"outputs": outputs, "execution_count": count, "metadata": {"code": digest(source)}}
    return stored


def _browser_pictures() -> Any:
    """Return a function that makes a PNG, as base64, of a picture of `pm.explore`, in headless Chromium."""
    from playwright.sync_api import sync_playwright

    started = sync_playwright().start()
    path = next(Path(place) for place in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(place).exists())
    page = started.chromium.launch(executable_path=path, args=["--no-sandbox"]).new_page(
        viewport={"width": 760, "height": 500}
    )

    def draw(picture: Any) -> str:
        page.set_content(picture.html())
        page.wait_for_timeout(300)
        return base64.b64encode(page.locator("body").screenshot()).decode()

    return draw


def run_example(file: Path) -> dict[str, Any]:
    """Return what is kept of a run of an example: the digest of its code, its arguments and its output."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    arguments = list(DRAWING.get(file.stem, ()))
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "picture.png"
        asked = [*arguments, "--picture", str(picture)] if file.stem in DRAWING else arguments
        run = subprocess.run(
            [sys.executable, str(file), *asked],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        if picture.exists():
            (PICTURES / f"{file.stem}.png").write_bytes(picture.read_bytes())
    output = "\n".join(line for line in run.stdout.splitlines() if not line.startswith("wrote "))
    return {"code": digest(file.read_text(encoding="utf-8")), "arguments": arguments, "output": output}


def main(names: list[str]) -> None:
    """Run the examples and notebooks that are named by their stems, or all of them."""
    kept = json.loads(OUTPUTS.read_text(encoding="utf-8")) if OUTPUTS.exists() else {}
    for file in ordered():
        if not names or file.stem in names:
            kept[file.stem] = run_example(file)
            OUTPUTS.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n", encoding="utf-8")
            print(f"ran {file.name}", flush=True)
    files = [file for file in sorted(NOTEBOOKS.glob("*.ipynb")) if not names or file.stem in names]
    draw = _browser_pictures() if files else None
    for file in files:
        file.write_text(json.dumps(run_notebook(file, draw), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"ran {file.name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
