"""Pretrained encoders: pieces know their words, a run holds all it needs, and goes on where it was stopped."""

import json
import random
import shutil
import socket

import pytest
import torch
from torch.testing import assert_close as close
from typer.testing import CliRunner

import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.tag.model import Tagger
from polymax_recipes.tag.task import TagOptions
from polymax_recipes.text.pretrained import PieceTable, PretrainedReader, encoder_vocabularies, longest_text
from polymax_recipes.training import fit
from polymax_recipes.training.vocabulary import Words, restored

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("lightning", reason="lightning is not installed")

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*MARKS, *["Anna", "Otto", "Ida", "Berg", "Wolf", "Rome", "Oslo", "sleep", "##s", "work", "in", ".", "!"]]
LONGEST = 38


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The directory of a small BERT of random weights."""
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: k for k, piece in enumerate(PIECES)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    marks = [("[CLS]", PIECES.index("[CLS]")), ("[SEP]", PIECES.index("[SEP]"))]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), MARKS))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(PIECES), max_position_embeddings=LONGEST + 2, **size)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def test_tokens_know_their_first_pieces(encoder):
    vocabularies = encoder_vocabularies(str(encoder))
    again = {name: restored(words.stored()) for name, words in vocabularies.items()}
    sentences = [["Ida", "works", "[CLS]", "."], ["Otto"] * 50]
    for known in (vocabularies, again):
        batch = PieceTable(sentences, known)[torch.arange(2)]
        words = [PIECES[k] for k in batch.pieces[0, : batch.piece_lengths[0]].tolist()]
        assert words[:4] == ["[CLS]", "Ida", "work", "##s"]
        # text never reads as a mark
        assert words.count("[CLS]") == 1
        assert [words[k] for k in batch.firsts[0, :4].tolist()] == ["Ida", "work", "[UNK]", "."]
        # a long text is cut, and what was cut off has the place of the first mark
        assert batch.piece_lengths[1] == LONGEST
        assert batch.firsts[1].tolist() == [*range(1, LONGEST - 1), *[0] * (50 - LONGEST + 2)]


def test_a_batch_is_its_sentences_in_the_encoder_itself(encoder):
    vocabularies = encoder_vocabularies(str(encoder))
    reader = PretrainedReader(TagOptions(), vocabularies)
    reader.begin(str(encoder))
    reader.eval()
    table = PieceTable([["Ida", "works", "."], ["Rome", "!"]], vocabularies)
    together = reader(*table[torch.arange(2)])
    network = transformers.AutoModel.from_pretrained(encoder).eval()
    for row, firsts in enumerate(([1, 2, 4], [1, 2])):
        batch = table[torch.tensor([row])]
        close(reader(*batch)[0], together[row, : len(firsts)])
        close(network(batch.pieces).last_hidden_state[0, firsts], together[row, : len(firsts)])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Sentences of a few words and their tags: "train" and "dev"."""
    folder, draw = tmp_path_factory.mktemp("tagged"), random.Random(0)
    for part, count in (("train", 48), ("dev", 8)):
        lines = []
        for _ in range(count):
            lines += [f"{draw.choice(['Anna', 'Otto', 'Ida'])} B-PER"]
            lines += ["Berg I-PER"] if draw.random() < 0.5 else []
            lines += ["works O", "in O", f"{draw.choice(['Rome', 'Oslo'])} B-LOC", ""]
        (folder / f"{part}.txt").write_text("\n".join(lines))
    return {part: [folder / f"{part}.txt"] for part in ("train", "dev")}


OPTIONS = {"lr": 0.005, "batch_size": 8, "epochs": 3, "accelerator": "cpu", "dropout": 0.1}


