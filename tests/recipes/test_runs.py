"""Files of a run: damage is seen, whatever it is; nothing is half-written, whoever is killed, however full the disk."""

import errno
import io
import json
import os
import pickle
import random
import shutil
import sys
import tempfile

import pytest
import torch

import polymax_recipes as recipes
from polymax_recipes.seq2seq import numbers
from polymax_recipes.training import fit
from polymax_recipes.training.checkpoint import check_checkpoint, save_into
from polymax_recipes.training.digests import atomic_write_with_digest
from polymax_recipes.training.log import measure_of_run
from polymax_recipes.training.run import Config, Run, read_samples

pytest.importorskip("lightning", reason="lightning is not installed")

TINY = {"hidden": 4, "embedding": 4, "longest": 4, "batch_size": 16, "accelerator": "cpu", "epochs": 2}
WHOLE = {"config.json", "vocabulary.json", "weights.pt", "last.ckpt", "log.csv", "digests.json", "samples.json"}
WHOLE |= {"tensorboard"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    train, dev = numbers.write(tmp_path_factory.mktemp("data"), train=40, dev=9)
    return {"train": [train], "dev": [dev]}


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    fit.train("seq2seq", files, out, TINY)
    return out


@pytest.fixture
def run(trained, tmp_path):
    """A run that may be changed."""
    return Run(shutil.copytree(trained, tmp_path / "run"))


def resume(run, epochs=3):
    return fit.train("seq2seq", {}, run.path, {"epochs": epochs}, resume=True)


USES = {
    "config.json": lambda run: recipes.load(run.path),
    "vocabulary.json": lambda run: recipes.load(run.path),
    "weights.pt": lambda run: recipes.load(run.path),
    "last.ckpt": resume,
    "log.csv": lambda run: measure_of_run(run.path, "loss"),
}


@pytest.mark.parametrize("name", USES)
def test_every_flipped_bit_is_seen(run, name):
    chance, file = random.Random(0), run.path / name
    whole = file.read_bytes()
    for _ in range(20):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        file.write_bytes(flipped)
        with pytest.raises(ValueError, match=rf"{name} is damaged, or was changed after it was written"):
            USES[name](run)
    file.write_bytes(whole)
    USES[name](run)


def test_a_run_without_digests_is_used_as_it_is(run):
    whole = run.weights.read_bytes()
    (run.path / "digests.json").unlink()
    recipes.load(run.path)
    # archives have check sums of their own, which torch does not look at
    torch.load(run.weights, weights_only=True)
    tensor = next(iter(torch.load(run.weights, weights_only=True).values())).numpy().tobytes()
    at = whole.index(tensor[:32])
    run.weights.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    torch.load(run.weights, weights_only=True)
    with pytest.raises(ValueError, match=r"weights.pt: not a file of weights, or a damaged one: the check sum of"):
        recipes.load(run.path)
    run.weights.write_bytes(whole)
    resume(run)
    assert read_samples(run)
    # what was written since has a digest
    assert json.loads((run.path / "digests.json").read_text()).keys() == WHOLE - {"digests.json", "tensorboard"}


class Creates:
    """An object that creates a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("archive", [False, True])
def test_objects_in_weights_are_not_run(run, tmp_path, archive):
    (run.path / "digests.json").unlink()
    marked = tmp_path / "marked"
    if archive:
        torch.save({"weight": Creates(marked)}, run.weights)
    else:
        run.weights.write_bytes(pickle.dumps(Creates(marked)))
    with pytest.raises(ValueError, match="it holds more than tensors, or none") as caught:
        recipes.load(run.path)
    assert "weights_only" not in str(caught.value)
    assert not marked.exists()


def test_a_change_by_hand_is_used_if_that_is_said(run):
    text = run.config.read_text()
    run.config.write_text(text.replace('"beam": 5', '"beam": 2'))
    assert run.config.read_text() != text
    with pytest.raises(ValueError, match=r"take config.json out of digests.json to use it as it is"):
        recipes.load(run.path)
    listed = json.loads((run.path / "digests.json").read_text())
    del listed["config.json"]
    (run.path / "digests.json").write_text(json.dumps(listed))
    assert recipes.load(run.path).options.beam == 2


# what a value of JSON, or of a pickle, may have become
OTHERS = (None, -1, 1 << 70, float("inf"), float("nan"), "", "x", [], {}, [[]], {"x": 1}, True)


def mutated(value, chance):
    """A copy of nested dicts and lists with one value replaced, removed, or put elsewhere."""
    if isinstance(value, dict | list) and value and chance.random() < 0.9:
        copy = value.copy()
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        if chance.random() < 0.25:
            del copy[key]
        elif isinstance(value, dict) and chance.random() < 0.1:
            copy[f"{key}x"] = copy.pop(key)
        else:
            copy[key] = mutated(value[key], chance)
        return copy
    return chance.choice(OTHERS)


def garbled(whole, chance):
    """A copy of bytes that is cut, or has some of them replaced, repeated or removed."""
    at, end = sorted(chance.randrange(len(whole) + 1) for _ in range(2))
    kind = chance.randrange(4)
    other = (b"", chance.randbytes(min(end - at, 9)), whole[at:end] * 2, b"[" * 100_000)[kind]
    return whole[:at] + other + whole[end:]


def refused_or_used(run, file, use):
    """Nothing but a refusal that names the file, or a file of the run beside which it does not fit."""
    try:
        use(run)
    except (ValueError, OSError) as error:
        text = str(error)
        assert str(run.path) in text, text
        assert text.count("\n") == 0, text
        return True
    return False


@pytest.mark.parametrize("name", ["config.json", "vocabulary.json"])
def test_whatever_json_says_is_refused_or_used(run, name):
    chance, file = random.Random(1), run.path / name
    (run.path / "digests.json").unlink()
    whole, stored = file.read_bytes(), json.loads(file.read_text())
    # random places would hit words alone
    for words in stored.values() if name == "vocabulary.json" else ():
        words["words"] = words["words"][:3]
    refusals = 0
    for k in range(120):
        file.write_bytes(json.dumps(mutated(stored, chance)).encode() if k % 2 else garbled(whole, chance))
        refusals += refused_or_used(run, file, USES[name])
    assert refusals > 60


def test_whatever_a_log_says_is_refused_or_used(run):
    chance = random.Random(2)
    (run.path / "digests.json").unlink()
    whole = run.log.read_bytes()
    run.log.write_bytes(b"epoch,dev_loss\n1," + b"\0" * 10 + b"\n")
    assert refused_or_used(run, run.log, USES["log.csv"])
    run.log.write_bytes(b'epoch,dev_loss\n1,"' + b"1" * 200_000 + b'"\n')
    assert refused_or_used(run, run.log, USES["log.csv"])
    for _ in range(60):
        run.log.write_bytes(garbled(whole, chance))
        refused_or_used(run, run.log, USES["log.csv"])


class Written:
    """Would be executed by a pickle that is trusted."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("name", ["weights.pt", "last.ckpt"])
def test_whatever_is_stored_is_refused_or_used(run, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    chance, file = random.Random(3), run.path / name
    (run.path / "digests.json").unlink()
    whole, stored = file.read_bytes(), torch.load(file, weights_only=True)
    model = torch.nn.Module()
    model.model = recipes.load(run.path).model
    # to resume takes longer than to look
    use = USES[name] if name == "weights.pt" else lambda run: check_checkpoint(model, run.last)
    for k in range(120):
        if k % 2:
            torch.save(mutated(stored, chance), file)
        else:
            file.write_bytes(garbled(whole, chance))
        refused_or_used(run, file, use)
    torch.save({**stored, "more": Written()}, file)
    assert refused_or_used(run, file, USES[name])
    assert not (tmp_path / "executed").exists()


def changed(stored, *path, value=None):
    """A copy with another value at a path, or without it."""
    key, *rest = path
    copy = stored.copy()
    if rest:
        copy[key] = changed(stored[key], *rest, value=value)
    elif value is None:
        del copy[key]
    else:
        copy[key] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("optimizer_states",), None),
        (("optimizer_states", 0, "param_groups"), []),
        (("optimizer_states",), [{}]),
        (("loops", "fit_loop"), None),
        (("loops", "fit_loop", "epoch_progress"), {"current": 3}),
        (("pytorch-lightning_version",), None),
        (("pytorch-lightning_version",), "x.y"),
        (("callbacks",), {}),
        (("callbacks", "Record", "rows"), [{}]),
        (("epoch",), 9),
        (("epoch",), "one"),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_checkpoint_that_cannot_be_resumed_is_named(run, path, value):
    (run.path / "digests.json").unlink()
    torch.save(changed(torch.load(run.last, weights_only=True), *path, value=value), run.last)
    with pytest.raises(ValueError, match=r"last.ckpt: not a checkpoint of this run, or a damaged one"):
        resume(run)


def test_weights_of_another_kind_are_named(run):
    (run.path / "digests.json").unlink()
    stored = torch.load(run.weights, weights_only=True)
    name = next(iter(stored))
    stored[name] = stored[name].to(torch.complex64)
    torch.save(stored, run.weights)
    with pytest.raises(ValueError, match=rf"{name} must be .* of torch.float32; got .* of torch.complex64"):
        recipes.load(run.path)


def test_nothing_is_written_elsewhere(files, tmp_path, monkeypatch):
    # whatever is written there must be copied, and a copy can be stopped in its middle
    monkeypatch.setenv("TMPDIR", "/proc")
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    fit.train("seq2seq", files, tmp_path / "run", TINY)
    resume(Run(tmp_path / "run"))
    assert {file.name for file in (tmp_path / "run").iterdir()} == WHOLE


# what is put on the disk: vocabulary, configuration, samples, log, weights, checkpoint; with their digests
@pytest.mark.parametrize("allowed", [0, 1, 3, 4, 6, 8, 9, 11, 13, 14, 19])
def test_a_full_disk_leaves_a_run_that_goes_on(files, trained, tmp_path, monkeypatch, allowed):
    calls, run = [], Run(tmp_path / "run")

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) > allowed:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"\[Errno 28\] no space is left to write .*run"):
            fit.train("seq2seq", files, run.path, TINY)
    assert not list(run.path.glob("*.part"))
    if run.config.exists():
        resume(run, epochs=2)
    else:
        fit.train("seq2seq", files, run.path, TINY)
    assert {file.name for file in run.path.iterdir()} == WHOLE
    ours, theirs = (torch.load(one / "weights.pt", weights_only=True) for one in (run.path, trained))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


