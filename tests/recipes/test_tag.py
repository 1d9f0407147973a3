"""Tagging: padding changes nothing, taggings have the probabilities of enumeration, text keeps its format."""

import gzip
import random
from dataclasses import replace
from itertools import product
from math import isnan

import pytest
import torch
from torch.testing import assert_close as close
from typer.testing import CliRunner

import polymax as pm
import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.metrics import EntityF1
from polymax_recipes.readers.columns import Tagged, read_tagged
from polymax_recipes.readers.conllu import read_conllu
from polymax_recipes.readers.lines import grouped
from polymax_recipes.readers.schemes import BIO
from polymax_recipes.tag.alternatives import BEST, LARGEST, alternatives
from polymax_recipes.tag.data import Batch, Sentences, read_tags, vocabularies_of
from polymax_recipes.tag.model import NAMES, SPARSE, Scored, Tagger
from polymax_recipes.tag.spans import counted_spans
from polymax_recipes.tag.task import TagOptions
from polymax_recipes.tag.text import Reader
from polymax_recipes.text.tokens import LONGEST
from polymax_recipes.training.measured import mean
from polymax_recipes.training.predict import as_lines
from polymax_recipes.training.vocabulary import PAD, UNKNOWN

TINY = TagOptions(hidden=5, embedding=4, characters=3, dropout=0.0)
EXAMPLES = [
    Tagged(["Anna", "Berg", "sees", "Rome"], ["B-PER", "I-PER", "O", "B-LOC"]),
    Tagged(["Rome"], ["B-LOC"]),
    Tagged(["sees", "Anna", "!"], ["O", "B-PER", "O"]),
]
KNOWN = vocabularies_of(EXAMPLES, "same", 100)
TAGS = KNOWN["tags"].words


def model(options=TINY, scale=1.0):
    """A model of random weights, with scores `scale` times what they would be."""
    made = Tagger(options, KNOWN).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name in ("begin", "end", "transition"):
                torch.nn.init.normal_(parameter)
            if name in ("begin", "end", "transition", "tags.weight", "tags.bias"):
                parameter.mul_(scale)
    return made


@pytest.mark.parametrize("loss", NAMES)
def test_a_batch_is_its_sentences(loss):
    made = model(replace(TINY, loss=loss, layers=2 if loss == "crf" else 1))
    sentences = Sentences(EXAMPLES, KNOWN)
    batch = sentences[torch.arange(3)]
    together, best = made.loss(batch), made.best(made(batch))
    assert (best == -1).equal(batch.tags == -1)
    assert set(together) == {"loss", "accuracy", "f1"}
    alone = [sentences[torch.tensor([row])] for row in range(3)]
    for row, one in enumerate(alone):
        assert made.best(made(one))[0].equal(best[row, : one.lengths[0]])
    for measure, pair in together.items():
        for part in (0, 1):
            close(pair[part].float(), torch.stack([made.loss(one)[measure][part].float() for one in alone]).sum())
    assert (together["loss"][1], together["accuracy"][1]) == (3, 8)


@pytest.mark.parametrize("loss", NAMES)
def test_every_parameter_learns(loss):
    made = model(replace(TINY, loss=loss)).train()
    measured = made.loss(Sentences(EXAMPLES, KNOWN)[torch.arange(3)])
    assert set(measured) == {"loss"}
    measured["loss"][0].backward()
    assert all(bool((p.grad != 0).any()) for p in made.parameters())


@pytest.mark.parametrize("loss", NAMES)
def test_unknown_tags_are_wrong_and_cost_nothing_of_their_own(loss):
    made = model(replace(TINY, loss=loss))
    measured = made.loss(Sentences([Tagged(["Anna", "Berg"], ["B-ORG", "O"])], KNOWN)[torch.tensor([0])])
    known = [made.loss(Sentences([Tagged(["Anna", "Berg"], [tag, "O"])], KNOWN)[torch.tensor([0])]) for tag in TAGS]
    assert measured["loss"][0] <= min(one["loss"][0] for one in known) + 1e-5
    assert measured["accuracy"][0] == min(one["accuracy"][0] for one in known)


def test_words_are_forgotten_in_training_alone():
    options = replace(TINY, word_dropout=1.0)
    batch = Sentences(EXAMPLES, KNOWN)[torch.arange(3)]
    unknown = batch._replace(words=torch.where(batch.words == PAD, PAD, UNKNOWN))
    made = model(options)
    assert not made(batch).unary.equal(made(unknown).unary)
    within = batch.tags != -1
    close(made.train()(batch).unary[within], made.eval()(unknown).unary[within])


