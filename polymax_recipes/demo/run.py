"""The demo: mappings on one sentence, structures, speed, a translation that is learned, pictures, and a report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from polymax_recipes.demo import pictures, structure_pictures, translation
from polymax_recipes.demo.report import page
from polymax_recipes.demo.sentence import shown_sentence
from polymax_recipes.demo.speed import SHAPES
from polymax_recipes.demo.structured import shown_structures
from polymax_recipes.demo.terminal import measure_all, print_speed, print_structures, print_translation, print_weights
from polymax_recipes.outputs import atomic_write, save_picture, writable_directory


def demo(
    out: Path,
    *,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    seconds: float = 0.2,
    lesson: translation.Lesson = translation.LESSON,
    console: Console | None = None,
) -> Path:
    """Run the demo into the directory `out`, which is created, and return the path of its report."""
    console = console or Console()
    writable_directory(out)
    out.mkdir(parents=True, exist_ok=True)
    shown = shown_sentence()
    print_weights(console, shown)
    with console.status("drawing"):
        attention = pictures.attention_panels(shown.scores, shown.target, shown.source)
        files = {"attention": _save(attention, out / "attention.png")}
        files["curves"] = _save(pictures.curve_panels(), out / "curves.png")
        files["simplex"] = _save(pictures.simplex_panels(), out / "simplex.png")
    structures = shown_structures()
    with console.status("structures: the first run compiles their kernels"):
        aligned, tagged, *trees = structures
        files["alignment"] = _save(structure_pictures.alignment_panels(aligned), out / "alignment.png")
        files["tags"] = _save(structure_pictures.tag_panels(tagged), out / "tags.png")
        files["trees"] = _save(structure_pictures.tree_panels(*trees), out / "trees.png")
    print_structures(console, structures)
    timings = measure_all(console, shapes, seconds=seconds)
    print_speed(console, timings)
    files["speed"] = _save(pictures.speed_panel(timings), out / "speed.png")
    report = out / "report.html"
    # training takes longest: if it is stopped, the report already has the other parts
    _write(report, page(shown, structures, timings, files))
    if models := trained(console, lesson):
        print_translation(console, models)
        files["translation"] = _save(pictures.translation_panels(models), out / "translation.png")
        _write(report, page(shown, structures, timings, files, models))
    for file in [*files.values(), report]:
        console.print(f"wrote {file}", highlight=False, soft_wrap=True)
    return report


def trained(console: Console, lesson: translation.Lesson) -> list[translation.Learned]:
    """The trained models; if packages are missing, none, and a printed line that says so."""
    if missing := translation.missing_packages():
        wanted = f"translation is left out; it needs {', '.join(missing)}: pip install 'polymax[train]'"
        console.print(wanted + "\n", style="yellow", highlight=False, markup=False, soft_wrap=True)
        return []
    console.print("Translation of numbers in words, learned three times\n", style="bold")
    models = list(translation.train_models(lesson, console))
    console.print()
    return models


def _save(figure: Any, file: Path) -> Path:
    save_picture(figure, file, dpi=160)
    return file


def _write(report: Path, text: str) -> None:
    with atomic_write(report) as temporary:
        temporary.write_text(text, encoding="utf-8")
