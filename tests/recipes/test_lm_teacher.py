"""Distillation of language models: teachers that are runs or lists on disk, resumed runs, and errors."""

import pytest
import torch
from typer.testing import CliRunner

import polymax as pm
import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.lm.data import NOTHING, Document, Windows
from polymax_recipes.lm.model import LanguageModel
from polymax_recipes.lm.task import LanguageModelOptions
from polymax_recipes.lm.teacher import RunTeacher, StoredTeacher, listed, teacher_of
from polymax_recipes.lm.tokens import Bytes
from polymax_recipes.training.run import Run

TEXTS = ["the cat sat on the mat.\n" * 6, "the dog sat on the log.\n" * 5]
FLAGS = {
    "size": 16, "layers": 1, "heads": 2, "context": 24, "batch_size": 4, "epochs": 2, "accelerator": "cpu",
    "threads": 1, "lr": 0.02,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Texts, a run of a sparse teacher and one of a softmax teacher, and the lists of the sparse one."""
    folder = tmp_path_factory.mktemp("teacher")
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text)
    (folder / "dev.txt").write_text("the cat sat on the log.\n" * 2)
    for name, options in {"sparse": {"loss": "entmax"}, "softmax": {}}.items():
        trained(folder, name, **options)
    texts = [str(folder / f"{number}.txt") for number in range(2)]
    run = CliRunner().invoke(
        cli.application(), ["list-words", str(folder / "sparse"), *texts, "--out", str(folder / "lists")]
    )
    assert run.exit_code == 0, run.output
    return folder


def trained(folder, name, resume=False, texts=("0.txt", "1.txt"), **options):
    return recipes.train(
        "lm", train=[folder / text for text in texts], dev=folder / "dev.txt", out=folder / name, resume=resume,
        **FLAGS | options,
    )  # fmt: skip


def windows(texts=tuple(TEXTS), context=24):
    return Windows([Document(text, context) for text in texts], Bytes())


def test_lists_of_a_run_are_its_distributions(place):
    """On disk as computed, at the places of a batch in any order."""
    data = windows()
    run, stored = RunTeacher(place / "sparse", data), StoredTeacher(place / "lists", data)
    batch = data[torch.tensor([3, 0, 10])]
    computed, read = run.targets(batch), stored.targets(batch)
    assert len(computed.ids) == int((batch.targets != NOTHING).sum())
    torch.testing.assert_close(read.dense(), computed.dense(), rtol=2e-3, atol=1e-3)
    assert (read.support_size < 200).all()
    whole = list(listed(run, data, 2))
    assert [len(one.ids) for one in whole] == [len(text) + 1 for text in TEXTS]


@pytest.mark.parametrize("loss", ["cross-entropy", "entmax", "sparsemax"])
@pytest.mark.parametrize("teacher", ["sparse", "softmax", "lists"])
def test_the_loss_is_that_of_the_teachers_distributions(place, teacher, loss):
    data = windows()
    options = LanguageModelOptions(size=16, layers=1, heads=2, context=24, loss=loss, teacher=str(place / teacher))
    torch.manual_seed(0)
    model = LanguageModel(options, len(Bytes()))
    model.start(data)
    batch = data[torch.arange(4)]
    there = batch.targets != NOTHING
    total, count = model.loss(batch)["loss"]
    target = model.teachers[0].targets(batch)
    dense = target.dense() if isinstance(target, pm.WordDistribution) else target
    alpha = {"cross-entropy": 1.0, "entmax": 1.5, "sparsemax": 2.0}[loss]
    expected = pm.entmax_loss(model(batch.inputs)[there], dense, alpha, reduction="sum")
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-3)
    assert int(count) == int(there.sum())
    # not a part of the model, and not of its evaluation
    assert not [name for name in model.state_dict() if "teacher" in name]
    assert {"bits_per_byte" if loss == "cross-entropy" else "epsilon_nats"} <= set(model.eval().loss(batch))


def test_a_student_is_trained_resumed_and_used(place, capsys):
    """A resumed run has the weights of an uninterrupted one, and predicts without its teacher."""
    chosen = {"loss": "entmax", "teacher": str(place / "lists")}
    trained(place, "student", **chosen)
    assert "lists: " in capsys.readouterr().out
    trained(place, "parts", **chosen | {"epochs": 1})
    trained(place, "parts", resume=True, **chosen)
    one, other = (torch.load(Run(place / name).weights, weights_only=True) for name in ("student", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    plain = trained(place, "plain", loss="entmax")
    assert plain.reports["dev"]["loss"] > 0
    (place / "lists").rename(place / "moved")
    try:
        assert recipes.load(place / "student").results(["the "])[0].tokens
        with pytest.raises(ValueError, match="--teacher must be a run of lm, or a folder"):
            trained(place, "student", resume=True, **chosen | {"epochs": 3})
    finally:
        (place / "moved").rename(place / "lists")
    with pytest.raises(ValueError, match=r"--teacher was .* when .* began and cannot change"):
        trained(place, "student", resume=True, loss="entmax", teacher=str(place / "sparse"))


def test_errors(place, tmp_path):
    with pytest.raises(
        ValueError, match=r"--teacher must be a run of lm, or a folder of WordDistribution.save; got no"
    ):
        teacher_of("nowhere", windows())
    with pytest.raises(ValueError, match=r"document 0 of .* has 145 positions; text 0 .* has 5 tokens.* other texts"):
        teacher_of(str(place / "lists"), windows(["four", TEXTS[1]]))
    with pytest.raises(ValueError, match="has 2 documents; the training has 1 texts"):
        teacher_of(str(place / "lists"), windows(TEXTS[:1]))
    pm.WordDistribution.save(tmp_path / "few", [pm.WordDistribution(torch.zeros(5, 1).long(), torch.ones(5, 1), 30)])
    with pytest.raises(ValueError, match="few is over 30 words; the training has 257 tokens"):
        teacher_of(str(tmp_path / "few"), windows(["four"]))
    other = windows()
    other.spelled = ["a", "b"]
    with pytest.raises(ValueError, match="sparse has other tokens than the training: bytes, and 2 pieces"):
        teacher_of(str(place / "sparse"), other)
    refused = CliRunner().invoke(
        cli.application(), ["list-words", str(place / "softmax"), str(place / "0.txt"), "--out", str(tmp_path / "all")]
    )
    assert refused.exit_code == 1
    assert "cross-entropy gives all tokens" in refused.output
