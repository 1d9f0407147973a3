"""Tables of the documents, as Markdown, made from the newest results of each suite and task."""

import json
from collections.abc import Callable, Sequence

from benchmarks import archive, grid_tables
from benchmarks.record import Row
from benchmarks.table_text import grid, source

BOTH = "forward+backward"


def table(call: str) -> str:
    """Return the table that a mark names: a function of this file and its arguments."""
    name, *arguments = call.split()
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name](*arguments)


def mappings(machine: str) -> str:
    """Times of mappings as multiples of torch.softmax, those of the entmax package beside them."""
    run = archive.latest(machine, "simplex")
    names = ["softmax", "sparsemax", "entmax 1.5", "entmax 1.33", "sq_pnorm_max", "normmax"]
    names += ["fusedmax", "oscarmax", "csparsemax", "csoftmax"]
    shapes = {
        "h200": ((65536, 64), (65536, 1024), (4096, 32768)),
        "epyc-2core": ((1024, 64), (512, 512), (4096, 1024), (64, 32000)),
    }[machine]
    rows = [row for row in run.rows if row.timed == BOTH and row.dtype == "float32" and row.ratio is not None]
    found = {(row.case, row.competitor, row.shape): row.ratio for row in rows if row.ratio is not None}
    lines = []
    for name in names:
        for who in ("polymax", *sorted({row.competitor for row in rows if row.competitor.startswith("entmax.")})):
            ratios = [found.get((name, who, shape)) for shape in shapes]
            if any(ratio is not None for ratio in ratios):
                label = name if who == "polymax" else f"{name}, `{who}`"
                lines.append([label, *("" if ratio is None else _short(ratio) for ratio in ratios)])
    head = ["forward and backward, multiples of torch.softmax", *(" x ".join(map(str, shape)) for shape in shapes)]
    return f"{grid(head, lines)}\n\n{source(run, f'{machine}/simplex')}"


def structures(machine: str) -> str:
    """Times of structures, and how many times as long peers take."""
    lines = []
    runs = [archive.latest(machine, suite) for suite in ("structures", "sparsemap", "alignments")]
    peers = any(not row.competitor.startswith("polymax") for run in runs for row in run.rows)
    for run in runs:
        problems: dict[tuple[str, tuple[int, ...], str], list[Row]] = {}
        for row in run.rows:
            if row.status == "ok":
                problems.setdefault((row.case, row.shape, row.timed), []).append(row)
        for (case, shape, timed), rows in problems.items():
            ours = next((row for row in rows if row.competitor == "polymax"), None)
            if ours is None or ours.eager_us is None:
                continue
            others = [row for row in rows if row is not ours and row.eager_us is not None]
            line = [case, " x ".join(map(str, shape)), _passes(timed), _ms(ours.eager_us / 1e3)]
            compared = [f"`{row.competitor}` {_short((row.eager_us or 0) / ours.eager_us)}" for row in others]
            lines.append([*line, ", ".join(compared)] if peers else line)
    head = ["problem", "shape", "timed", "polymax, ms"] + (["times as long: others"] if peers else [])
    notes = [source(run, f"{machine}/{run.suite}") for run in runs]
    return grid(head, lines) + "\n\n" + "\n".join(notes)


def attention(machine: str) -> str:
    """Times of attention by entmax 1.5, or by sparsemax where a case says so, beside torch's softmax attention."""
    run = archive.latest(machine, "attention")
    lines = []
    for row in run.rows:
        if row.competitor != "polymax" or row.timed != BOTH:
            continue
        heads, length, channels = row.shape[:3]
        size = [f"{length:,}", str(channels), str(heads)]
        if row.ratio is None:
            # what failed is told, too
            lines.append([row.case, *size, row.status, "", ""])
            continue
        soft = next(
            one
            for one in run.rows
            if (one.case, one.shape, one.competitor) == (row.case, row.shape, "torch.sdpa") and one.timed == BOTH
        )
        own, other = archive.microseconds(row), archive.microseconds(soft)
        assert own is not None
        assert other is not None
        lines.append([row.case, *size, _ms(own / 1e3), _ms(other / 1e3), f"{row.ratio:.2f}"])
    head = ["scores", "keys", "channels", "heads", "polymax, ms", "torch's softmax, ms", "ratio"]
    return f"{grid(head, lines)}\n\n{source(run, f'{machine}/attention')}"


