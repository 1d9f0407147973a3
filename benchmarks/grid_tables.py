"""Tables of grids of trainings, and of what reproduces the figures of papers."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks import archive
from benchmarks.published import PUBLISHED_LENGTHS, REPRODUCED
from benchmarks.table_text import grid, source


def lengths(machine: str, problem: str, plan: str | None = None, measure: str = "exact") -> str:
    """Shares of what is right at each length, by attention: of whole targets, or of tokens if measure is "tokens"."""
    kept = archive.trainings(machine, "lengths", plan)
    of_problem = [row for row in kept["rows"] if row["problem"] == problem]
    if not of_problem:
        raise ValueError(f"{machine}/lengths has no {problem}")
    longest = of_problem[0]["longest"]
    at = [test["length"] for test in of_problem[0]["tests"]]
    lines = []
    for attention in dict.fromkeys(row["attention"] for row in of_problem):
        rows = [row for row in of_problem if row["attention"] == attention]
        cells = [_spread([row["tests"][k][measure] for row in rows]) for k in range(len(at))]
        if measure == "tokens":
            cells += [_spread([row["tests"][k]["exact"] for row in rows]) for k in range(2)]
        lines.append([attention, *cells, str(len(rows))])
    factors = ["trained" if length == longest else f"{length / longest:g} x" for length in at]
    head = [f"right {'tokens' if measure == 'tokens' else 'targets'}, %"]
    head += [f"{length} ({factor})" for length, factor in zip(at, factors)]
    if measure == "tokens":
        head += [f"whole targets, {length}" for length in at[:2]]
    return f"{grid([*head, 'seeds'], lines)}\n\n{source(kept, f'{machine}/lengths')}"


def lengths_published() -> str:
    """The figures of Vasylenko et al. 2025 for the same problems at their sizes."""
    lines = []
    for problem, factors, rows in PUBLISHED_LENGTHS:
        for attention, figures in rows:
            cells = [f"{figure:g} ({factor:g} x)" for figure, factor in zip(figures, factors)]
            lines.append([problem, attention, ", ".join(cells)])
    return grid(["problem", "attention", "right targets, % (multiple of the longest source of the training)"], lines)


def _spread(shares: Sequence[float]) -> str:
    """Return the mean of shares in per cent, and the least and the largest if they differ in the whole part."""
    middle, low, high = f"{100 * mean(shares):.1f}", f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"
    return middle if low == high else f"{middle} ({low} to {high})"


def contexts(machine: str, plan: str, context: str | None = None) -> str:
    """Losses, speed, memory and supports of language models by context, limit and attention, of one context or all."""
    kept = archive.trainings(machine, "contexts", plan)
    kinds = dict.fromkeys((row["context"], row["budget"], row["attention"]) for row in kept["rows"])
    lines = []
    for kind in sorted((one for one in kinds if context in (None, str(one[0]))), key=lambda one: one[1] == "steps"):
        rows = [row for row in kept["rows"] if (row["context"], row["budget"], row["attention"]) == kind]
        limit = f"{rows[0]['steps_asked']:,} steps" if kind[1] == "steps" else f"{rows[0]['seconds_asked']:g} s"
        layers = [mean(ones) for ones in zip(*(row["curve"][-1]["supports"]["mean_support"] for row in rows))]
        peak = mean(row["peak_gib"] for row in rows) if rows[0]["peak_gib"] is not None else None
        name = f"{kind[2]} ({rows[0]['kernel']})" if rows[0].get("kernel") else kind[2]
        cells = [f"{kind[0]:,}", limit, name, _range_of([row["bits_per_byte"] for row in rows])]
        cells += [_mean_of([row[name] for row in rows]) for name in ("steps", "tokens_per_second")]
        cells += [", ".join(f"{layer:,.0f}" for layer in layers), "" if peak is None else f"{peak:.1f}"]
        lines.append([*cells, str(len(rows))])
    head = ["context", "limit", "attention", "bits per byte", "steps", "tokens/s", "keys a query attends to, by layer"]
    return f"{grid([*head, 'GiB', 'seeds'], lines)}\n\n{source(kept, f'{machine}/contexts')}"


def equal_steps(machine: str, plan: str, context: str, measure: str = "held_out") -> str:
    """Held-out losses and seconds, or mean supports, at steps at which all models of a context were measured."""
    kept = archive.trainings(machine, "contexts", plan)
    rows = comparable(row for row in kept["rows"] if row["context"] == int(context))
    if not rows:
        raise ValueError(f"{machine}/contexts: learning rates of {plan} depend on the length of the training")
    common = common_steps(rows)
    # four of them, the last among them
    at = common[:: -max(1, -(-len(common) // 4))][::-1]
    lines = []
    for name in dict.fromkeys(row["attention"] for row in rows):
        some = [row for row in rows if row["attention"] == name]
        curves = [{part["step"]: part for part in row["curve"]} for row in some]
        # others used the device
        timed = all(row["tokens_per_second"] is not None for row in some)
        lines.append([name, *(_at_step([curve[step] for curve in curves], measure, timed) for step in at)])
    what = "bits per byte" if measure == "held_out" else "keys a query attends to, mean of all layers"
    if measure == "held_out" and any(row["tokens_per_second"] is not None for row in rows):
        what += "; seconds"
    return f"{grid([what, *(f'{step:,} steps' for step in at)], lines)}\n\n{source(kept, f'{machine}/contexts')}"


def common_steps(rows: Sequence[dict[str, Any]]) -> list[int]:
    """Return the steps at which all trainings were measured; the last measurement is after steps of its own."""
    return sorted(set.intersection(*({part["step"] for part in row["curve"][:-1]} for row in rows)))


def _at_step(parts: Sequence[dict[str, Any]], measure: str, timed: bool) -> str:
    """Return what the seeds of a model have at a step."""
    if measure != "held_out":
        return f"{mean(mean(part['supports']['mean_support']) for part in parts):,.1f}"
    bits = _range_of([part["held_out"] for part in parts], ".2f")
    return f"{bits}; {mean(part['seconds'] for part in parts):.0f} s" if timed else bits


def comparable(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return trainings that are the same up to a step: of a constant rate; of a model by seconds, or else by steps."""
    constant = [row for row in rows if row.get("constant")]
    by_time = {row["attention"] for row in constant if row["budget"] == "seconds"}
    return [row for row in constant if row["budget"] == "seconds" or row["attention"] not in by_time]


