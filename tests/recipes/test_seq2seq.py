"""Sequence to sequence: padding changes nothing, search finds what enumeration finds, numbers are a language."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch.testing import assert_close as close

from polymax_recipes.metrics import AttentionRuns
from polymax_recipes.seq2seq import numbers
from polymax_recipes.seq2seq.attention import BOUNDED, NAMES, attention_counts
from polymax_recipes.seq2seq.data import Pairs, read_texts
from polymax_recipes.seq2seq.exact import exact_search
from polymax_recipes.seq2seq.measures import bleu, rouge
from polymax_recipes.seq2seq.model import Seq2Seq
from polymax_recipes.seq2seq.search import Search, beam_search
from polymax_recipes.seq2seq.task import Seq2SeqOptions, target_words
from polymax_recipes.training.vocabulary import BEGIN, END, PAD, UNKNOWN, Words

TINY = Seq2SeqOptions(hidden=6, embedding=5, dropout=0.0)
PAIRS = [("a b c", "x y"), ("b", "y y x x"), ("c a b a c", "x"), ("a a", "y x y")]
SOURCE, TARGET = Words(("a", "b", "c")), Words(("x", "y"))


def model(options=TINY, sharp=1.0):
    """A model of random weights, whose output is `sharp` times what it would be."""
    made = Seq2Seq(options, len(SOURCE), len(TARGET)).eval()
    with torch.no_grad():
        made.words.weight.mul_(sharp)
        made.words.bias.mul_(sharp)
    return made


@pytest.mark.parametrize("output", ["cross-entropy", "entmax", "sparsemax"])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_its_sentences(name, output):
    options = replace(TINY, attention=name, loss=output, layers=2 if name == "softmax" else 1)
    made = model(options)
    pairs = Pairs(PAIRS, SOURCE, TARGET)
    together = made.loss(pairs[torch.arange(4)])
    alone = [made.loss(pairs[torch.tensor([row])]) for row in range(4)]
    for measure, pair in together.items():
        for part in (0, 1):
            close(pair[part].float(), torch.stack([one[measure][part].float() for one in alone]).sum())
    assert together["loss"][1] == sum(len(target.split()) + 1 for _, target in PAIRS)


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_on_the_words_and_bounded(name):
    made = model(replace(TINY, attention=name, fertility=0.6))
    batch = Pairs(PAIRS, SOURCE, TARGET)[torch.arange(4)]
    _, weights = made(batch)
    close(weights.sum(-1), torch.ones(weights.shape[:2]))
    outside = torch.arange(weights.shape[2]) >= batch.source_lengths.unsqueeze(1)
    assert (weights.transpose(1, 2)[outside] == 0).all()
    # END, the last, takes what the words cannot
    words = torch.arange(weights.shape[2]) < batch.source_lengths.unsqueeze(1) - 1
    used = weights.sum(1)[words]
    assert (used.max() <= 0.6 + 1e-5) == (name in BOUNDED)


def test_words_that_are_right_are_counted_in_training_and_evaluation():
    """Accuracy is that of the best words, one by one; sparse losses count in evaluation alone."""
    for output in ("cross-entropy", "entmax"):
        made = model(replace(TINY, loss=output))
        with torch.no_grad():
            # always x, which five of fourteen words are
            made.words.bias[4] += 9
        batch = Pairs(PAIRS, SOURCE, TARGET)[torch.arange(4)]
        outputs, _ = made(batch)
        gold = batch.target[:, 1:]
        right = int(((made.log_probs(outputs).argmax(-1) == gold) & (gold != PAD)).sum())
        words = int((gold != PAD).sum())
        assert (right, words) == (5, 14)
        assert [int(t) for t in made.loss(batch)["word_accuracy"]] == [right, words]
        # the options drop nothing out
        training = made.train().loss(batch)
        if output == "cross-entropy":
            assert [int(t) for t in training["word_accuracy"]] == [right, words]
        else:
            assert "word_accuracy" not in training


OTHER = {
    "entmax": {"alpha": 2.0},
    "fusedmax": {"strength": 0.0},
    "oscarmax": {"strength": 0.0},
    "sq-pnorm-max": {"p": 3.0},
    "csoftmax": {"fertility": 0.3},
    "csparsemax": {"fertility": 0.3},
}


@pytest.mark.parametrize("name", OTHER)
def test_options_of_the_attention_change_it(name):
    base = replace(TINY, attention=name)
    batch = Pairs(PAIRS, SOURCE, TARGET)[torch.arange(4)]
    first, second = model(base), model(replace(base, **OTHER[name]))
    second.load_state_dict(first.state_dict())
    assert not torch.equal(first(batch)[1], second(batch)[1])


def test_every_parameter_learns():
    made = model(replace(TINY, layers=2, attention="fusedmax"))
    made.loss(Pairs(PAIRS, SOURCE, TARGET)[torch.arange(4)])["loss"][0].backward()
    assert all(bool((p.grad != 0).any()) for p in made.parameters())


def every_target(made, source, longest, penalty):
    """The best score of all targets of at most `longest` words, END included, and its words."""
    best = (-torch.inf, [])
    encoded, start = made.encode(source, torch.tensor([source.shape[1]]))
    for length in range(1, longest + 1):
        for target in product((UNKNOWN, 4, 5), repeat=length - 1):
            state, total = start, 0.0
            for before, word in zip((BEGIN, *target), (*target, END)):
                state, _ = made.step(made.target(torch.tensor([[before]])), encoded, state)
                total += float(made.log_probs(state.fed)[0, 0, word])
            best = max(best, (total / length**penalty, [*target]), key=lambda found: found[0])
    return best


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("output", ["cross-entropy", "entmax", "sparsemax"])
def test_a_wide_beam_finds_the_best_of_all(output, penalty):
    options = replace(TINY, loss=output, attention="csparsemax")
    source = torch.tensor([[4, 5, 6, END]])
    for seed in range(3):
        torch.manual_seed(seed)
        made = model(options, sharp=8.0)
        found = beam_search(made, source, torch.tensor([4]), Search(100, 4, penalty))
        with torch.no_grad():
            score, words = every_target(made, source, 4, penalty)
        close(found.scores[0], torch.tensor(score))
        assert score == -torch.inf or target_words(found.words[0]) == words


def test_what_is_called_exact_is():
    options = replace(TINY, loss="entmax")
    source = torch.tensor([[4, 5, 6, END]])
    exact = []
    for seed in range(12):
        torch.manual_seed(seed)
        made = model(options, sharp=12.0)
        found = beam_search(made, source, torch.tensor([4]), Search(3, 4, 0.0))
        exact.append(bool(found.exact[0]))
        if exact[-1]:
            with torch.no_grad():
                score, words = every_target(made, source, 4, 0.0)
            close(found.scores[0], torch.tensor(score))
            assert score == -torch.inf or target_words(found.words[0]) == words
    assert any(exact)
    assert not all(exact)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_exact_search_proves_more_than_a_beam(penalty):
    options = replace(TINY, loss="entmax")
    sources, lengths = torch.tensor([[4, 5, 6, END], [5, 4, END, 0]]), torch.tensor([4, 3])
    unproven = 0
    for seed in range(6):
        torch.manual_seed(seed)
        made = model(options, sharp=9.0)
        beam = beam_search(made, sources, lengths, Search(1, 4, penalty))
        found = exact_search(made, sources, lengths, Search(1, 4, penalty), 1000)
        few = exact_search(made, sources, lengths, Search(1, 4, penalty), 1)
        assert found.exact.all()
        assert (few.exact <= found.exact).all()
        unproven += int((~beam.exact).sum())
        for row, n in enumerate(lengths.tolist()):
            with torch.no_grad():
                score, words = every_target(made, sources[row : row + 1, :n], 4, penalty)
            close(found.scores[row], torch.tensor(score))
            assert score == -torch.inf or target_words(found.words[row]) == words
    assert unproven > 0


def test_search_of_a_batch_is_that_of_its_sentences():
    made = model(sharp=5.0)
    batch = Pairs(PAIRS, SOURCE, TARGET)[torch.arange(4)]
    search = Search(3, 6, 1.0)
    together = beam_search(made, batch.source, batch.source_lengths, search)
    for row, length in enumerate(batch.source_lengths.tolist()):
        alone = beam_search(made, batch.source[row : row + 1, :length], torch.tensor([length]), search)
        assert torch.equal(alone.words[0], together.words[row])
        close(alone.scores[0], together.scores[row])
        assert alone.exact[0] == together.exact[row]


def test_options_of_the_search_change_it():
    torch.manual_seed(1)
    made = model(sharp=3.0)
    batch = Pairs(PAIRS, SOURCE, TARGET)[torch.arange(4)]

    def scores(*search):
        found = beam_search(made, batch.source, batch.source_lengths, Search(*search))
        return found.scores.sum()

    assert scores(8, 8, 0.0) >= scores(1, 8, 0.0)
    assert scores(8, 8, 1.0) > scores(8, 8, 0.0)


def test_what_does_not_end_is_a_beginning():
    made = model()
    with torch.no_grad():
        made.words.bias[END] = -torch.inf
    found = beam_search(made, torch.tensor([[4, END]]), torch.tensor([2]), Search(2, 5, 1.0))
    assert found.scores[0] == -torch.inf
    assert not found.exact[0]
    assert len(target_words(found.words[0])) == 4
    assert not set(found.words[0].tolist()) & {BEGIN, END}


def test_counts_of_attention_are_its_statistics():
    weights = torch.randint(0, 3, (5, 4, 6)).float()
    steps = torch.arange(4) < torch.tensor([[4], [1], [3], [2], [4]])
    words = torch.arange(6) < torch.tensor([[6], [2], [3], [5], [1]])
    zeros, entries, segments, groups, rows = attention_counts(weights, steps, words).tolist()
    statistics = AttentionRuns()
    statistics.add(weights, steps.unsqueeze(2) & words.unsqueeze(1))
    assert statistics.result() == (zeros / entries, segments / rows, groups / rows)


def test_three_formats_hold_the_same_pairs(tmp_path):
    for name, text in {
        "p.tsv": "a b\tx\r\nc\ty y\n",
        "p.jsonl": '{"source": "a b", "target": "x"}\n{"source": ["c"], "target": ["y y", "x"], "id": 3}\n',
        "p.en": "a b\nc\n",
        "p.fr": "x\ny y",
    }.items():
        (tmp_path / name).write_text(text, newline="")
    wanted = [("a b", "x"), ("c", "y y")]
    for names in (("p.tsv",), ("p.jsonl",), ("p.en", "p.fr")):
        assert [text.pair for text in read_texts([tmp_path / name for name in names])] == wanted
    assert read_texts([tmp_path / "p.jsonl"])[1].targets == ("y y", "x")


BROKEN = {
    "t.tsv": [
        (b"a\tb\na b\n", "t.tsv:2: 2 columns between tabs expected, source, target; got 1"),
        (b"a\tb\n\xff\tb\n", "t.tsv:2: UTF-8 expected"),
        (b"a\tb\n\tb\n", "t.tsv:2: source is empty"),
        (b"", "t.tsv:1: the file is empty"),
    ],
    "t.jsonl": [
        (
            b'{"source": "a", "target": "b"}\n{"source": "a"}\n',
            "t.jsonl:2: no column for target; there are source: --columns target=NAME says which",
        ),
        (b'{"source": ["a", 3], "target": "b"}\n', "t.jsonl:1: source must be a text or a list of texts"),
        (b"[\n", "t.jsonl:1: JSON expected"),
    ],
    "t.en": [
        (b"a\nb\n", "t.fr:2: the file ends before"),
        (b" \n", "t.en:1: the line is empty"),
        (b"a\n\nb", "t.en:2: the line is empty"),
        (b"", "t.en:1: the file is empty"),
    ],
}


@pytest.mark.parametrize(("name", "content", "message"), [(n, *row) for n, rows in BROKEN.items() for row in rows])
def test_what_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "t.fr").write_text("x\n")
    files = [tmp_path / name, tmp_path / "t.fr"] if name == "t.en" else [tmp_path / name]
    with pytest.raises(ValueError) as error:
        read_texts(files)
    assert str(error.value).startswith(f"{tmp_path}/{message}")


def test_numbers_have_one_name_each():
    for language in (numbers.english, numbers.french):
        names = [language(n) for n in range(10_000)]
        assert len(set(names)) == 10_000
        assert max(len(name.split()) for name in names) <= 9
    assert numbers.french(4_891) == "quatre mille huit cent quatre vingt onze"
    assert numbers.english(2_005) == "two thousand and five"
    assert numbers.french(200) == "deux cents"


def test_measures():
    assert bleu(["a b c d e"], [["a b c d f"]]) < 100
    scores = rouge(["é, b c", "x"], [["É b d."], ["y"]])
    assert scores["rouge1"] == pytest.approx(100 / 3)
    assert scores["rouge2"] == pytest.approx(25)


def test_measures_take_the_best_of_several_references():
    references = [["z", "a b c d e"], ["v w x y z"]]
    texts = ["a b c d e", "v w x y z"]
    assert bleu(texts, references) == 100
    assert rouge(texts, references) == {"rouge1": 100, "rouge2": 100, "rougeL": 100}
    # more words are in the first, more pairs of words in the second: the first is best, and counts for all
    assert rouge(["a b c d"], [["d c b a", "a b"]])["rouge2"] == 0
    assert rouge(["a b c d"], [["a b"]])["rouge2"] > 0


def test_pairs_are_padded_and_marked():
    batch = Pairs(PAIRS, SOURCE, TARGET)[torch.tensor([0, 1])]
    assert batch.source.tolist() == [[4, 5, 6, END], [5, END, PAD, PAD]]
    assert batch.target.tolist() == [[BEGIN, 4, 5, END, PAD, PAD], [BEGIN, 5, 5, 4, 4, END]]