@pytest.fixture(scope="module")
def run(encoder, files, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    report = fit.train("tag", files, out, {**OPTIONS, "encoder": str(encoder)})["dev"]
    return out, report


def same(first, second):
    first, second = (torch.load(run / "weights.pt", weights_only=True) for run in (first, second))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_needs_its_encoder_no_more(encoder, files, run, tmp_path):
    out, report = run
    assert report["f1"] > 0.9
    hidden = shutil.move(encoder, tmp_path / "elsewhere")
    try:
        trained = recipes.load(out)
        assert trained.evaluate(*files["dev"])["f1"] == report["f1"]
        assert str(encoder) not in (out / "vocabulary.json").read_text()
        assert len(list(trained.predict(["Ida", "sleeps", "", "Rome"]))) == 4
    finally:
        shutil.move(hidden, encoder)


def test_a_run_begins_with_the_weights_of_the_encoder_and_goes_on(encoder, files, run, tmp_path, monkeypatch):
    seen, loss = [], Tagger.loss

    def watched(self, batch):
        seen.append(self.reader.network.embeddings.word_embeddings.weight.detach().clone())
        if len(seen) == 10:
            raise RuntimeError("the machine stopped")
        return loss(self, batch)

    out = tmp_path / "stopped"
    with monkeypatch.context() as patched:
        patched.setattr(Tagger, "loss", watched)
        with pytest.raises(RuntimeError, match="machine stopped"):
            fit.train("tag", files, out, {**OPTIONS, "encoder": str(encoder)})
    close(seen[0], transformers.AutoModel.from_pretrained(encoder).embeddings.word_embeddings.weight)
    fit.train("tag", {}, out, {}, resume=True)
    assert same(out, run[0])


def test_an_encoder_that_is_none_is_one_line(files, tmp_path):
    (tmp_path / "empty").mkdir()
    parts = ("--train", files["train"][0], "--dev", files["dev"][0], "--out", tmp_path / "run")
    arguments = ("train", "tag", *parts, "--encoder", tmp_path / "empty")
    result = CliRunner().invoke(cli.application(), [str(argument) for argument in arguments])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: --encoder: {tmp_path / 'empty'} cannot be loaded: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_configuration_fetches_and_runs_nothing(encoder, monkeypatch):
    """Of a run of a stranger: names of code, kernels and models in it are not followed."""
    vocabularies = encoder_vocabularies(str(encoder))
    stored = json.loads(vocabularies["network"].words[0])

    def connect(*address):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", connect)
    hostile = {
        "auto_map": {"AutoModel": "evil/model--code.Model", "AutoConfig": "evil/model--code.Config"},
        "attn_implementation": "evil/kernel",
        "_attn_implementation": "evil/kernel",
        "backbone": "evil/backbone",
        "use_pretrained_backbone": True,
        "_name_or_path": "evil/model",
    }
    vocabularies["network"] = Words((json.dumps({**stored, **hostile}),))
    reader = PretrainedReader(TagOptions(), vocabularies)
    assert reader.network.config._attn_implementation in ("sdpa", "eager")
    for kind in ("timm_wrapper", "evil", None, ["bert"]):
        vocabularies["network"] = Words((json.dumps({**stored, "model_type": kind}),))
        with pytest.raises(ValueError, match="must be that of an encoder of text"):
            PretrainedReader(TagOptions(), vocabularies)


def test_an_encoder_that_a_run_names_is_loaded_only_if_it_is_given_again(encoder, tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("Ida B-PER\nworks O\n\nOtto B-PER\nsleeps O\n", encoding="utf-8")
    files, options = {"train": [data], "dev": [data]}, {"encoder": str(encoder), "epochs": 1, "accelerator": "cpu"}
    fit.train("tag", files, tmp_path / "run", options)
    (tmp_path / "run" / "last.ckpt").unlink()
    with pytest.raises(ValueError, match=r"names the encoder .*; to load it, give --encoder"):
        fit.train("tag", {}, tmp_path / "run", {}, resume=True)
    fit.train("tag", {}, tmp_path / "run", {"encoder": str(encoder)}, resume=True)


@pytest.mark.parametrize("positions", [None, 0, -1])
def test_an_encoder_without_a_number_of_positions_takes_any_text(positions):
    assert longest_text({"max_position_embeddings": positions}) == longest_text({}) == 2**31
    assert longest_text({"max_position_embeddings": 3}) == 1
