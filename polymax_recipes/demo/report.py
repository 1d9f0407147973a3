"""The report of the demo: one HTML file that holds its pictures, with no script and no link."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

from polymax_recipes.demo.catalogue import MAPPINGS, call
from polymax_recipes.demo.corpus import pairs
from polymax_recipes.demo.sentence import ROUNDS, SLOPE, WORD, Sentence, counts, short
from polymax_recipes.demo.speed import Timing, caution, machine
from polymax_recipes.demo.structured import TAGGING, WARPING, Shown
from polymax_recipes.demo.tagged import SMOOTHING, tagged_sentences
from polymax_recipes.demo.translation import Learned

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>polymax demo</title>
<style>
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --faint: #666; --line: #ddd; --zero: #e4e4e4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181c; --faint: #a0a0a0; --line: #3a3d42; --zero: #34373c; }
}
body { max-width: 72rem; margin: 2rem auto; padding: 0 1.2rem; color: var(--ink); background: var(--paper);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin-bottom: 0.2rem; }
h2 { font-size: 1.2rem; margin-top: 2.6rem; }
p, figcaption { max-width: 46rem; }
figure { margin: 1rem 0; }
figcaption, .faint { color: var(--faint); font-size: 0.9rem; }
img { max-width: 100%; height: auto; background: #fff; padding: 0.6rem; border-radius: 6px;
  box-sizing: border-box; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.5rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; font-weight: normal; }
td.zero { background: var(--zero); color: var(--faint); }
code { font-size: 0.92em; }
</style>
</head>
<body>
<h1>polymax demo</h1>
<p class="faint">$machine</p>
<p>Each mapping is <code>argmax over p in the simplex of &lt;x, p&gt; − Ω(p)</code>, with its own Ω, and can
replace <code>torch.softmax</code>. Most give exact zeros; some give one weight to a whole group.</p>

<h2>One sentence, five mappings</h2>
$attention
<h2>All mappings on one row</h2>
<p>The weights of the English words for “$word”. Grey is exactly 0; <em>groups</em> counts distinct positive
weights. The weights of <code>budgetmax</code> sum to its k.</p>
<div class="scroll">$weights</div>

<h2>Two classes</h2>
$curves
<h2>Three classes</h2>
$simplex
<h2>Structures</h2>
<p>The same formula over sets of structures: <code>argmax over μ in conv(Y) of &lt;scores, μ&gt; − Ω(μ)</code>.
<code>HardMax</code> gives the best structure, <code>Marginals</code> the probability of every part,
<code>LocalMax</code> smooths each maximum of the dynamic program; with <code>Gini</code> most parts get exactly 0.
All three are differentiable in the scores. The table counts the structures, and the parts above 0.</p>
<div class="scroll">$structures</div>

<h2>Two series</h2>
$alignment
<h2>Tags of a sentence</h2>
$tags
<h2>Trees over a sentence</h2>
$trees
<h2>Speed</h2>
<p>Mappings, forward and backward in float32, median milliseconds, and in parentheses the multiple of
<code>torch.softmax</code> measured in turn with it. $caution</p>
<div class="scroll">$timings</div>
$speed
$translation
</body>
</html>
""")

TRANSLATION = Template("""<h2>Attention that is learned</h2>
<p>Three models learned to translate numbers from English to French words, and differ in the mapping of their attention
alone. <em>right</em> is the share of numbers they had not seen whose whole translation is right, <em>zeros</em> the
share of exact zeros in the attention, <em>groups</em> the number of blocks of equal positive weights for a word.
Speeds are in French words.</p>
<div class="scroll">$measures</div>
$picture""")

