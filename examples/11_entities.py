"""Find entities with a CRF of polymax beside pytorch-crf: the same data, weights
and steps.

Sentences are made from names, places and firms; half of the names in the test were
not in training, so that their neighbours must tell. Both CRFs start from the same
weights, and end with the same ones. polymax takes rules besides: a tag that begins
no entity cannot continue one. `pip install pytorch-crf` adds the second column.
"""

import random

import torch
from torch import Tensor, nn

import polymax as pm

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "B-ORG"]
FIRST, LAST = (
    ["Ada", "Bo", "Cleo", "Dan", "Eva", "Finn"],
    ["Berg", "Costa", "Dahl", "Egan"],
)
PLACES, FIRMS = (
    ["Rome", "Oslo", "Lima", "Cairo"],
    ["Acme", "Globex", "Initech", "Hooli"],
)
FRAMES = [
    "PER works for ORG in LOC",
    "ORG of LOC hired PER",
    "in LOC PER met PER",
    "PER left ORG",
    "the people of LOC like ORG",
]


def sentence(draw: random.Random, known: bool) -> tuple[list[str], list[int]]:
    """Return words and tags; names that are not known are a word of capital
    letters.
    """
    words, tags = [], []
    for word in draw.choice(FRAMES).split():
        if word == "PER":
            name = draw.choice(FIRST) if known or draw.random() < 0.5 else "Zzyx"
            words += [name, draw.choice(LAST)]
            tags += [1, 2]
        elif word in ("LOC", "ORG"):
            words.append(draw.choice(PLACES if word == "LOC" else FIRMS))
            tags.append(3 if word == "LOC" else 4)
        else:
            words.append(word)
            tags.append(0)
    return words, tags


def batch(data: list, numbers: dict[str, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return words, tags and a mask, (sentences, longest) each."""
    pad = nn.utils.rnn.pad_sequence
    words = pad(
        [torch.tensor([numbers.get(w, 1) for w in s]) for s, _ in data], True
    )
    tags = pad([torch.tensor(t) for _, t in data], True)
    return words, tags, words > 0


class Tagger(nn.Module):
    """An LSTM below a CRF."""

    def __init__(self, words: int, crf: nn.Module) -> None:
        super().__init__()
        self.embedding, self.crf = nn.Embedding(words, 24), crf
        self.encoder = nn.LSTM(24, 24, bidirectional=True, batch_first=True)
        self.emission = nn.Linear(48, len(TAGS))

    def emissions(self, words: Tensor) -> Tensor:
        return self.emission(self.encoder(self.embedding(words))[0])


def entities(tags: list[int]) -> set[tuple[int, int, int]]:
    """Return the entities of a sentence: kind, first word, end."""
    found = set()
    for begin, tag in enumerate(tags):
        if tag in (1, 3, 4):
            end = begin + 1
            while tag == 1 and end < len(tags) and tags[end] == 2:
                end += 1
            found.add((tag, begin, end))
    return found


draw = random.Random(0)
train, test = [
    [sentence(draw, known) for _ in range(300)] for known in (True, False)
]
vocabulary = sorted({word for words, _ in train for word in words})
numbers = {word: place for place, word in enumerate(vocabulary, 2)}
torch.manual_seed(0)
start = Tagger(len(numbers) + 2, pm.nn.CRF(len(TAGS)))
models = {"polymax": start}
try:
    from torchcrf import CRF

    models["pytorch-crf"] = Tagger(
        len(numbers) + 2, CRF(len(TAGS), batch_first=True)
    )
    models["pytorch-crf"].load_state_dict(start.state_dict())
except ImportError:
    print("pytorch-crf is not installed")
for name, model in models.items():
    order, optimizer = (
        random.Random(1),
        torch.optim.Adam(model.parameters(), lr=0.01),
    )
    for _ in range(60):
        words, tags, mask = batch(order.sample(train, 50), numbers)
        emissions = model.emissions(words)
        if name == "polymax":
            loss = model.crf(emissions, tags, mask)
        else:
            loss = -model.crf(emissions, tags, mask, reduction="mean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    words, tags, mask = batch(test, numbers)
    found = model.crf.decode(model.emissions(words), mask)
    gold = [entities(row) for _, row in test]
    mine = [entities([int(tag) for tag in row if tag >= 0]) for row in found]
    right = sum(len(a & b) for a, b in zip(gold, mine))
    f1 = 2 * right / (sum(map(len, gold)) + sum(map(len, mine)))
    print(f"{name:12s} loss {loss.item():.4f}, F1 {f1:.3f}")
with torch.no_grad():
    words, _, mask = batch(test[:1], numbers)
    marginals = start.crf.marginals(start.emissions(words), mask)[0]
for word, row in zip(test[0][0], marginals):
    print(
        f"  {word:8s}",
        "  ".join(f"{t} {p:.2f}" for t, p in zip(TAGS, row) if p > 0.01),
    )
