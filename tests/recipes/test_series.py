"""Series: alignments say what they are of, centroids are near their class, a run tells classes it was shown."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close as close
from typer.testing import CliRunner

import polymax as pm
import polymax_recipes as recipes
from benchmarks import record
from benchmarks.__main__ import main
from polymax.warping import resample
from polymax_recipes import cli
from polymax_recipes.readers.series import Series, read_series, read_steps
from polymax_recipes.series.data import LabelledSeries, read_labelled_series, shape_of
from polymax_recipes.series.model import Centroids
from polymax_recipes.series.task import SeriesOptions, classes_of, nearest, task
from polymax_recipes.series.warp import SMOOTHINGS, discrepancy
from polymax_recipes.training import fit
from polymax_recipes.training.vocabulary import Words

CLASSES = ("bump", "step", "wave")


def generated(count, seed=0):
    """Shapes that begin at different times, of two dimensions and of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    for k in range(count):
        length, shift = 18 + k % 5, 0.3 * torch.rand(1, generator=generator)
        time = torch.linspace(0, 1, length, dtype=torch.float64) - shift
        shape = (torch.exp(-40 * (time - 0.3) ** 2), (time > 0.3).double(), torch.sin(9 * time))[k % 3]
        yield Series(torch.stack([shape, 0.5 - shape], 1), CLASSES[k % 3])


def written(file, series):
    """A .ts file of series."""
    rows = [":".join(",".join(f"{x:.6f}" for x in column) for column in s.values.T.tolist()) for s in series]
    lines = [f"{row}:{s.label}\n" for row, s in zip(rows, series)]
    file.write_text(f"# made\n@univariate false\n@classLabel true {' '.join(CLASSES)} other\n@data\n" + "".join(lines))
    return file


SOME = list(generated(7))
WORDS = task.vocabularies(SOME, SeriesOptions())


def made(**chosen):
    options = SeriesOptions(**chosen)
    model = task.model(options, task.vocabularies(SOME, options))
    model.start(LabelledSeries(SOME, WORDS))
    return model


def batch_of(series):
    return LabelledSeries(series, WORDS)[torch.arange(len(series))]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_a_batch_is_its_series(smoothing, training):
    model = made(smoothing=smoothing, centroids=2).train(training)
    together = model.loss(batch_of(SOME))
    alone = [model.loss(batch_of([series])) for series in SOME]
    for measure, pair in together.items():
        for part in (0, 1):
            close(pair[part], torch.stack([one[measure][part] for one in alone]).sum(), rtol=1e-5, atol=1e-5)
    together["loss"][0].backward()
    # a class of two series has them for its two centroids, at distance 0 where nothing is smoothed
    assert (model.centroids.grad[0] != 0).any()


def test_what_is_compared_together_changes_nothing(monkeypatch):
    model, batch = made(), batch_of(SOME)
    whole = model.distances(batch)
    monkeypatch.setattr("polymax_recipes.series.model.CELLS", 2 * 3 * 22 * 22)
    close(model.distances(batch), whole)
    assert whole.shape == (7, 3, 1)


def test_centroids_begin_at_the_means_of_groups():
    values = [resample(series.values.float(), 21) for series in SOME if series.label == "bump"]
    close(made().points(0)[0], torch.stack(values).mean(0))
    values = [resample(series.values.float(), 22) for series in SOME if series.label == "bump"]
    # as many groups as series: each is its own
    own = made(centroids=3, size=22).centroids[0].detach()
    assert all(any(torch.allclose(mean, value) for mean in own) for value in values)


def test_a_loss_is_the_discrepancy_to_the_own_class():
    model = made(gamma=0.5)
    found = model.loss(batch_of(SOME[:1]))["loss"][0]
    cost = pm.squared_euclidean(model.points(0)[0], SOME[0].values.float())
    close(found, discrepancy("soft", cost, 0.5).double())
    with pytest.raises(ValueError, match="smoothing must be one of soft, quadratic, hard; got 'rough'"):
        discrepancy("rough", cost, 0.5)