def attention_short(machine: str) -> str:
    """Times of sparse attention over short rows, by both kinds of kernels, beside torch's softmax attention."""
    run = archive.latest(machine, "attention_short")
    times = {(row.case, row.shape, row.competitor): archive.microseconds(row) for row in run.rows if row.timed == BOTH}
    lines = []
    for case, shape in dict.fromkeys((row.case, row.shape) for row in run.rows):
        found = [times.get((case, shape, name)) for name in ("polymax", "polymax.other_kernels", "torch.sdpa")]
        if None in found:
            continue
        own, others, soft = (t / 1e3 for t in found if t is not None)
        sizes = [f"{shape[1]:,}", str(shape[2]), str(shape[0])]
        lines.append([case, *sizes, _ms(own), _ms(others), _ms(soft), f"{own / soft:.2f}"])
    head = ["scores", "keys", "channels", "heads", "polymax, ms", "by the other kernels, ms", "softmax, ms", "ratio"]
    return f"{grid(head, lines)}\n\n{source(run, f'{machine}/attention_short')}"


def linear_loss(machine: str) -> str:
    """Times and memory of losses of a linear layer beside torch's cross-entropy."""
    run = archive.latest(machine, "linear_loss")
    cases = list(dict.fromkeys(row.case for row in run.rows))
    lines = []
    for case in cases:
        rows = {row.competitor: row for row in run.rows if row.case == case}
        ours, cross = rows["polymax"], rows.get("torch cross_entropy(linear)")
        if cross is None:
            # a teacher's list and log-probabilities have other peers
            continue
        if ours.ratio is None or cross.eager_us is None:
            lines.append([case, ours.status, *[""] * 5])
            continue
        dense = rows.get("polymax entmax_loss(linear)")
        cells = [case, _ms((ours.eager_us or 0) / 1e3), f"{ours.ratio:.2f}", _mib(ours)]
        cells += [_ms((cross.eager_us or 0) / 1e3), _mib(cross)]
        cells.append("" if dense is None else f"{_ms((dense.eager_us or 0) / 1e3)}, {_mib(dense)} MiB")
        lines.append(cells)
    shape = " x ".join(f"{size:,}" for size in run.rows[0].shape)
    head = [f"{shape}, {run.rows[0].dtype}", "ms", "of cross-entropy's", "MiB", "cross-entropy, ms", "MiB"]
    head.append("dense `entmax_loss`, ms")
    return f"{grid(head, lines)}\n\n{source(run, f'{machine}/linear_loss')}"


def series(machine: str) -> str:
    """Times and accuracies of nearest centroids beside tslearn."""
    run = archive.latest(machine, "series")
    lines = []
    for case in dict.fromkeys(row.case for row in run.rows):
        rows = {row.competitor: row for row in run.rows if row.case == case and row.timed == "fit+predict"}
        ours, other, early = rows["polymax"], rows["tslearn"], rows["tslearn, tol=0.001"]
        seconds = [f"{(row.eager_us or 0) / 1e6:.2f}" for row in (ours, other, early)]
        lines.append([case, *seconds, *(_accuracy(row) for row in (ours, other, early))])
    head = ["", "polymax, s", "tslearn, s", "tslearn with tol=0.001, s"]
    head += ["polymax, accuracy", "tslearn", "tslearn with tol=0.001"]
    return f"{grid(head, lines)}\n\n{source(run, f'{machine}/series')}"


def training(machine: str, task: str) -> str:
    """The table of a training whose figures are kept as text."""
    kept = archive.trainings(machine, task)
    lines = grid(kept["columns"], kept["rows"])
    return f"{lines}\n\n{source(kept, f'{machine}/{task}')} The figures are {kept['origin']}."


def translation_speed(machine: str) -> str:
    """Words a second of translation, by attention."""
    kept = archive.trainings(machine, "translation_speed")
    rows = [
        [row["attention"], f"{row['words_per_second']:,.0f}", f"{row['spread']:.0%}", f"{row['relative']:.2f}"]
        for row in kept["rows"]
    ]
    head = ["attention", "words/s", "spread", "of the model with torch.softmax"]
    return f"{grid(head, rows)}\n\n{source(kept, f'{machine}/translation_speed')}"


def word_losses(task: str) -> str:
    """Quality of models that differ in the loss of their words: task is translation or language_model."""
    kept = archive.trainings("h200", "word_losses")
    lines = []
    for row in kept[task]["rows"]:
        right = row.get("word_accuracy", row.get("accuracy"))
        line = [row["loss_name"], f"{row['steps']}", f"{right:.1%}", f"{row['epsilon_perplexity']:.3g}"]
        line += [f"{row['sparsemax_score']:.3f}", f"{row['possible_words']:,.0f}", f"{row['impossible_share']:.1%}"]
        line.append(f"{row['bleu']:.1f}" if "bleu" in row else "")
        lines.append([cell.replace("%", " %") for cell in line])
    head = ["loss", "steps", "right", "epsilon-perplexity", "sparsemax score", "possible words", "zeros", "BLEU"]
    return f"{grid(head, lines)}\n\n{source({**kept, 'machine': kept[task]['machine']}, 'h200/word_losses')}"


