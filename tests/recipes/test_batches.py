"""Batches hold every row once, ragged rows are padded, vocabularies survive storage."""

import json

import pytest
import torch

from polymax_recipes.seq2seq import data as seq2seq
from polymax_recipes.training.batches import Ragged, share, shuffled_batches, sorted_batches
from polymax_recipes.training.vocabulary import SPECIALS, UNKNOWN, Subwords, Words, restored
from polymax_recipes.word_align import data as word_align


def test_batches_hold_every_row_once_and_depend_on_seed_and_epoch():
    sizes = torch.randint(1, 50, (1000,))
    first, again, later, other = (
        shuffled_batches(sizes, 8, seed, epoch) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    for batches in (first, later, other, sorted_batches(sizes, 8)):
        assert torch.equal(torch.cat(batches).sort().values, torch.arange(1000))
        # neighbours in length
        spread = torch.stack([(sizes[batch].max() - sizes[batch].min()).float() for batch in batches])
        assert spread.mean() < 5
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not torch.equal(torch.cat(first), torch.cat(later))
    assert not torch.equal(torch.cat(first), torch.cat(other))


@pytest.mark.parametrize("task", ["seq2seq", "word-align"])
def test_pairs_are_sorted_by_targets_and_then_by_sources(task):
    """A long source beside a short target would be padding for its batch; and no source weighs as much as a target."""
    texts = [(n, m) for n in (9, 1, 4, 2) for m in (3, 1, 2)]
    if task == "seq2seq":
        words = Words(("a", "b"))
        pairs = seq2seq.Pairs([(" ".join("a" * n), " ".join("b" * m)) for n, m in texts], words, words)
    else:
        sides = [word_align.Sides(" ".join("a" * n), " ".join("b" * m)) for n, m in texts]
        pairs = word_align.Pairs(sides, word_align.vocabularies_of(sides, 10, False))
    found = [texts[k] for batch in sorted_batches(pairs.sizes, 5) for k in batch.tolist()]
    assert found == sorted(texts, key=lambda text: text[::-1])


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_processes_share_batches(count):
    batches = list(torch.arange(count).split(1))
    shares = [share(batches, rank, 3) for rank in range(3)]
    assert len({len(part) for part in shares}) == 1
    assert {int(batch) for part in shares for batch in part} == set(range(count))


def test_ragged_rows_come_back_padded():
    rows = [[5], [6, 7, 8], [], [9, 4]]
    padded, lengths = Ragged.of(rows).padded(torch.tensor([3, 0, 2]))
    assert padded.tolist() == [[9, 4], [5, 0], [0, 0]]
    assert lengths.tolist() == [2, 1, 0]


@pytest.mark.parametrize("kind", ["words", "subwords"])
def test_vocabularies_survive_their_storage(kind):
    if kind == "subwords":
        pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    texts = ["low lower lowest", "new newer newest </s> wide"] * 5
    vocabulary = Words.counted(texts, 50) if kind == "words" else Subwords.learned(texts, 60)
    again = restored(json.loads(json.dumps(vocabulary.stored())))
    for text in (*texts, "newest low"):
        assert again.encode(text) == vocabulary.encode(text)
        assert again.decode(vocabulary.encode(text)) == text
    # what is spelled like a special is text
    assert min(again.encode("</s> <s> <pad>")) >= UNKNOWN
    assert again.encode("</s>") != [SPECIALS.index("</s>")]
    assert len(again) == len(vocabulary)
