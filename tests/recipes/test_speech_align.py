"""Alignment of speech: boundaries are found from transcripts alone, sound is read as it was written."""

import wave

import numpy as np
import pytest
import torch
from torch.testing import assert_close as close
from typer.testing import CliRunner

import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.readers.sound import Sound, read_wave
from polymax_recipes.speech_align.data import Utterances, read_utterances
from polymax_recipes.speech_align.features import Frames, log_bands
from polymax_recipes.speech_align.model import SMOOTHINGS
from polymax_recipes.speech_align.task import SpeechAlignOptions, task
from polymax_recipes.training import fit


def invoke(*arguments):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tones")
    for seed, (part, count) in enumerate({"train": 60, "dev": 8}.items()):
        assert invoke("draw-tones", folder / part, "--count", count, "--seed", seed).exit_code == 0
    assert "exists" in invoke("draw-tones", folder / "dev").stderr
    return {part: [folder / part / "utterances.tsv"] for part in ("train", "dev")}


def test_boundaries_are_found(tables, tmp_path):
    options = {"lr": 0.01, "batch_size": 8, "epochs": 10, "accelerator": "cpu", "hidden": 32}
    report = fit.train("speech-align", tables, tmp_path / "run", options)["dev"]
    assert report["boundary_ms"] < 12
    assert report["within_20_ms"] > 0.9
    made = recipes.load(tmp_path / "run")
    result = invoke("predict", tmp_path / "run", tables["dev"][0])
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    utterances = read_utterances(tables["dev"])
    assert [row[3] for row in rows] == [token for one in utterances for token in one.tokens]
    (found,) = made.results([(utterances[0].sound.samples, " ".join(utterances[0].tokens))])
    assert [[f"{a:.4f}", f"{b:.4f}"] for a, b in zip(found.starts, found.ends)] == [
        row[1:3] for row in rows if row[0] == utterances[0].name
    ]
    close(found.weights.sum(1), torch.ones(len(found.weights)))
    alone = tmp_path / "alone.tsv"
    alone.write_text(f"{tables['dev'][0].parent / utterances[0].name}\ta {' '.join(utterances[0].tokens)} ?\n")
    wrong = invoke("predict", tmp_path / "run", alone)
    assert wrong.stderr.startswith(f"error: {alone}:1: unknown token '?'; the training has ")


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_a_batch_is_its_utterances(tables, smoothing):
    utterances = read_utterances(tables["dev"])[:3]
    options = SpeechAlignOptions(smoothing=smoothing, hidden=8)
    vocabularies = task.vocabularies(read_utterances(tables["train"]), options)
    data, model = Utterances(utterances, vocabularies), task.model(options, vocabularies)
    model.start(data)
    batch = data[torch.arange(3)]
    total, frames = model.loss(batch)["loss"]
    assert frames == batch.lengths.sum()
    close(total, sum(model.loss(data[torch.tensor([k])])["loss"][0] for k in range(3)), rtol=1e-4, atol=1e-4)
    total.backward()
    assert all(bool(p.grad.any()) for p in model.parameters())


@pytest.mark.parametrize(("width", "kind"), [(1, "u1"), (2, "<i2"), (3, None), (4, "<i4")])
def test_sound_of_any_width_is_read(tmp_path, width, kind):
    """Two channels, whose mean is the sound."""
    values = np.array([[0.0, 0.0], [0.5, 0.25], [-1.0, -0.5], [0.25, -0.25]])
    whole = np.round(values * 2 ** (8 * width - 1)).astype(np.int64) + (128 if width == 1 else 0)
    if kind is None:
        data = b"".join(int(v).to_bytes(3, "little", signed=True) for v in whole.flatten())
    else:
        data = whole.astype(kind).tobytes()
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(width)
        file.setframerate(8000)
        file.writeframes(data)
    sound = read_wave(tmp_path / "a.wav")
    assert sound.rate == 8000
    close(sound.samples, torch.tensor([0.0, 0.375, -0.75, 0.0]))


def test_frames_are_in_their_bands():
    """A louder sound has the same shape, the energy of a tone is where it is, also in one sample."""
    frames = Frames.of(16000, 20, 25.0, 10.0)
    time = torch.arange(3200) / 16000
    low, high = (log_bands(torch.sin(2 * torch.pi * f * time), frames) for f in (300.0, 3000.0))
    assert low.shape == (frames.count(3200), 20) == (21, 20)
    assert low[5].argmax() < high[5].argmax()
    louder = log_bands(2 * torch.sin(2 * torch.pi * 300 * time), frames)
    close(louder[5].max() - low[5].max(), torch.tensor(4.0).log())
    assert log_bands(torch.zeros(1), frames).isfinite().all()


def test_faults_are_one_line(tables, tmp_path):
    good = tables["dev"][0].parent / "00000.wav"
    (tmp_path / "no.wav").write_bytes(b"RIFF")
    cases = [
        ("a.wav\n", "a .wav file, tokens and, if known, the seconds at which they end expected"),
        ("none.wav\ta b\n", f"{tmp_path / 'none.wav'}: No such file or directory"),
        ("no.wav\ta b\n", f"{tmp_path / 'no.wav'}: a .wav file of integers expected"),
        (f"{good}\ta b\t0.5\n", "2 rising times expected, the seconds at which the tokens end; got '0.5'"),
        (f"{good}\ta b\t0.5 0.4\n", "2 rising times expected"),
        (f"{good}\t{'a ' * 1000}\n", "each token needs a frame; got 1000 for"),
    ]
    table = tmp_path / "broken.tsv"
    for text, message in cases:
        table.write_text(text)
        result = invoke("train", "speech-align", "--train", table, "--dev", table, "--out", tmp_path / "run")
        assert result.exit_code == 1
        assert message in result.stderr
        assert f"{table}:1: " in result.stderr
        assert result.stderr.count("\n") == 1
    known = task.vocabularies(read_utterances(tables["dev"]), SpeechAlignOptions())
    one = read_utterances(tables["dev"])[0]
    other = one._replace(sound=Sound(one.sound.samples, 8000))
    with pytest.raises(ValueError, match="16000 samples a second expected; got 8000"):
        Utterances([other], known)