def test_centroids_are_as_long_as_their_own_class():
    """The longest of a class, whatever the other classes are like; padding neither counts nor learns."""
    model = made(centroids=2)
    longest = [max(len(s.values) for s in SOME if s.label == label) for label in CLASSES]
    assert longest == [21, 22, 20]
    assert [len(model.points(k)[0]) for k in range(3)] == longest == model.sizes.tolist()
    batch = batch_of(SOME)
    model.loss(batch)["loss"][0].backward()
    before = model.eval().distances(batch)
    for k, size in enumerate(longest):
        assert not model.centroids[k, :, size:].any()
        assert not model.centroids.grad[k, :, size:].any()
        with torch.no_grad():
            model.centroids[k, :, size:] = 7.0
    assert torch.equal(model.distances(batch), before)
    alone = discrepancy("soft", pm.squared_euclidean(model.points(2)[0], SOME[0].values.float()), 0.1)
    close(before[0, 2, 0], alone)
    assert made(size=9).sizes.tolist() == [9, 9, 9]


def test_runs_with_one_size_for_all_are_read():
    stored = {"classes": Words(("a", "b")), "shape": Words(("5", "2"))}
    assert shape_of(stored) == ((5, 5), 2)


def test_classes_are_in_natural_order():
    def order(*labels):
        return task.vocabularies([Series(SOME[0].values, label) for label in labels], SeriesOptions())["classes"].words

    assert order("10", "9", "-1", "2.5") == ("-1", "2.5", "9", "10")
    assert order("c10", "c9", "b", "c9a", "10c") == ("10c", "b", "c9", "c9a", "c10")
    assert order("nan", "10", "9") == ("9", "10", "nan")


PLAIN = {
    "comma": "1,0.5,-1e0,2\n\n10,1,2,3\n",
    "tab": "1\t0.5\t-1\t2\n10\t1\t2\t3\n",
    "spaces": "   1.0000000e+00   5.0e-01  -1.0e+00   2.0e+00\r\n   1.0000000e+01   1   2  3\r\n",
    "header": "class,t0,t1,t2\n1, 0.5, -1, 2\n10,1,2,3\n",
    "padding": "\ufeff1,0.5,-1,2,NaN,NaN\n10,1,2,3,nan,nan\n",
}


@pytest.mark.parametrize("name", ["TOY_TRAIN.txt", "TOY_TRAIN.tsv", "TOY_TRAIN.csv", "TOY_TRAIN"])
@pytest.mark.parametrize("kind", PLAIN)
def test_plain_text_has_the_class_first(tmp_path, kind, name):
    (tmp_path / name).write_text(PLAIN[kind], encoding="utf-8")
    found = read_labelled_series([tmp_path / name])
    assert [(s.values.flatten().tolist(), s.label) for s in found] == [([0.5, -1.0, 2.0], "1"), ([1.0, 2.0, 3.0], "10")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1,2\n3\n", "a.txt:2: a class and values after it expected; got '3'"),
        ("1,2\n1,nan,3\n", "a.txt:2: series must have all values"),
        ("1,2\n1,two\n", "a.txt:2: a number expected; got 'two'"),
        ("class,t0\n", "a.txt:1: no series in this file"),
    ],
)
def test_plain_text_that_cannot_be_read_is_named(tmp_path, content, message):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(ValueError) as error:
        read_labelled_series([tmp_path / "a.txt"])
    assert str(error.value).startswith(f"{tmp_path}/{message}")


def test_a_class_that_training_did_not_have_is_wrong():
    model = made().eval()
    known, other = (model.loss(batch_of([Series(SOME[0].values, label)])) for label in ("bump", "other"))
    assert (known["accuracy"][0], other["accuracy"][0]) == (1, 0)
    assert other["loss"][0] <= known["loss"][0]


BROKEN = [
    ("@data\n1,2\n", "t.ts:1: series must have classes"),
    ("@classLabel true a\n@data\n", "t.ts:1: no series in this file"),
    ("@classLabel true a\n@data\n1,?:a\n", "t.ts:3: series must have all values, and finite ones"),
    ("@classLabel true a\n@data\n1:a\n1:2:a\n", "t.ts:4: 1 dimensions expected, as above; got 2"),
    ("@classLabel true a\n@data\n1,x:a\n", "t.ts:3: a number expected; got 'x'"),
]


@pytest.mark.parametrize(("content", "message"), BROKEN)
def test_what_cannot_be_read_is_named(tmp_path, content, message):
    (tmp_path / "t.ts").write_text(content)
    with pytest.raises(ValueError) as error:
        read_labelled_series([tmp_path / "t.ts"])
    assert str(error.value).startswith(f"{tmp_path}/{message}")


