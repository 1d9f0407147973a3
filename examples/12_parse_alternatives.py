"""Parse sentences, and see the alternatives: a small parser with a sparse
distribution over trees.

Sentences such as "she saw the man with a telescope" have two readings. The parser
learns from sentences of a small grammar, in which the noun after "with" says where
the phrase belongs: a telescope is seen with, a hat is worn. For "dog" the grammar
draws either, so that both trees should stay possible. A CRF gives every tree a
probability; SparseMAP gives exact zeros to all but a few.
"""

import argparse
import random

import torch
from torch import Tensor, nn

import polymax as pm

SUBJECTS, VERBS, OBJECTS = (
    ["she", "he", "anna"],
    ["saw", "met"],
    ["man", "girl", "boy"],
)
SEEN_WITH, WORN = ["telescope", "camera"], ["hat", "beard"]
WORDS = [*SUBJECTS, *VERBS, "the", "a", "with", *OBJECTS, *SEEN_WITH, *WORN, "dog"]
NUMBER = {word: place for place, word in enumerate(WORDS)}


def sentence(
    draw: random.Random, last: str | None = None
) -> tuple[list[str], list[int]]:
    """Return words, and the head of each: 0 is the root, words count from 1."""
    noun = last or draw.choice([*SEEN_WITH, *WORN, "dog"])
    to_verb = noun in SEEN_WITH or (noun == "dog" and draw.random() < 0.5)
    words = [draw.choice(SUBJECTS), draw.choice(VERBS), "the", draw.choice(OBJECTS)]
    return [*words, "with", "a", noun], [2, 0, 4, 2, 2 if to_verb else 4, 7, 5]


class Parser(nn.Module):
    """Scores arcs between the states of a small LSTM."""

    def __init__(self, size: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), size)
        self.encoder = nn.LSTM(size, size, bidirectional=True, batch_first=True)
        self.arcs = pm.nn.ArcScorer(2 * size, hidden_dim=32)

    def forward(self, words: Tensor) -> Tensor:
        """Return the scores of arcs from heads to words (*batch, n + 1, n + 1)."""
        return self.arcs(self.encoder(self.embedding(words))[0])


def numbers(sentences: list[list[str]]) -> Tensor:
    return torch.tensor([[NUMBER[word] for word in words] for words in sentences])


options = argparse.ArgumentParser(description=__doc__)
options.add_argument(
    "--picture", help="a file for the arcs of the sentence with a dog"
)
picture = options.parse_args().picture
draw = random.Random(0)
torch.manual_seed(0)
trees = pm.ProjectiveTree()
data = [sentence(draw) for _ in range(400)]
parser = Parser()
optimizer = torch.optim.Adam(parser.parameters(), lr=0.01)
for _ in range(120):
    batch = draw.sample(data, 32)
    scores = parser(numbers([words for words, _ in batch]))
    heads = torch.tensor([heads for _, heads in batch])
    loss = pm.sparsemap_loss(trees, scores, heads)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

for noun in ("telescope", "hat", "dog"):
    words, _ = sentence(random.Random(1), noun)
    scores = parser(numbers([words])).detach()[0]
    found = pm.SparseMap(trees).distribution(scores)
    print(f"{' '.join(words)}: {int(found.support_size)} of all trees are possible")
    for tree, p in sorted(
        zip(found.vertices, found.probs.tolist()), key=lambda pair: -pair[1]
    ):
        if p > 0:
            head = int(trees.decode(tree)[words.index("with")])
            print(f"  {p:.2f}  with hangs on {words[head - 1]}")
if picture:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(12, 3))
    for axis, smooth in zip(axes, (pm.Marginals(trees), pm.SparseMap(trees))):
        pm.plot.arcs(smooth(scores), words, ax=axis)
        axis.set_title(type(smooth).__name__)
    figure.savefig(picture, dpi=90, bbox_inches="tight")
    print(f"wrote {picture}")