def positions(machine: str, plan: str, budget: str = "steps", context: str | None = None) -> str:
    """Losses of language models by the position in the window, means over seeds, of one context or all."""
    kept = archive.trainings(machine, "contexts", plan)
    all_rows = [row for row in kept["rows"] if row["budget"] == budget and context in (None, str(row["context"]))]
    longest = max(all_rows, key=lambda row: row["context"])
    places = list(longest["by_position"])
    lines = []
    for kind in dict.fromkeys((row["context"], row["attention"]) for row in all_rows):
        rows = [row for row in all_rows if (row["context"], row["attention"]) == kind]
        found = [
            f"{mean(row['by_position'][place] for row in rows):.3f}" if place in rows[0]["by_position"] else ""
            for place in places
        ]
        lines.append([f"{kind[0]:,}", kind[1], *found])
    head = ["context", "attention", *(f"from {int(place):,}" for place in places)]
    return f"{grid(head, lines)}\n\n{source(kept, f'{machine}/contexts')}"


def vocabulary(machine: str, plan: str) -> str:
    """Quality of language models by the loss of their words: measures that allow zeros, repetition, time."""
    kept = archive.trainings(machine, "vocabulary", plan)
    lines = []
    for loss in dict.fromkeys(row["loss_name"] for row in kept["rows"]):
        rows = [row for row in kept["rows"] if row["loss_name"] == loss]
        line = [loss, *(_range_of([row[name] for row in rows], form) for name, form in _WORD_MEASURES.items())]
        lines.append([*line, str(len(rows))])
    rows = kept["rows"]
    text = ["the text itself", *[""] * 6]
    text += [_range_of([row[f"distinct_{n}_of_text"] for row in rows]) for n in (1, 3)]
    lines.append([*text, "", ""])
    head = ["loss", "right", "epsilon-perplexity", "sparsemax score", "Jensen-Shannon", "words in the support"]
    head += ["wrong repeats", "distinct words", "distinct 3-grams", "ms a step", "seeds"]
    return f"{grid(head, lines)}\n\n{source(kept, f'{machine}/vocabulary')}"


_WORD_MEASURES = {
    **{"accuracy": ".3f", "epsilon_perplexity": ",.0f", "sparsemax_score": ".3f", "jensen_shannon": ".3f"},
    **{"possible_words": ",.0f", "wrong_repeats": ".3f", "distinct_1": ".3f", "distinct_3": ".3f", "step_ms": ".1f"},
}


# tables of papers in the summary: task, machine, plan, measure, methods without a sparse or structured part
PAPERS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    ("Entailment, alignments", "epyc-1core", "entailment", "accuracy", ("softmax",)),
    ("Entailment, attention", "epyc-1core", "entailment-attention", "accuracy", ("softmax",)),
    ("Parsing, UD Vietnamese, 3 epochs", "epyc-1core", "parsing-vietnamese", "uas", ("softmax-heads",)),
)