def test_files_of_other_dimensions_are_refused(tmp_path):
    first, second = written(tmp_path / "a.ts", SOME), tmp_path / "b.ts"
    second.write_text("@classLabel true bump\n@data\n1,2:bump\n")
    with pytest.raises(ValueError, match=f"{second}:1: 2 dimensions expected, as in {first}; got 1"):
        read_labelled_series([first, second])
    with pytest.raises(ValueError, match="series must have 2 dimensions, as in the training; got 1"):
        LabelledSeries(read_labelled_series([second]), WORDS)


def test_time_steps_are_read_from_lines(tmp_path):
    for text in ("# a, b\n1,2\n\n3,4.5\n", "1 2\n3\t4.5\n"):
        (tmp_path / "s.txt").write_text(text)
        assert read_steps(tmp_path / "s.txt").tolist() == [[1.0, 2.0], [3.0, 4.5]]
    for text, message in (
        ("1,2\n3\n", "2: 2 values"),
        ("1\ninf\n", "2: finite"),
        ("t\n", "1: a number"),
        ("#\n", "1: no"),
    ):
        (tmp_path / "s.txt").write_text(text)
        with pytest.raises(ValueError, match=f"s.txt:{message}"):
            read_steps(tmp_path / "s.txt")


def invoke(*arguments, **given):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments], **given)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    written(folder / "train.ts", list(generated(24)))
    written(folder / "dev.ts", list(generated(15, seed=1)))
    return folder


def trained(data, out, *more):
    pytest.importorskip("lightning", reason="lightning is not installed")
    files = ("--train", data / "train.ts", "--dev", data / "dev.ts", "--out", out, "--accelerator", "cpu")
    result = invoke("train", "series", *files, *more)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    trained(data, out, "--epochs", 3)
    return out


RUNS = [
    ("--smoothing", "hard", "--centroids", 2),
    ("--smoothing", "quadratic", "--size", 12),
    ("--optimizer", "adam", "--lr", 0.02, "--batch-size", 8),
]


@pytest.mark.parametrize("chosen", RUNS, ids=lambda chosen: chosen[1])
def test_a_run_tells_classes_it_was_shown(data, tmp_path, chosen):
    printed = trained(data, tmp_path / "run", *chosen, "--epochs", 2)
    report = recipes.load(tmp_path / "run").evaluate(data / "dev.ts")
    assert report["series"] == 15
    assert report["accuracy"] > 0.9
    assert f"{report['accuracy']:.6g}" in printed
    losses = [float(line.split("train_loss ")[1].split()[0]) for line in printed.splitlines() if "train_loss" in line]
    assert losses[1] < losses[0]


def test_predictions_are_those_that_were_measured(run, data, tmp_path):
    output = tmp_path / "out"
    assert invoke("predict", run, data / "dev.ts", "--output", output).exit_code == 0
    rows = [line.split("\t") for line in output.read_text().splitlines()]
    series = list(read_series(data / "dev.ts"))
    report = recipes.load(run).evaluate(data / "dev.ts")
    right = [row[0] == one.label for row, one in zip(rows, series, strict=True)]
    assert sum(right) / len(right) == pytest.approx(report["accuracy"])
    own = [float(row[1 + CLASSES.index(one.label)]) for row, one in zip(rows, series)]
    assert sum(own) / len(own) == pytest.approx(report["loss"], abs=1e-4)
    # the class is not needed
    line = data.joinpath("dev.ts").read_text().splitlines()[4]
    printed = invoke("predict", run, "-", input=f"\n{line}\n{line.rpartition(':')[0]}\n").output
    assert printed == 2 * (output.read_text().split("\n")[0] + "\n")
    wrong = invoke("predict", run, "-", input=f"{line}\n1,2:3\n")
    assert wrong.stderr.splitlines()[-1].startswith("error: ")