def language_model(machine: str) -> str:
    """Quality, supports and speed of a language model of bytes by its attention."""
    kept = archive.trainings(machine, "language_model")
    alone = {row["attention"]: row for row in kept["alone"]["rows"]}
    lines = []
    for row in kept["rows"]:
        fast = alone[row["attention"]]
        line = [row["attention"], f"{row['bits_per_byte']:.2f}", f"{row['zeros']:.1%}", f"{row['empty_tiles']:.0%}"]
        line += [f"{row['mean_support']:,.1f}", f"{fast['tokens_per_second']:,.0f}", f"{fast['peak_gib']:.1f}"]
        lines.append([cell.replace("%", " %") for cell in line])
    head = ["attention", "bits per byte", "exact zeros", "empty tiles", "keys a query attends to", "tokens/s", "GiB"]
    return f"{grid(head, lines)}\n\n{source(kept, f'{machine}/language_model')}"


def gpu_tests() -> str:
    """What became of the tests on a GPU in the newest run of all of them."""
    files = sorted((archive.RESULTS / "gpu-tests").glob("*.json"))
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    whole = [run for run in runs if not run["selection"]["expression"] and not run["selection"]["paths"]]
    if not whole:
        return "No run is kept yet."
    last = whole[-1]
    counts = dict(last["counts"])
    passed, skipped = (counts.pop(name, 0) for name in ("passed", "skipped"))
    expected = counts.pop("xfailed", 0)
    cells = [passed, sum(counts.values()), skipped + expected, len(last["not run"]), last["processes"]]
    line = [*(f"{cell:,}" for cell in cells), f"{last['seconds']:,.0f}"]
    head = ["passed", "failed", "skipped", "not begun", "processes", "seconds"]
    facts = last["machine"]
    changed = ", with changes" if last["changed"] else ""
    place = f"{facts['name']}, torch {facts['torch'].split('+')[0]}, Triton {facts.get('triton', 'unknown')}"
    files_at = f"`benchmarks/results/gpu-tests/{files[runs.index(last)].name}`"
    return f"{grid(head, [line])}\n\n{place}, {last['date']}, commit {last['commit'][:9]}{changed}: {files_at}."


def tree_lstm(machine: str) -> str:
    """Times of Tree-LSTMs by level, beside a loop over nodes."""
    kept = archive.trainings(machine, "tree_lstm")
    lines = []
    for row in kept["rows"]:
        line = [row["tree"], str(row["hidden"]), _passes(row["timed"]), f"{row['loop_ms']:,.0f}"]
        lines.append([*line, f"{row['levels_ms']:.1f}", f"{row['faster']:.0f}", f"{row['tokens_per_second']:,.0f}"])
    head = ["tree", "size", "timed", "loop, ms", "by level, ms", "loop / by level", "tokens/s"]
    return f"{grid(head, lines)}\n\n{source(kept, f'{machine}/tree_lstm')}"


def replaces() -> str:
    """What polymax has in the place of eight packages, and how many times as long each takes."""
    rows = (
        ("entmax", "`pm.entmax`, `pm.sparsemax`, `pm.normmax`, `pm.entmax_loss`", "simplex", "entmax."),
        ("pytorch-crf", "`pm.nn.CRF` (its checkpoints load)", "structures", "torchcrf."),
        ("torch-struct", "`pm.Marginals` of `pm.Chain`, `pm.SpanTree`, ...", "structures sparsemap", "torch_struct."),
        ("SynJax", "the same, in PyTorch", "structures sparsemap", "synjax."),
        ("supar's structures", "the same, and their losses", "structures sparsemap", "supar."),
        (
            "tslearn's and pysdtw's soft-DTW",
            "`pm.soft_dtw`, `pm.soft_dtw_barycenter`",
            "structures",
            "tslearn. pysdtw.",
        ),
        ("SciPy's and lap's assignment", "`pm.HardMax(pm.Assignment())`", "sparsemap", "scipy. lap."),
        ("SparseMAP, LP-SparseMAP, AD3", "`pm.SparseMap`, `pm.FactorGraph`", "", ""),
    )
    lines = [[name, ours, _range(suites.split(), tuple(prefix.split()))] for name, ours, suites, prefix in rows]
    head = ["package", "in polymax", "how many times as long the package takes"]
    return grid(head, lines)