class Small(io.BytesIO):
    """A file on a disk with some room."""

    def write(self, data):
        if self.tell() + len(data) > 2000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def test_an_archive_that_finds_no_room_is_an_error_of_the_file_system():
    for size in (600, 10_000):
        with pytest.raises(OSError, match="No space left on device"):
            save_into(Small(), {"x": torch.zeros(size), "y": torch.zeros(size)})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device")
def test_a_full_disk_is_an_error_of_the_file_system(tmp_path):
    """Of the kind that is told in one line, whoever writes."""

    def write():
        with atomic_write_with_digest(tmp_path / "weights.pt") as temporary:
            temporary.symlink_to("/dev/full")
            with temporary.open("wb") as opened:
                torch.save({"x": torch.zeros(1_000_000)}, opened)

    with pytest.raises(OSError, match="no space is left"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_beginning_that_was_killed_is_begun_again(files, run, tmp_path):
    for name in ("vocabulary.json", "digests.json"):
        shutil.copy(run.path / name, tmp_path / name)
    out = Run(tmp_path / "begun")
    out.path.mkdir()
    shutil.copy(run.vocabulary, out.vocabulary)
    # a vocabulary of the user's own
    with pytest.raises(FileExistsError, match="exists and is not empty"):
        fit.train("seq2seq", files, out.path, TINY)
    shutil.copy(run.path / "digests.json", out.path)
    (out.path / "config.json.part").write_text("{")
    fit.train("seq2seq", files, out.path, TINY)
    assert {file.name for file in out.path.iterdir()} == WHOLE


@pytest.mark.skipif(sys.platform == "win32", reason="processes cannot fork")
def test_a_training_that_is_killed_goes_on_to_the_same_bits(tmp_path):
    from kills import campaign

    assert campaign(tmp_path, count=2, epochs=3, options=TINY) >= 1


def test_a_configuration_names_its_file(run):
    (run.path / "digests.json").unlink()
    for text in ("[" * 100_000, '{"task": ["tag"]}', "1" * 5000, '{"task": "seq2seq", "options": {"hidden": 1e999}}'):
        run.config.write_text(text)
        with pytest.raises(ValueError, match=r"config.json: not (JSON|the configuration of a run), or a damaged one"):
            Config.read(run.config)