def test_what_was_never_seen_is_unknown():
    sentence = Tagged(["Anna", "ΩΩ\u00a0Ω", "x" * 999], ["O", "NEW", "O"])
    batch = Sentences([sentence], KNOWN)[torch.tensor([0])]
    assert batch.words.tolist()[0][1:] == [UNKNOWN, UNKNOWN]
    assert batch.characters.shape == (1, 3, LONGEST)
    assert set(batch.characters[0, 1].tolist()) == {UNKNOWN, PAD}
    assert batch.tags.tolist() == [[TAGS.index("O"), -2, TAGS.index("O")]]


@pytest.mark.parametrize("loss", NAMES)
def test_long_sentences_are_tagged(loss):
    made = model(replace(TINY, loss=loss))
    batch = Sentences([Tagged(["Anna"] * 500, ["O"] * 500), EXAMPLES[0]], KNOWN)[torch.arange(2)]
    assert ((made.best(made(batch)) >= 0).sum(1) == torch.tensor([500, 4])).all()
    assert made.loss(batch)["loss"][0].isfinite()


def chains(scale):
    torch.manual_seed(0)
    unary, transition = scale * torch.randn(2, 4, 3), scale * torch.randn(3, 3)
    return Scored(pm.Chain(torch.tensor([4, 2])), unary, transition)


def test_the_best_taggings_are_those_of_enumeration():
    scored = chains(1.0)
    for unary, length, found in zip(scored.unary, (4, 2), alternatives("crf", scored)):
        sequences = list(product(range(3), repeat=length))
        scores = [
            sum(unary[t, y] for t, y in enumerate(tags)) + sum(scored.transition[a, b] for a, b in zip(tags, tags[1:]))
            for tags in sequences
        ]
        probabilities, order = torch.stack(scores).softmax(0).sort(descending=True)
        assert [tags for _, tags in found] == [list(sequences[k]) for k in order[:BEST]]
        close(torch.tensor([probability for probability, _ in found]), probabilities[:BEST])


@pytest.mark.parametrize("loss", SPARSE)
def test_sparse_taggings_are_all_there_is(loss):
    made, scored = model(replace(TINY, loss=loss)), chains(1.0)
    smooth = pm.SparseMap(pm.Chain()) if loss == "sparsemap" else pm.LocalMax(pm.Chain(), pm.Gini())
    sizes = []
    for unary, length, found in zip(scored.unary, (4, 2), alternatives(loss, scored)):
        mu = sum(p * torch.nn.functional.one_hot(torch.tensor(tags), 3) for p, tags in found)
        close(mu, smooth(unary[:length], scored.transition).unary)
        assert found == sorted(found, key=lambda tagging: -tagging.probability)
        sizes.append(len(found))
    assert max(sizes) > 1
    assert made.single(scored).tolist() == [size == 1 for size in sizes]
    sharp = chains(50.0)
    assert made.single(sharp).all()
    assert [len(found) for found in alternatives(loss, sharp)] == [1, 1]


def test_a_large_support_is_cut():
    flat = Scored(pm.Chain(torch.tensor([400])), torch.zeros(1, 400, 3), torch.zeros(3, 3))
    (found,) = alternatives("sparse-dp", flat)
    assert len(found) <= LARGEST


def test_losses_without_probabilities_are_named():
    with pytest.raises(ValueError, match=r"--distribution needs a loss with probabilities, crf, .*; got svm"):
        next(alternatives("svm", chains(1.0)))


def broken(tags):
    """Return True if tags are other than their spans would be written."""
    return BIO.convert(tags) != tags


def names(row):
    return [TAGS[tag] for tag in row.tolist() if tag >= 0]


@pytest.mark.parametrize("loss", NAMES)
def test_what_is_found_keeps_the_rules(loss):
    torch.manual_seed(2)
    made, free = (model(replace(TINY, loss=loss, unconstrained=value), scale=9.0) for value in (False, True))
    free.load_state_dict(made.state_dict())
    batch = Sentences([Tagged(["Anna", "sees", "Rome", "!"][: 1 + k % 4], ["O"] * 4) for k in range(40)], KNOWN)
    batch = batch[torch.arange(40)]
    unary = torch.randn(made(batch).unary.shape, generator=torch.Generator().manual_seed(0))
    scored = made(batch)._replace(unary=unary)
    found, freely = made.best(scored), free.best(scored)
    assert any(broken(names(row)) for row in freely)
    # tags that are chosen one by one know of no others
    assert any(broken(names(row)) for row in found) == (loss == "softmax")
    # what keeps the rules by itself is left as it is
    kept = torch.tensor([not broken(names(row)) for row in freely])
    assert found[kept].equal(freely[kept])
    if loss in SPARSE:
        for taggings in alternatives(loss, made.constrained(scored)):
            assert not any(broken([TAGS[tag] for tag in tags]) for _, tags in taggings)