CAPTIONS = {
    "attention": f"""Rows are French words, columns the English words they may translate. The scores are
log t(f | e) − {SLOPE:g} |i/n − j/m|: t comes from {ROUNDS} rounds of IBM Model 1 on {len(pairs())} sentence
pairs, this one among them; the second term, chosen and not learnt, prefers the diagonal. Their softmax is the
alignment posterior. Exact zeros are grey. Equal weights side by side have no border between them: fusedmax
gives one weight to a phrase. Equal weights that stand apart carry the same number: oscarmax clusters words
wherever they are. The strengths were chosen so that groups show.""",
    "curves": """Left: the smoothed max of the scores (t, 0). Right: its slope, the first weight of the
argmax. Fused lies below max(t, 0) at the ends because its Ω is not 0 at the vertices.""",
    "simplex": """Shading: Ω, darker where lower. Dots: the argmax for a grid of scores over a disc of radius
2, blue with three positive weights, orange with two, red with one; larger where more scores share it.""",
    "alignment": f"""Two noisy recordings of the same bumps, made for the demo; the scores are minus the squared
differences, gamma is {WARPING:g}. Blue: how much each cell is expected to be on the path; grey: exactly 0.
Orange: the best path, dynamic time warping. Left, every maximum smoothed by Gini: the path stays in a corridor.
Right, soft-DTW: every cell has a weight, most of them too small to see.""",
    "tags": f"""A hidden Markov model counted in {len(tagged_sentences())} tagged sentences, with {SMOOTHING:g} added
to every count; gamma {TAGGING:g} was chosen so that readings share. The area of a node is the probability of its tag,
the width of a line that of the two tags it joins; what has probability 0 is not drawn. Orange: the best sequence.
Left, few readings are left; right, all of them.""",
    "trees": """Left, bracketings (CKY); right, dependency trees without crossing arcs (Eisner). The best tree, then
sparse and dense expectations; numbers are probabilities where they are not 1. The scores are rules written by hand, by
the kinds of the words at the ends of a span or of an arc, so that it stays open who has the telescope: sparse
smoothing leaves the two readings, and gives 0 to the rest.""",
    "speed": "The same times; the line is torch.softmax.",
}
SEEN = """A number that none of them had seen: rows are the words that each wrote, columns those it read, the end of the
sentence the last. Equal weights side by side have no border between them: fusedmax attends to segments."""


def page(
    shown: Sentence,
    structures: Sequence[Shown],
    timings: Sequence[Timing],
    files: Mapping[str, Path],
    models: Sequence[Learned] = (),
) -> str:
    """The report as HTML; `files` are the pictures, by the name of their caption.

    Without models, the report leaves them out.
    """
    facts = machine()
    return PAGE.substitute(
        machine=escape(f"{facts['device']}, {facts['threads']} threads, torch {facts['torch']}"),
        word=escape(WORD),
        weights=_weights(shown),
        structures=_structures(structures),
        timings=_timings(timings),
        caution=escape(caution(timings)),
        translation=_translation(models, files["translation"]) if models else "",
        **{name: _figure(files[name], caption) for name, caption in CAPTIONS.items()},
    )


def _figure(file: Path, caption: str) -> str:
    data = b64encode(file.read_bytes()).decode("ascii")
    return (
        f'<figure><img alt="{escape(file.stem)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _weights(shown: Sentence) -> str:
    rows = []
    for mapping, row in zip(MAPPINGS, shown.weights().values()):
        cells = "".join([*map(_weight, row), *(f"<td>{count}</td>" for count in counts(row))])
        rows.append(f"<tr><th><code>{escape(call(mapping))}</code></th>{cells}</tr>")
    return _table([*shown.source, "zeros", "groups"], rows)


def _weight(weight: float) -> str:
    if weight == 0:
        return '<td class="zero">0</td>'
    # at most half of full strength keeps the text readable on light and on dark pages
    strength = 0.05 + 0.5 * min(weight, 1)
    return f'<td style="background: rgba(33, 113, 181, {strength:.2f})">{short(weight)}</td>'


def _structures(structures: Sequence[Shown]) -> str:
    rows = []
    for shown in structures:
        cells = "".join(f"<td>{cell}</td>" for cell in (shown.count(), *shown.positive()))
        made = f"pm.{type(shown.structure).__name__}()"
        rows.append(f"<tr><th>{escape(shown.name)}, <code>{escape(made)}</code></th>{cells}</tr>")
    return _table(["structures", "HardMax", "LocalMax, Gini", "Marginals"], rows)


def _timings(timings: Sequence[Timing]) -> str:
    shapes = list(dict.fromkeys(timing.shape for timing in timings))
    rows = []
    for mapping in dict.fromkeys(timing.mapping for timing in timings):
        own = [timing for timing in timings if timing.mapping == mapping]
        cells = "".join(f"<td>{timing}</td>" for timing in own)
        rows.append(f"<tr><th><code>{escape(mapping)}</code></th>{cells}</tr>")
    return _table([" × ".join(map(str, shape)) for shape in shapes], rows)


def _translation(models: Sequence[Learned], file: Path) -> str:
    rows = []
    for model in models:
        cells = "".join(f"<td>{cell}</td>" for cell in model.measures().values())
        rows.append(f"<tr><th><code>{escape(call(model.mapping))}</code></th>{cells}</tr>")
    measures = _table(list(models[0].measures()), rows)
    return TRANSLATION.substitute(measures=measures, picture=_figure(file, SEEN))


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(word)}</th>" for word in ("", *heads))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