def test_plain_text_is_predicted_by_its_values(tmp_path):
    """The first column is the class, or a mark for an unknown one; a value in its place is refused."""
    file = tmp_path / "train.csv"
    file.write_text("2,0,0,0,1\n10,1,1,1,0\n2,0,0,0.1,1\n10,1,0.9,1,0\n")
    result = trained_on(file, tmp_path / "run", "--epochs", 1)
    assert result.exit_code == 0, result.output
    unknown = tmp_path / "test.tsv"
    unknown.write_text("?\t1\t1\t1\t0\n2\t0\t0\t0\t1\n")
    result = invoke("predict", tmp_path / "run", unknown)
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["10", "2"]
    assert [line.split("\t")[0] for line in recipes.load(tmp_path / "run").predict(["1,1,1,0"])] == ["10"]
    unknown.write_text("0.5\t1\t1\t1\t0\n")
    result = invoke("predict", tmp_path / "run", unknown)
    assert "test.tsv:1: a class of the training or ? expected before the values; got '0.5'" in result.output


def trained_on(file, out, *more):
    chosen = ("--gamma", 0.1, "--accelerator", "cpu", "--batch-size", 4, *more)
    return invoke("train", "series", "--train", file, "--dev", file, "--out", out, *chosen)


def test_what_takes_all_series_at_once_is_not_clipped(run, data, tmp_path):
    pytest.importorskip("lightning", reason="lightning is not installed")
    files = {"train": [data / "train.ts"], "dev": [data / "dev.ts"]}
    fit.train("series", files, tmp_path / "run", {"epochs": 3, "clip": 1e-3, "batch_size": 4, "accelerator": "cpu"})
    assert torch.equal(weights(tmp_path / "run"), weights(run))


def weights(out):
    return torch.load(out / "weights.pt", weights_only=True)["centroids"]


def test_a_stopped_run_goes_on_to_the_same_bits(run, data, tmp_path, monkeypatch):
    pytest.importorskip("lightning", reason="lightning is not installed")
    calls, loss = [], Centroids.loss

    def failing(self, batch):
        calls.append(batch)
        if len(calls) == 12:
            raise RuntimeError("the machine stopped")
        return loss(self, batch)

    files = {"train": [data / "train.ts"], "dev": [data / "dev.ts"]}
    with monkeypatch.context() as patched:
        patched.setattr(Centroids, "loss", failing)
        with pytest.raises(RuntimeError, match="machine stopped"):
            fit.train("series", files, tmp_path / "run", {"epochs": 3, "accelerator": "cpu"})
    # within the second epoch
    assert (tmp_path / "run" / "last.ckpt").exists()
    fit.train("series", {}, tmp_path / "run", {}, resume=True)
    assert torch.equal(weights(tmp_path / "run"), weights(run))


def test_centroids_are_drawn(run, data, tmp_path):
    picture = tmp_path / "c.png"
    for chosen in ((), ("--dimension", 1, "--data", data / "dev.ts")):
        result = invoke("plot-centroids", run, "--out", picture, *chosen)
        assert result.exit_code == 0, result.output
        assert picture.read_bytes().startswith(b"\x89PNG")
    result = invoke("plot-centroids", run, "--out", picture, "--dimension", 2)
    assert result.stderr == "error: --dimension must be from 0 to 1; got 2\n"


@pytest.fixture
def two(tmp_path):
    for name, series in zip("xy", SOME):
        np.savetxt(tmp_path / f"{name}.csv", series.values, delimiter=",")
    return tmp_path / "x.csv", tmp_path / "y.csv"


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_two_series_are_aligned(two, tmp_path, smoothing):
    picture, matrix = tmp_path / "a.png", tmp_path / "m.npy"
    chosen = ("--smoothing", smoothing, "--gamma", 0.2, "--band", 4, "--out", picture, "--matrix", matrix)
    printed = invoke("align", *two, *chosen).output
    cost = pm.squared_euclidean(SOME[0].values, SOME[1].values).requires_grad_()
    value = discrepancy(smoothing, cost, 0.2, band=4)
    assert f"discrepancy {value.item():.6g}\n" in printed
    (expected,) = torch.autograd.grad(value, cost)
    close(torch.from_numpy(np.load(matrix)), expected)
    (line,) = [line for line in printed.splitlines() if line.startswith("path ")]
    cells = [tuple(map(int, cell.split(","))) for cell in line.split()[1:]]
    close(sum(cost[cell] for cell in cells), pm.dtw(cost, band=4))
    assert (cells[0], cells[-1]) == ((0, 0), (17, 18))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_two_series_of_one_file_are_aligned(data, tmp_path):
    matrix = tmp_path / "m.csv"
    result = invoke("align", data / "train.ts", "--index", 0, 3, "--out", tmp_path / "a.png", "--matrix", matrix)
    assert result.exit_code == 0, result.output
    mu = np.loadtxt(matrix, delimiter=",")
    assert mu.shape == (18, 21)
    assert (mu[0, 0], mu[-1, -1]) == pytest.approx((1, 1))