def _range(suites: Sequence[str], prefixes: tuple[str, ...]) -> str:
    """Return the least and the largest ratio of a peer to polymax, of all shapes in float32, on two CPU cores."""
    ratios = []
    for suite in suites:
        rows = [row for row in archive.latest("epyc-2core", suite).rows if row.status == "ok"]
        ours = {(r.case, r.shape, r.dtype, r.timed): r.eager_us for r in rows if r.competitor == "polymax"}
        gradient = {(r.case, r.shape) for r in rows if r.timed == BOTH}
        for row in rows:
            own = ours.get((row.case, row.shape, row.dtype, row.timed))
            if not row.competitor.startswith(prefixes) or row.dtype != "float32" or not own or not row.eager_us:
                continue
            if row.timed == BOTH or (row.case, row.shape) not in gradient:
                ratios.append(row.eager_us / own)
    if not ratios:
        return "not measured"
    return f"{_short(min(ratios))} to {_short(max(ratios))}"


def _short(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"


def _ms(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _mib(row: Row) -> str:
    if row.extra_bytes is None:
        return ""
    value = row.extra_bytes / 2**20
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _passes(timed: str) -> str:
    return {BOTH: "forward and backward"}.get(timed, timed)


def _accuracy(row: Row) -> str:
    return f"{100 * float(row.note.split('accuracy ')[1].split(',')[0]):.1f} %"


# task, machine and folder, measure, a row and column of its table, the row of the usual method, a published figure
SUMMARY: tuple[tuple[str, str, str, tuple[str, int], tuple[str, int], str], ...] = (
    ("Translation, Tatoeba", "h200/translation", "BLEU", ("sparsemax", 1), ("softmax", 1), ""),
    ("Summarization, SciTLDR", "h200/summarization", "ROUGE-1", ("sparsemax", 1), ("softmax", 1), ""),
    ("Tagging, UD English EWT", "h200/tagging", "UPOS, %", ("sparse-dp", 1), ("softmax", 1), ""),
    ("Entities, WNUT-17", "h200/tagging", "F1 (precision, recall)", ("sparse-dp", 4), ("softmax", 4), ""),
    ("Parsing, UD English EWT", "h200/parsing", "LAS", ("crf", 2), ("softmax-heads", 2), ""),
    ("Constituents, GUM", "h200/constituency", "F1", ("crf, 3 of 12 epochs", 1), ("svm, 3 of 12 epochs", 1), ""),
    ("Word alignment, PUD", "epyc-2core/word_alignment", "AER", ("sparsemap-assignment", 1), ("softmax", 1), ""),
    ("Proteins, distance 1", "epyc-2core/protein_alignment", "precision", ("crf", 1), ("perceptron", 1), ""),
    ("Pairs, SNLI dev", "h200/snli_pairs", "accuracy", ("dependency, structured-attention", 1), ("LSTM", 1), ""),
    ("Polarity", "h200/polarity", "accuracy", ("dependency, score-function", 1), ("LSTM", 1), ""),
    ("ListOps, gold trees", "h200/listops", "accuracy", ("Tree-LSTM, gold trees", 3), ("LSTM", 3), "98.7; LSTM 74.4"),
    ("ListOps, latent", "h200/listops", "accuracy", ("cooperative, merging", 3), ("RL-SPINN", 3), "RL-SPINN 64.8"),
)
LISTOPS = "([Nangia and Bowman 2018](https://arxiv.org/abs/1804.06028))"


def summary() -> str:
    """The best row of each task, the usual method under the same conditions, and the published figure."""
    lines = []
    for task, place, measure, (best, column), (usual, other), published in SUMMARY:
        kept = archive.trainings(*place.split("/"))
        rows = {row[0]: row for row in kept["rows"]}
        own = f"{rows[best][column]} (`{best}`)"
        peer = f"{rows[usual][other]} (`{usual}`)"
        lines.append([task, measure, own, peer, f"{published} {LISTOPS}" if published else "none", str(kept["seeds"])])
    run = archive.latest("epyc-2core", "series")
    for case in dict.fromkeys(row.case for row in run.rows):
        rows_ = {row.competitor: row for row in run.rows if row.case == case and row.timed == "fit+predict"}
        own, peer = _accuracy(rows_["polymax"]), f"{_accuracy(rows_['tslearn'])} (`tslearn`)"
        lines.append([f"Series, {case}", "accuracy", own, peer, "none", "1"])
    lines += grid_tables.summarized()
    head = ["task", "measure", "polymax", "the usual method, same conditions", "published, same test file", "seeds"]
    return grid(head, lines)


TABLES: dict[str, Callable[..., str]] = {
    function.__name__: function
    for function in (
        *(mappings, structures, attention, attention_short, linear_loss, series, training, translation_speed),
        *(word_losses, language_model, gpu_tests, tree_lstm, replaces, summary),
        *(grid_tables.lengths, grid_tables.lengths_published),
        *(grid_tables.contexts, grid_tables.positions, grid_tables.equal_steps),
        *(grid_tables.vocabulary, grid_tables.papers, grid_tables.reproduced),
    )
}