def test_rules_are_those_that_the_training_keeps():
    def rules(scheme, *sequences):
        sentences = [Tagged(["a"] * len(tags.split()), tags.split()) for tags in sequences]
        return vocabularies_of(sentences, scheme, 9)["rules"].words

    assert rules("same", "O B-X I-X", "O") == ("BIO",)
    assert rules("same", "O B-X E-X", "S-X") == ("BIOES",)
    assert rules("BIOES", "O I-X I-X") == ("BIOES",)
    # I-X may begin, the rules of BIO are broken, a tag that is no span, no tag that is always allowed
    for sequences in (("O I-X",), ("O B-X", "I-X"), ("O NOUN",), ("B-X", "B-X")):
        assert rules("same", *sequences) == ()


def test_spans_are_counted_as_entities_are():
    draw = torch.Generator().manual_seed(0)
    wanted, found = torch.randint(0, len(TAGS), (2, 30, 5), generator=draw)
    entities = EntityF1()
    entities.add(*([names(row) for row in rows] for rows in (wanted, found)))
    right, total = counted_spans(TAGS, wanted, found)
    assert float(right / total) == pytest.approx(entities.result().all.f1)
    # what training did not have is a span, and wrong
    assert counted_spans(TAGS, torch.tensor([[-2, -2, -1]]), torch.tensor([[0, 0, -1]]))[0] == 0


CONLLU = [
    "# text = We'll go.",
    "1-2\tWe'll\t_\t_\t_\t_\t_\t_\t_\t_",
    "1\tWe\twe\tX\tPRP\tCase=Nom\t3\tnsubj\t_\t_",
    "2\t'll\twill\tX\tMD\t_\t3\taux\t_\t_",
    "3\tgo\tgo\tX\tVB\t_\t0\troot\t_\t_",
    "",
]
TEXTS = [
    (["a", "b", "", "c  d"], ["a\tT0", "b\tT1", "", "c  T0"]),
    (["-DOCSTART- O", "", "a\tN\tO", "b\tN\tO", "", ""], ["-DOCSTART- O", "", "a\tN\tT0", "b\tN\tT1", "", ""]),
    (["# X O ", " "], ["# X T0", " "]),
    (
        CONLLU,
        [
            *CONLLU[:2],
            CONLLU[2].replace("\tX\t", "\tT0\t"),
            CONLLU[3].replace("\tX\t", "\tT1\t"),
            CONLLU[4].replace("\tX\t", "\tT2\t"),
            "",
        ],
    ),
]


@pytest.mark.parametrize(("lines", "wanted"), TEXTS)
def test_text_keeps_its_format(lines, wanted):
    tagged = []
    for block in grouped(as_lines(lines)):
        sentence = Reader().sentence("input", block)
        assert len(sentence.tokens) == len(sentence.rows)
        tagged += sentence.tagged([f"T{k}" for k in range(len(sentence.rows))])
    assert tagged == wanted


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([*CONLLU, *CONLLU[:3], "2\tb"], "input:10: 10 columns between tabs expected; got 2"),
        (["a O", "", "\tO"], "input:3: the token is empty"),
        (["a", "b c"], "input:2: 1 columns expected, as above; got 2"),
    ],
)
def test_text_that_is_no_sentence_is_named(lines, message):
    with pytest.raises(ValueError) as error:
        [Reader().sentence("input", block) for block in grouped(as_lines(lines))]
    assert str(error.value) == message


def test_schemes_need_spans():
    with pytest.raises(ValueError, match="--scheme BIO must come with tags such as O and B-PER"):
        vocabularies_of([Tagged(["a"], ["NOUN"])], "BIO", 10)


def invoke(*arguments):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments])