def summarized() -> list[list[str]]:
    """Return rows of the summary: of grids, with the least and the largest of the seeds."""
    lines = []
    for task, machine, plan, measure, ordinary in PAPERS:
        kept = archive.trainings(machine, f"papers_{plan.replace('-', '_')}")["rows"]
        shares: dict[str, list[float]] = {}
        for row in kept:
            shares.setdefault(row["method"], []).append(row["reports"]["test"][measure])
        best, peer = (
            max((name for name in shares if (name in ordinary) is not sparse), key=lambda name: mean(shares[name]))
            for sparse in (True, False)
        )
        ours, other = (f"{_spread(shares[name])} (`{name}`)" for name in (best, peer))
        lines.append(
            [task, f"{measure.upper() if measure == 'uas' else measure}, %", ours, other, "none", _seeds(shares)]
        )
    kept = archive.trainings("h200", "lengths", "minutes")["rows"]
    for problem in dict.fromkeys(row["problem"] for row in kept):
        measure, what = ("tokens", "right tokens, %") if problem == "sort" else ("exact", "right targets, %")
        rows = {
            name: [row for row in kept if (row["problem"], row["attention"]) == (problem, name)]
            for name in ("asentmax", "softmax")
        }
        ours, usual = (
            f"{_spread([row['tests'][2][measure] for row in some])} (`{name}`)" for name, some in rows.items()
        )
        lines.append([f"{problem}, four times the length", what, ours, usual, "none", _seeds(rows)])
    for machine, plan in (("xeon-2core", "cpu"), ("h200", "minutes")):
        kept = archive.trainings(machine, "contexts", plan)["rows"]
        for context in sorted({row["context"] for row in kept}):
            lines += _summarized_context(context, [row for row in kept if row["context"] == context])
    kept = archive.trainings("h200", "vocabulary", "minutes")["rows"]
    for measure, form in (("sparsemax_score", ".3f"), ("epsilon_perplexity", ",.0f")):
        found = {
            name: [row[measure] for row in kept if row["loss_name"] == name] for name in ("entmax 1.5", "cross-entropy")
        }
        ours, usual = (f"{_range_of(values, form)} (`{name}`)" for name, values in found.items())
        lines.append(["Words of Python sources", measure.replace("_", " "), ours, usual, "none", _seeds(found)])
    return lines


def _summarized_context(context: int, rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the rows of the summary for a context: after equal times, and after equal steps."""
    found = {"equal time": [(row["attention"], row["bits_per_byte"]) for row in rows if row["budget"] == "seconds"]}
    if same := comparable(rows):
        step = common_steps(same)[-1]
        found[f"{step:,} steps"] = [
            (row["attention"], part["held_out"]) for row in same for part in row["curve"] if part["step"] == step
        ]
    else:
        found["equal steps"] = [(row["attention"], row["bits_per_byte"]) for row in rows if row["budget"] == "steps"]
    lines = []
    for limit, values in found.items():
        bits: dict[str, list[float]] = {}
        for name, value in values:
            bits.setdefault(name, []).append(value)
        ours, usual = ([name for name in bits if name.startswith("softmax") is soft] for soft in (False, True))
        if ours and usual:
            told = {name: f"{_range_of(some)} (`{name}`)" for name, some in bits.items()}
            best = told[min(ours, key=lambda name: mean(bits[name]))]
            task = f"Python sources, context {context:,}, {limit}"
            peers = ", ".join(told[name] for name in usual)
            lines.append([task, "bits per byte", best, peers, "none", _seeds(bits)])
    return lines


def _seeds(found: Mapping[str, Sequence[Any]]) -> str:
    """Return how many seeds the rows of a comparison have, as a range if they differ."""
    counts = sorted({len(some) for some in found.values()})
    return " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))


def papers(machine: str, plan: str) -> str:
    """Measures of the methods of a paper's table, means over seeds with the least and the largest."""
    task = f"papers_{plan.replace('-', '_')}"
    kept = archive.trainings(machine, task)
    names = kept["rows"][0]["measures"]
    lines = []
    for method in dict.fromkeys(row["method"] for row in kept["rows"]):
        rows = [row for row in kept["rows"] if row["method"] == method]
        tests = [row["reports"]["test"] for row in rows]
        figures = [_range_of([test[name] for test in tests]) for name in names]
        lines.append([method, *figures, str(len(rows))])
    text = grid(["method", *names, "seeds"], lines)
    return f"{text}\n\n{source(kept, f'{machine}/{task}')}"


def reproduced() -> str:
    """Each figure and table of the papers on which polymax is built, the command that makes it here, and its file."""
    lines = []
    for paper, shown in REPRODUCED.items():
        for place, (figure, made, task) in enumerate(shown):
            folders = [f"`{folder}`" for folder in archive.folders(task)] if task else ["no figures"]
            lines.append([paper if place == 0 else "", figure, made, ", ".join(folders) or "not yet"])
    return grid(["paper", "figure or table", "here", "results"], lines)


def _mean_of(values: Sequence[float | None]) -> str:
    """Return the mean as a whole number; nothing if a value was not kept."""
    known = [value for value in values if value is not None]
    return f"{mean(known):,.0f}" if len(known) == len(values) else ""


def _range_of(values: Sequence[float | None], form: str = ".3f") -> str:
    """Return the mean, and the least and the largest if there are several that differ; nothing without values."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    middle, low, high = (format(value, form) for value in (mean(known), min(known), max(known)))
    return middle if low == high else f"{middle} ({low} to {high})"
