"""Training: a run directory holds all there is, a stopped run goes on to the same bits, errors are one line."""

import csv
import json
import shutil
import sys

import pytest
import torch
from typer.testing import CliRunner

import polymax
import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.seq2seq import numbers
from polymax_recipes.seq2seq.model import Seq2Seq
from polymax_recipes.training import fit, task
from polymax_recipes.training.monitor import Monitor
from polymax_recipes.training.settings import Learning, Running, made, use_threads

pytest.importorskip("lightning", reason="lightning is not installed")
from polymax_recipes.training.trainer import Record

TINY = ("--hidden", 8, "--embedding", 6, "--batch-size", 16, "--longest", 12, "--accelerator", "cpu", "--lr", 0.01)
SMALL = {"hidden": 8, "embedding": 6, "batch_size": 16, "longest": 12, "accelerator": "cpu", "lr": 0.01}
FILES = {
    "config.json",
    "vocabulary.json",
    "weights.pt",
    "last.ckpt",
    "log.csv",
    "digests.json",
    "samples.json",
    "tensorboard",
}


def invoke(*arguments, **options):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments], **options)


def rows(out):
    with (out / "log.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def untimed(out):
    """The log without what depends on the machine."""
    return [{name: row[name] for name in row if "second" not in name} for row in rows(out)]


def weights(out, name="weights.pt"):
    stored = torch.load(out / name, weights_only=True)
    return stored.get("state_dict", stored)


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files of numbers: "train" and "dev"."""
    train, dev = numbers.write(tmp_path_factory.mktemp("data"), train=80, dev=21)
    return {"train": [train], "dev": [dev]}


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """A run of three epochs by the command: its directory and what was printed."""
    out = tmp_path_factory.mktemp("runs") / "new" / "run"
    files = ("--train", data["train"][0], "--dev", data["dev"][0], "--test", data["dev"][0])
    result = invoke("train", "seq2seq", *files, "--out", out, *TINY, "--epochs", 3)
    assert result.exit_code == 0, result.output
    return out, result.output


@pytest.fixture
def copy(run, tmp_path):
    """The run, to be changed."""
    return shutil.copytree(run[0], tmp_path / "copy")


def test_a_run_holds_everything(run):
    out, printed = run
    assert {file.name for file in out.iterdir()} == FILES
    assert list((out / "tensorboard").glob("events*"))
    config = json.loads((out / "config.json").read_text())
    assert (config["task"], config["options"]["hidden"], config["running"]["epochs"]) == ("seq2seq", 8, 3)
    log = rows(out)
    assert [row["epoch"] for row in log] == ["1", "2", "3"]
    assert float(log[-1]["dev_loss"]) < float(log[0]["dev_loss"])
    # weights are written where an epoch was the best so far
    assert [row["best"] for row in log] == ["1", "1", "1"]
    # dev and test are the same file here
    (bleu,) = [line.split() for line in printed.splitlines() if line.startswith("bleu")]
    assert len(bleu) == 3
    assert bleu[1] == bleu[2]


def test_a_run_is_loaded_in_one_line(run, data):
    trained = recipes.load(run[0])
    report = trained.evaluate(*data["dev"])
    best = min(float(row["dev_loss"]) for row in rows(run[0]))
    assert report["loss"] == pytest.approx(best, rel=1e-5)
    assert report["sentences"] == 21
    assert len(list(trained.predict(["nine", "", "two hundred"]))) == 3


def test_commands_use_a_run(run, data, tmp_path):
    evaluated = invoke("evaluate", run[0], *data["dev"], "--set", "beam=1", "--set", "rouge=true")
    assert evaluated.exit_code == 0, evaluated.output
    measures = {line.split()[0] for line in evaluated.output.splitlines()[1:]}
    assert {"accuracy", "bleu", "rougeL", "zeros", "segments"} <= measures
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("nine\n\ntwo hundred and six\n", encoding="utf-8")
    assert invoke("predict", run[0], source, "--output", output).exit_code == 0
    written = output.read_text(encoding="utf-8")
    assert written.count("\n") == 3
    assert written.split("\n")[1] == ""
    assert invoke("predict", run[0], "-", input="nine\n\ntwo hundred and six\n").output == written
    picture = tmp_path / "picture.png"
    drawn = invoke("plot-attention", run[0], "--source", "two hundred and six", "--out", picture)
    assert drawn.exit_code == 0, drawn.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def interrupted_at(step):
    """Seq2Seq.loss that fails at a step, counted from 1."""
    calls, loss = [], Seq2Seq.loss

    def failing(self, batch):
        calls.append(batch)
        if len(calls) == step:
            raise RuntimeError("the machine stopped")
        return loss(self, batch)

    return failing


# 80 examples are five steps, dev two: in the first epoch, within the second, in its validation
@pytest.mark.parametrize("step", [3, 10, 14])
def test_a_stopped_run_goes_on_to_the_same_bits(run, data, tmp_path, monkeypatch, step):
    out = tmp_path / "stopped"
    with monkeypatch.context() as patched:
        patched.setattr(Seq2Seq, "loss", interrupted_at(step))
        with pytest.raises(RuntimeError, match="machine stopped"):
            fit.train("seq2seq", {**data, "test": data["dev"]}, out, {**SMALL, "epochs": 3})
    assert (out / "last.ckpt").exists() == (step > 7)
    # whatever random numbers were drawn in between
    torch.rand(3)
    assert invoke("train", "seq2seq", "--out", out, "--resume").exit_code == 0
    assert same(weights(out), weights(run[0]))
    assert same(weights(out, "last.ckpt"), weights(run[0], "last.ckpt"))
    assert untimed(out) == untimed(run[0])


def test_a_longer_run_begins_like_a_shorter_one(copy, run, data, tmp_path):
    longer = tmp_path / "longer"
    fit.train("seq2seq", data, longer, {**SMALL, "epochs": 4})
    fit.train("seq2seq", {}, copy, {"epochs": 4, "beam": 2}, resume=True)
    assert recipes.load(copy).options.beam == 2
    assert same(weights(copy, "last.ckpt"), weights(longer, "last.ckpt"))
    assert untimed(copy) == untimed(longer)
    assert untimed(copy)[:3] == untimed(run[0])


def test_patience_stops_for_good(data, tmp_path):
    # a rate of 0 never improves
    options = {**SMALL, "lr": 0.0, "epochs": 9, "patience": 2}
    for resume in (False, True):
        fit.train("seq2seq", data, tmp_path / "run", options, resume)
        assert len(rows(tmp_path / "run")) == 3


def test_the_best_weights_are_kept(data, tmp_path, monkeypatch):
    from polymax_recipes.training.trainer import Steps

    def uphill(steps):
        return torch.optim.Adam(steps.parameters(), 0.01, maximize=True)

    # the first epoch is the best
    monkeypatch.setattr(Steps, "configure_optimizers", uphill)
    out = tmp_path / "run"
    fit.train("seq2seq", data, out, {**SMALL, "epochs": 3})
    losses = [float(row["dev_loss"]) for row in rows(out)]
    assert losses[-1] > losses[0] == min(losses)
    assert recipes.load(out).evaluate(*data["dev"])["loss"] == pytest.approx(min(losses), rel=1e-5)


def test_the_measure_that_decides_can_be_chosen(data, tmp_path, monkeypatch):
    calls, loss = [], Seq2Seq.loss

    def measured(self, batch):
        found = loss(self, batch)
        if not self.training:
            # two batches of dev are an epoch: the loss falls, and so does what is to rise
            calls.append(batch)
            found["rising"] = (found["loss"][1] * (2.0 - len(calls) // 2), found["loss"][1])
        return found

    monkeypatch.setattr(Seq2Seq, "loss", measured)
    options = {**SMALL, "epochs": 9, "patience": 2, "monitor": "rising"}
    fit.train("seq2seq", data, tmp_path / "run", options)
    log = rows(tmp_path / "run")
    assert [row["best"] for row in log] == ["1", "0", "0"]
    losses = [float(row["dev_loss"]) for row in log]
    assert losses[0] > losses[1] > losses[2]
    monkeypatch.undo()
    assert recipes.load(tmp_path / "run").evaluate(*data["dev"])["loss"] == pytest.approx(losses[0], rel=1e-5)


ROWS = [
    {"dev_loss": 3.0, "dev_accuracy": 0.5},
    {"dev_loss": 1.0, "dev_accuracy": float("nan")},
    {"dev_loss": 2.0, "dev_accuracy": 0.7},
    {"dev_loss": 4.0, "dev_accuracy": 0.7},
    {"dev_loss": 2.0, "dev_accuracy": 0.7},
]


def test_the_best_is_that_of_the_first_measure_that_there_is():
    assert Monitor(("loss",)).best(ROWS) == 1
    assert Monitor(("f1", "accuracy", "loss")).best(ROWS) == 2
    assert Monitor(("f1",)).best(ROWS) == 1
    assert Monitor(("accuracy",), falling=("accuracy",)).best(ROWS) == 0
    assert Monitor(("accuracy",)).best(ROWS[1:2]) == 0


def test_the_log_names_its_measure_and_has_bleu(run):
    assert "the epoch with the lowest dev_loss is kept\nepoch 1  " in run[1]
    assert all(0 <= float(row["dev_bleu"]) <= 100 for row in rows(run[0]))


def test_bleu_may_decide(data, tmp_path):
    fit.train("seq2seq", data, tmp_path / "run", {**SMALL, "epochs": 2, "monitor": "bleu"})
    first, second = (float(row["dev_bleu"]) for row in rows(tmp_path / "run"))
    assert [row["best"] for row in rows(tmp_path / "run")][1] == str(int(second >= first))


def test_every_epoch_has_random_numbers_of_its_own(data, tmp_path, monkeypatch):
    loss, drawn = Seq2Seq.loss, {}

    def recorded(self, batch):
        if self.training:
            drawn[torch.initial_seed()] = True
        return loss(self, batch)

    monkeypatch.setattr(Seq2Seq, "loss", recorded)
    seeds = []
    for out in ("one", "two"):
        drawn.clear()
        fit.train("seq2seq", data, tmp_path / out, {**SMALL, "epochs": 3})
        seeds.append(list(drawn))
    assert len(seeds[0]) == len(set(seeds[0])) == 3
    assert seeds[0] == seeds[1]


def test_the_log_has_the_speed_of_the_training_alone(run):
    # English numbers of the file, as French words and END; all are seen in each epoch
    (file,) = json.loads((run[0] / "config.json").read_text())["files"]["train"]
    with open(file, encoding="utf-8") as opened:
        tokens = sum(len(line.split("\t")[1].split()) + 1 for line in opened)
    for row in rows(run[0]):
        assert float(row["seconds_of_dev"]) > 0
        assert float(row["examples_per_second"]) * float(row["seconds"]) == pytest.approx(80, rel=0.02)
        assert float(row["tokens_per_second"]) * float(row["seconds"]) == pytest.approx(tokens, rel=0.02)


@pytest.mark.parametrize(
    "option",
    [
        {"seed": 1},
        {"precision": "bf16-mixed"},
        {"clip": 0.01},
        {"weight_decay": 1.0},
        {"batch_size": 20},
        {"decay": "linear"},
    ],
)
def test_options_of_the_training_change_it(run, data, tmp_path, option):
    fit.train("seq2seq", data, tmp_path / "run", {**SMALL, **option, "epochs": 1})
    assert untimed(tmp_path / "run")[0] != untimed(run[0])[0]
    assert float(rows(tmp_path / "run")[0]["dev_loss"]) < 5


def test_processes_that_prepare_batches_change_nothing(run, data, tmp_path):
    fit.train("seq2seq", data, tmp_path / "run", {**SMALL, "epochs": 1, "workers": 2})
    assert untimed(tmp_path / "run")[0] == untimed(run[0])[0]


def test_threads_are_those_asked_for(data, run, tmp_path, monkeypatch):
    counted, loss = [], Seq2Seq.loss

    def counting(self, batch):
        counted.append(torch.get_num_threads())
        return loss(self, batch)

    monkeypatch.setattr(Seq2Seq, "loss", counting)
    before = torch.get_num_threads()
    fit.train("seq2seq", data, tmp_path / "run", {**SMALL, "epochs": 1, "threads": before + 1})
    assert set(counted) == {before + 1}
    assert torch.get_num_threads() == before
    counted.clear()
    assert invoke("evaluate", run[0], *data["dev"], "--threads", before + 2).exit_code == 0
    assert set(counted) == {before + 2}
    assert torch.get_num_threads() == before


def test_long_epochs_say_how_far_they_are(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("polymax_recipes.training.progress.SECONDS", 0.0)
    fit.train("seq2seq", data, tmp_path / "run", {**SMALL, "epochs": 1})
    said = capsys.readouterr().out.splitlines()
    assert [line.split(", loss")[0] for line in said[:5]] == [f"epoch 1, step {k} of 5" for k in range(1, 6)]
    assert all(float(line.split("loss ")[1]) > 0 for line in said[:5])
    assert said[5:7] == ["epoch 1, batch 1 of 2 of dev", "epoch 1, batch 2 of 2 of dev"]
    monkeypatch.undo()
    fit.train("seq2seq", {}, tmp_path / "run", {"epochs": 2}, resume=True)
    # not where the epochs are short
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["epoch", "2"]]


def test_long_predictions_say_how_far_they_are(run, tmp_path, monkeypatch):
    monkeypatch.setattr("polymax_recipes.training.progress.SECONDS", 0.0)
    (tmp_path / "in").write_text("nine\n" * 3, encoding="utf-8")
    result = invoke("predict", run[0], tmp_path / "in", "--output", tmp_path / "out")
    assert result.stderr.startswith("3 lines, ")


def test_the_command_says_its_version():
    assert invoke("--version").output == f"polymax {polymax.__version__}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="processes cannot fork")
def test_two_processes_train_together(data, tmp_path):
    out = tmp_path / "run"
    # forked, so that nothing is imported again
    machine = {"devices": 2, "strategy": "ddp_fork", "epochs": 2}
    fit.train("seq2seq", data, out, {**SMALL, **machine})
    log = rows(out)
    # five batches are three for each of two
    assert [row["step"] for row in log] == ["3", "6"]
    # the sums of both processes are those of one
    best = min(float(row["dev_loss"]) for row in log)
    assert recipes.load(out).evaluate(*data["dev"])["loss"] == pytest.approx(best, rel=1e-5)


def test_subwords_are_stored_with_the_run(data, tmp_path):
    out = tmp_path / "run"
    fit.train("seq2seq", data, out, {**SMALL, "subwords": 40, "epochs": 1, "longest": 4})
    trained = recipes.load(out)
    assert len(trained.vocabularies["source"]) == 40
    assert len(list(trained.predict(["ninety"]))) == 1


def damaged(file):
    return lambda run, data: (run / file).write_bytes(b"nonsense")


def without_digests(change):
    """A fault of a run that was written without digests, or is damaged with them."""

    def changed(run, data):
        (run / "digests.json").unlink()
        change(run, data)

    return changed


def missing(file):
    return lambda run, data: (run / file).unlink()


def fewer_words(run, data):
    stored = json.loads((run / "vocabulary.json").read_text())
    stored["target"]["words"].pop()
    (run / "vocabulary.json").write_text(json.dumps(stored))


def nothing(run, data):
    pass


def other_text(run, data):
    (data / "train.tsv").write_text("one\tun\n")


EVALUATE = ("evaluate", "RUN", "DATA/dev.tsv")
TRAIN = ("train", "seq2seq", "--train", "DATA/train.tsv", "--dev", "DATA/dev.tsv", "--out")
RESUME = ("train", "seq2seq", "--out", "RUN", "--resume")
FAULTS = [
    (missing("config.json"), EVALUATE, "RUN is not a run: there is no RUN/config.json"),
    (without_digests(damaged("config.json")), EVALUATE, "RUN/config.json: not JSON"),
    (missing("weights.pt"), EVALUATE, "RUN/weights.pt is missing: no epoch of this run was finished"),
    (without_digests(damaged("weights.pt")), EVALUATE, "RUN/weights.pt: not a file of weights, or a damaged one"),
    (missing("vocabulary.json"), EVALUATE, "RUN/vocabulary.json is missing"),
    (
        without_digests(fewer_words),
        EVALUATE,
        "RUN/weights.pt does not fit the vocabularies and the configuration beside it: target.weight",
    ),
    (missing("last.ckpt"), (*RESUME, "--epochs", 4), "RUN/last.ckpt is missing: 3 epochs were finished, and cannot go"),
    (without_digests(fewer_words), (*RESUME, "--epochs", 4), "RUN/last.ckpt does not fit the vocabularies"),
    (
        without_digests(damaged("last.ckpt")),
        (*RESUME, "--epochs", 4),
        "RUN/last.ckpt: not a file of weights, or a damaged one",
    ),
    *(
        (damaged(file), EVALUATE, f"RUN/{file} is damaged, or was changed after it was written: its digest is not that")
        for file in ("config.json", "vocabulary.json", "weights.pt")
    ),
    (fewer_words, EVALUATE, "RUN/vocabulary.json is damaged, or was changed after it was written"),
    (damaged("last.ckpt"), (*RESUME, "--epochs", 4), "RUN/last.ckpt is damaged, or was changed after it was written"),
    (damaged("digests.json"), EVALUATE, "RUN/digests.json: not a list of digests, or a damaged one"),
    (nothing, ("evaluate", "RUN", "DATA/none.tsv"), "DATA/none.tsv: no such file or directory"),
    (nothing, (*EVALUATE, "--set", "hidden=9"), "--hidden cannot change after training; --columns, --beam"),
    (nothing, (*EVALUATE, "--set", "beam"), "--set must be NAME=VALUE; got beam"),
    (nothing, (*EVALUATE, "--set", "beam=many"), "--beam must be int; got 'many'"),
    (nothing, (*EVALUATE, "--device", "abacus"), "--device: 'abacus' cannot be used here"),
    (nothing, ("predict", "RUN", "DATA"), "DATA is a directory, and not one that datasets.Dataset.save_to_disk wrote"),
    (nothing, ("predict", "RUN", "DATA/dev.tsv", "--output", "DATA"), "--output must be a file; DATA is a directory"),
    (nothing, ("plot-attention", "RUN", "--source", " ", "--out", "DATA/a.png"), "--source must have a word"),
    (nothing, (*TRAIN, "RUN"), "--out: RUN has a run already; --resume continues it"),
    (nothing, (*TRAIN, "DATA"), "--out: DATA exists and is not empty"),
    (nothing, (*TRAIN, "DATA/new", "--resume"), "DATA/new is not a run"),
    (nothing, (*RESUME, "--hidden", 9), "--hidden was 8 when RUN began and cannot change; got 9"),
    (other_text, (*TRAIN, "RUN", "--resume"), "DATA/train.tsv: not the text that RUN began with"),
    (other_text, (*TRAIN[:3], "DATA/none", *TRAIN[4:], "DATA/new"), "DATA/none: no such file or directory"),
    (nothing, (*TRAIN[:4], "--out", "DATA/new"), "--dev must be given"),
    (nothing, (*TRAIN, "DATA/new", "--attention", "hope"), "--attention must be one of softmax, sparsemax"),
    (
        nothing,
        (*TRAIN, "DATA/new", "--monitor", "luck"),
        "--monitor must be one of loss, word_accuracy, ",
    ),
    (nothing, (*RESUME, "--monitor", "zeros"), "--monitor was not given when RUN began and cannot change; got zeros"),
    (nothing, (*TRAIN, "DATA/new", "--epochs", 0), "--epochs must be at least 1 and finite; got 0"),
    (nothing, (*TRAIN, "DATA/dev.tsv/new"), "--out: DATA/dev.tsv/new cannot be made; DATA/dev.tsv is a file"),
    (nothing, (*TRAIN, "/proc/new"), "--out: /proc/new cannot be written: "),
    (nothing, (*RESUME, "--dev", "RUN/log.csv"), "--dev: RUN/log.csv is a file of the run itself"),
    (nothing, (*TRAIN, "DATA/new", "--batch-size", 0), "--batch-size must be at least 1 and finite; got 0"),
    (
        nothing,
        (*TRAIN, "DATA/new", "--train", "DATA/dev.tsv", "--train", "DATA/dev.tsv"),
        "pairs come in one file, or in two",
    ),
]


@pytest.mark.parametrize(("change", "arguments", "message"), FAULTS)
def test_faults_are_one_line(copy, data, tmp_path, change, arguments, message):
    folder = shutil.copytree(data["train"][0].parent, tmp_path / "data")
    change(copy, folder)
    before = sorted(file.name for file in (*copy.iterdir(), *folder.iterdir()))

    def placed(text):
        return str(text).replace("RUN", str(copy)).replace("DATA", str(folder))

    result = invoke(*map(placed, arguments))
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith(f"error: {placed(message)}")
    assert result.stderr.count("\n") == 1
    # nothing was written
    assert sorted(file.name for file in (*copy.iterdir(), *folder.iterdir())) == before


def test_a_device_that_is_not_there_is_one_line(data, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    files = ("--train", data["train"][0], "--dev", data["dev"][0])
    result = invoke("train", "seq2seq", *files, "--out", tmp_path / "run", "--accelerator", "gpu")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_ctrl_c_says_how_to_go_on(data, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Seq2Seq, "loss", stopped)
    # Lightning ignores further signals while it shuts down
    monkeypatch.setattr("signal.signal", lambda *_: None)
    files = ("--train", data["train"][0], "--dev", data["dev"][0])
    result = invoke("train", "seq2seq", *files, "--out", tmp_path / "run", *TINY)
    assert result.exit_code == 130
    assert result.stderr == f"stopped; --resume continues {tmp_path / 'run'}\n"
    # a run that has not begun leaves nothing to go on with
    monkeypatch.setattr("polymax_recipes.training.fit.trained_on", stopped)
    result = invoke("train", "seq2seq", *files, "--out", tmp_path / "other", *TINY)
    assert result.stderr == "stopped; nothing was written\n"


def test_training_without_lightning_names_the_package(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning", None)
    result = invoke("train", "seq2seq", "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert result.stderr == "error: training needs the package lightning: pip install 'polymax[train]'\n"


def test_a_loss_of_nan_ends_the_training_and_keeps_the_best_epoch(data, tmp_path, monkeypatch):
    out, whole = tmp_path / "run", Record.on_train_epoch_end

    def on_train_epoch_end(self, trainer, steps):
        if trainer.current_epoch == 1:
            steps.sums["dev"]["loss"][0] = float("nan")
        whole(self, trainer, steps)

    monkeypatch.setattr(Record, "on_train_epoch_end", on_train_epoch_end)
    files = ("--train", data["train"][0], "--dev", data["dev"][0])
    result = invoke("train", "seq2seq", *files, "--out", out, *TINY, "--epochs", 3)
    assert result.exit_code == 1
    said = f"dev_loss of epoch 2 is NaN, so training ends here; {out} keeps the best epoch before it"
    assert f"error: {said}, and a new run with a smaller --lr may do better\n" in result.stderr
    assert [row["best"] for row in rows(out)] == ["1"]
    assert recipes.load(out).evaluate(*data["dev"])["loss"] > 0


@pytest.mark.parametrize("name", task.MODULES)
def test_a_task_has_a_flag_for_every_option(name):
    shown = invoke("train", name, "--help", env={"COLUMNS": "200"}).output
    assert task.named(name).name == name
    for kind in (task.named(name).Options, Learning, Running):
        for field in kind.__dataclass_fields__:
            assert f"--{field.replace('_', '-')} " in shown


def test_an_unknown_task_and_option_are_named(data, tmp_path):
    with pytest.raises(ValueError, match="--sede is not an option of seq2seq; there are --columns, --attention"):
        fit.train("seq2seq", data, tmp_path / "run", {"sede": 1})
    with pytest.raises(ValueError, match=f"task must be one of {', '.join(task.MODULES)}; got 'chess'"):
        task.named("chess")
    with pytest.raises(ValueError, match="--speed is not an option; there are --seed"):
        made(Learning, {"speed": 3})
    with pytest.raises(ValueError, match="--lr must be at least 0 and finite; got nan"):
        made(Learning, {"lr": float("nan")})
    with pytest.raises(ValueError, match=r"--dropout must be from 0 to 1; got 1\.5"):
        made(task.named("tag").Options, {"dropout": 1.5})


def test_threads_and_seeds_beyond_the_machine_are_refused():
    with (
        pytest.raises(ValueError, match=r"at most \d+ on this machine, 16 for each core; got 100000"),
        use_threads(100_000),
    ):
        pass
    with pytest.raises(ValueError, match="--seed must be from 0 to 9223372036854775807; got 1180591620717411303424"):
        made(Learning, {"seed": 2**70})