def test_mistakes_are_one_line(two, data, tmp_path):
    (tmp_path / "one.csv").write_text("1\n2\n")
    train, text = data / "train.ts", tmp_path / "m.txt"
    mistakes = {
        (two[0],): "give two files with a time step a line, or one file of many series and --index I J",
        (two[0], two[1], "--gamma", 0): "--gamma must be positive and finite; got 0",
        (two[0], two[1], "--band", -1): "--band must not be negative; got -1",
        (two[0], two[1], "--smoothing", "rough"): "--smoothing must be one of soft, quadratic, hard; got rough",
        (two[0], two[1], "--matrix", text): f"--matrix must end in .csv or .npy; got {text}",
        (two[0], tmp_path / "one.csv"): "series must have one number of dimensions; got 2 and 1",
        (train, "--index", 0, 24): f"--index must be from 0 to 23, the series of {train}; got 24",
        (two[0], tmp_path / "none.csv"): f"{tmp_path / 'none.csv'}: no such file or directory",
    }
    for given, message in mistakes.items():
        result = invoke("align", *given, "--out", tmp_path / "a.png")
        assert (result.exit_code, result.stderr) == (1, f"error: {message}\n")
    assert not (tmp_path / "a.png").exists()


def test_the_benchmark_takes_files(data, tmp_path, capsys):
    out = tmp_path / "b.json"
    assert main(["run", "series", str(data / "train.ts"), str(data / "dev.ts"), "--quick", "--out", str(out)]) == 0
    rows = [row for row in record.load(out)[0].rows if row.competitor == "polymax"]
    assert [row.timed for row in rows] == ["fit", "predict", "fit+predict"]
    assert {(row.case, row.shape, row.status) for row in rows} == {("train", (24, 22, 2), record.OK)}
    assert rows[2].eager_us == pytest.approx(rows[0].eager_us + rows[1].eager_us)
    assert rows[0].note.startswith("accuracy ")
    for files, message in (([data / "dev.ts"], "come in pairs"), ([data / "dev.ts"] * 2, "makes its own data")):
        suite = "series" if len(files) == 1 else "latency"
        assert main(["run", suite, *map(str, files), "--quick"]) == 1
        assert message in capsys.readouterr().err


def test_the_nearest_series_decides(data, tmp_path):
    pytest.importorskip("lightning", reason="lightning is not installed")
    files = {"train": [data / "train.ts"], "dev": [data / "dev.ts"]}
    options = {"model": "nearest", "band": 3, "accelerator": "cpu", "epochs": 4}
    reports = fit.train("series", files, tmp_path / "run", options)
    # one epoch measures what there is to measure
    assert len((tmp_path / "run" / "log.csv").read_text().splitlines()) == 2
    trained = recipes.load(tmp_path / "run")
    train, dev = (trained.task.read_as([file], trained.options) for (file,) in files.values())
    names, wanted = classes_of(trained.vocabularies), []
    for series in dev:
        costs = [pm.dtw(pm.squared_euclidean(series.values, other.values), band=3).item() for other in train]
        wanted.append([min(c for c, other in zip(costs, train) if other.label == label) for label in names])
    found = nearest(trained, dev)
    torch.testing.assert_close(found, torch.tensor(wanted), rtol=1e-4, atol=1e-4)
    right = [names[row.index(min(row))] == series.label for row, series in zip(wanted, dev)]
    assert reports["dev"]["accuracy"] == pytest.approx(sum(right) / len(right))
    fit.train("series", {}, tmp_path / "run", {"batch": 2}, resume=True)
    assert torch.equal(nearest(recipes.load(tmp_path / "run", batch=3), dev), found)
    with pytest.raises(ValueError, match="--band must come with --model nearest"):
        fit.train("series", files, tmp_path / "other", {"band": 3})