def sentence(draw):
    """Persons of one or two names do something, perhaps at a place."""
    first, last, place = (draw.choice(names.split()) for names in ("Anna Otto Ida", "Berg Wolf", "Rome Oslo Paris"))
    pairs = [(first, "B-PER", "PROPN")]
    pairs += [(last, "I-PER", "PROPN")] if draw.random() < 0.5 else []
    pairs += [(draw.choice(["sleeps", "works"]), "O", "VERB")]
    pairs += [("in", "O", "ADP"), (place, "B-LOC", "PROPN")] if draw.random() < 0.5 else []
    return [*pairs, (".", "O", "PUNCT")]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return train and dev files with the same sentences in columns and, packed, in CoNLL-U."""
    folder, draw = tmp_path_factory.mktemp("tagged"), random.Random(0)
    for part, count in (("train", 60), ("dev", 12)):
        made = [sentence(draw) for _ in range(count)]
        columns = ["".join(f"{word} {entity}\n" for word, entity, _ in one) for one in made]
        (folder / f"{part}.txt").write_text("\n".join(columns))
        rows = [
            "".join(f"{k}\t{word}\t_\t{upos}\t_\t_\t_\t_\t_\t_\n" for k, (word, _, upos) in enumerate(one, 1))
            for one in made
        ]
        (folder / f"{part}.conllu.gz").write_bytes(gzip.compress(("\n".join(rows) + "\n").encode()))
    return folder


SMALL = ("--hidden", 16, "--embedding", 12, "--characters", 8, "--batch-size", 8, "--lr", 0.02, "--accelerator", "cpu")


def trained(files, out, kind, *options):
    arguments = ("--train", files / f"train.{kind}", "--dev", files / f"dev.{kind}", "--out", out)
    result = invoke("train", "tag", *arguments, *SMALL, *options)
    assert result.exit_code == 0, result.output
    return recipes.load(out)


def test_entities_are_learned_and_written_as_they_came(files, tmp_path):
    made = trained(files, tmp_path / "run", "txt", "--scheme", "BIOES", "--epochs", 4)
    assert "S-LOC" in made.vocabularies["tags"].words
    report = made.evaluate(files / "dev.txt")
    assert report["f1"] == report["accuracy"] == 1.0
    assert report["sentences_per_second"] > 0
    assert "single" not in report
    output = tmp_path / "out.txt"
    assert invoke("predict", tmp_path / "run", files / "dev.txt", "--output", output).exit_code == 0
    assert output.read_text() == (files / "dev.txt").read_text()
    listed = list(recipes.load(tmp_path / "run", distribution="true").predict(["Ida", "works", "", "", "Wolf ?"]))
    rows = [line.split("\t") for line in listed]
    # a token by itself is O, or a whole place or person
    assert [row[0] for row in rows] == ["1"] * BEST + ["2"] * 3
    assert rows[0][2] == "B-PER O"
    assert sum(float(row[1]) for row in rows[:BEST]) <= 1.0 + 1e-5


def test_data_without_entities_have_an_f1_of_0(files, tmp_path):
    """Neither the data nor what is found has a span: nothing is divided by, in training and outside."""
    train, dev, out = tmp_path / "train.txt", tmp_path / "dev.txt", tmp_path / "run"
    train.write_text("Ida B-PER\nRome I-PER\n\n" + "works O\n. O\n\n" * 30)
    dev.write_text("works O\n. O\n")
    result = invoke("train", "tag", "--train", train, "--dev", dev, "--out", out, *SMALL, "--epochs", 2)
    assert result.exit_code == 0, result.output
    rows = (out / "log.csv").read_text().splitlines()
    column = rows[0].split(",").index("dev_f1")
    assert [float(row.split(",")[column]) for row in rows[1:]] == [0.0, 0.0]
    assert mean("f1", 0.0, 0.0) == 0.0
    assert isnan(mean("loss", 0.0, 0.0))
    assert mean("loss", 3.0, 2.0) == 1.5


def test_parts_of_speech_are_learned_sparsely(files, tmp_path):
    made = trained(files, tmp_path / "run", "conllu.gz", "--loss", "sparsemap", "--epochs", 4)
    report = made.evaluate(files / "dev.conllu.gz")
    assert report["accuracy"] == 1.0
    assert "f1" not in report
    assert report["single"] > 0.5
    output = tmp_path / "out.conllu"
    assert invoke("predict", tmp_path / "run", files / "dev.conllu.gz", "--output", output).exit_code == 0
    assert output.read_bytes() == gzip.decompress((files / "dev.conllu.gz").read_bytes())
    listed = recipes.load(tmp_path / "run", distribution=True).predict(["Ida", "works", "."])
    assert sum(float(line.split("\t")[1]) for line in listed) == pytest.approx(1.0, abs=1e-4)
    assert list(made.predict([])) == []
    assert list(made.predict(["", " "])) == ["", " "]


def test_how_many_are_tagged_at_once_changes_nothing(files, tmp_path):
    made = trained(files, tmp_path / "run", "txt", "--loss", "softmax", "--epochs", 1)
    one = recipes.load(tmp_path / "run", batch=1)
    lines = (files / "dev.txt").read_text().splitlines()
    assert list(made.predict(lines)) == list(one.predict(lines))


def test_several_files_are_one(files):
    columns, words = read_tags([files / "dev.txt"]), read_tags([files / "dev.conllu.gz"])
    assert read_tags([files / "dev.txt", files / "dev.conllu.gz"]) == [
        *columns,
        *(sentence._replace(document=1) for sentence in words),
    ]
    assert columns == list(read_tagged(files / "dev.txt"))
    assert [s.tokens for s in words] == [s.forms for s in read_conllu(files / "dev.conllu.gz", trees=False)]
    assert isinstance(Sentences(columns, KNOWN)[torch.arange(2)], Batch)
