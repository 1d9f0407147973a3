"""Tables of grids of trainings, and of what reproduces the figures of papers."""

from collections.abc import Sequence
from statistics import mean

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
    """Return the mean of shares in per cent, and the least and the largest if there are several."""
    middle = f"{100 * mean(shares):.1f}"
    return middle if len(shares) == 1 else f"{middle} ({100 * min(shares):.0f} to {100 * max(shares):.0f})"


def contexts(machine: str, plan: str) -> str:
    """Losses, speed, memory and supports of language models by context, limit and attention."""
    kept = archive.trainings(machine, "contexts", plan)
    kinds = dict.fromkeys((row["context"], row["budget"], row["attention"]) for row in kept["rows"])
    lines = []
    for kind in kinds:
        rows = [row for row in kept["rows"] if (row["context"], row["budget"], row["attention"]) == kind]
        limit = f"{rows[0]['steps_asked']:,} steps" if kind[1] == "steps" else f"{rows[0]['seconds_asked']:g} s"
        layers = [mean(ones) for ones in zip(*(row["curve"][-1]["supports"]["mean_support"] for row in rows))]
        peak = mean(row["peak_gib"] for row in rows) if rows[0]["peak_gib"] is not None else None
        cells = [f"{kind[0]:,}", limit, kind[2], _range_of([row["bits_per_byte"] for row in rows])]
        cells += [_mean_of([row[name] for row in rows]) for name in ("steps", "tokens_per_second")]
        cells += [", ".join(f"{layer:,.0f}" for layer in layers), "" if peak is None else f"{peak:.1f}"]
        lines.append([*cells, str(len(rows))])
    head = ["context", "limit", "attention", "bits per byte", "steps", "tokens/s", "keys a query attends to, by layer"]
    return f"{grid([*head, 'GiB', 'seeds'], lines)}\n\n{source(kept, f'{machine}/contexts')}"


def equal_steps(machine: str, plan: str, context: str, measure: str = "held_out") -> str:
    """Held-out losses and seconds, or mean supports, at steps at which all models of a context were measured."""
    kept = archive.trainings(machine, "contexts", plan)
    rows = [row for row in kept["rows"] if row["context"] == int(context)]
    if not all(row["constant"] for row in rows):
        raise ValueError(f"{machine}/contexts: learning rates of {plan} depend on the length of the training")
    found = {row["attention"]: {part["step"]: part for part in row["curve"]} for row in rows}
    # the last measurement of a training is after steps of its own
    common = sorted(set.intersection(*({part["step"] for part in row["curve"][:-1]} for row in rows)))
    # four of them, the last among them
    at = common[:: -max(1, -(-len(common) // 4))][::-1]
    lines = []
    for name, parts in found.items():
        some = [parts[step] for step in at]
        if measure == "held_out":
            cells = [f"{part['held_out']:.2f} ({part['seconds']:.0f} s)" for part in some]
        else:
            cells = [f"{mean(part['supports']['mean_support']):,.1f}" for part in some]
        lines.append([name, *cells])
    what = "bits per byte (seconds)" if measure == "held_out" else "keys a query attends to, mean of all layers"
    return f"{grid([what, *(f'{step:,} steps' for step in at)], lines)}\n\n{source(kept, f'{machine}/contexts')}"


def positions(machine: str, plan: str, budget: str = "steps") -> str:
    """Losses of language models by the position in the window, means over seeds."""
    kept = archive.trainings(machine, "contexts", plan)
    all_rows = [row for row in kept["rows"] if row["budget"] == budget]
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


def summarized() -> list[list[str]]:
    """Return rows of the summary: of grids, with the least and the largest of the seeds."""
    lines = []
    kept = archive.trainings("xeon-2core", "lengths", "small")["rows"]
    for problem, measure in (("sort", "tokens"), ("2back", "tokens"), ("flip-flop", "exact")):
        shares = {}
        for name in ("asentmax", "softmax"):
            rows = [row for row in kept if (row["problem"], row["attention"]) == (problem, name)]
            shares[name] = _spread([row["tests"][1][measure] for row in rows])
        what = "right tokens, %" if measure == "tokens" else "right targets, %"
        ours, usual = (f"{shares[name]} (`{name}`)" for name in ("asentmax", "softmax"))
        lines.append([f"{problem}, twice the length", what, ours, usual, "none", str(len(rows))])
    kept = archive.trainings("xeon-2core", "contexts", "cpu")["rows"]
    rows = [row for row in kept if row["budget"] == "steps"]
    bits = {name: [r["bits_per_byte"] for r in rows if r["attention"] == name] for name in ("entmax", "softmax")}
    ours, usual = (f"{_range_of(values)} (`{name}`)" for name, values in bits.items())
    lines.append(["Python sources, context 256", "bits per byte", ours, usual, "none", str(len(bits["entmax"]))])
    kept = archive.trainings("h200", "contexts", "minutes")["rows"]
    long = {row["attention"]: f"{row['bits_per_byte']:.3f}" for row in kept if row["context"] == 32_768}
    ours, usual = (f"{long[name]} (`{name}`)" for name in ("sparsemax", "softmax"))
    lines.append(["Python sources, context 32,768, equal time", "bits per byte", ours, usual, "none", "1"])
    kept = archive.trainings("xeon-2core", "vocabulary", "cpu")["rows"]
    for measure, form in (("sparsemax_score", ".3f"), ("epsilon_perplexity", ",.0f")):
        found = {
            name: [row[measure] for row in kept if row["loss_name"] == name] for name in ("entmax 1.5", "cross-entropy")
        }
        ours, usual = (f"{_range_of(values, form)} (`{name}`)" for name, values in found.items())
        seeds = str(min(map(len, found.values())))
        lines.append(["Words of Python sources", measure.replace("_", " "), ours, usual, "none", seeds])
    return lines


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
