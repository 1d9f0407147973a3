"""Train a tagger of ambiguous words with three losses: words alone, a CRF, and a
sparse dynamic program.

"will may mark the brown bill" has a name, a modal and a verb that all could be
something else: tags must be chosen together. The loss of a chain is
smooth.max(scores) - <scores, gold>, whatever the smoothing. Run: python
examples/04_chain_crf.py
"""

import random

import torch

import polymax as pm

WORDS = {
    "NAME": ["anna", "peter", "will", "may", "mark", "rose", "bill"],
    "SURNAME": ["smith", "brown", "green", "king", "rose", "may"],
    "MODAL": ["will", "may", "must"],
    "VERB": ["saw", "mark", "rose", "bill", "green", "sees"],
    "DET": ["the", "a", "every"],
    "ADJ": ["old", "brown", "green"],
    "NOUN": ["house", "king", "mark", "rose", "bill", "saw", "will"],
}
TAGS = list(WORDS)
VOCABULARY = sorted({word for words in WORDS.values() for word in words})
SENTENCES, HELD_OUT, STEPS, BATCH = 600, 300, 150, 32


def sentence(rng: random.Random) -> list[tuple[str, str]]:
    """A sentence of the pattern: somebody (may) do something (to somebody)."""

    def somebody() -> list[str]:
        return rng.choice(
            [["NAME"], ["NAME", "SURNAME"], ["DET", "NOUN"], ["DET", "ADJ", "NOUN"]]
        )

    tags = (
        somebody()
        + rng.choice([["VERB"], ["MODAL", "VERB"]])
        + rng.choice([[], somebody()])
    )
    return [(rng.choice(WORDS[tag]), tag) for tag in tags]


def padded(
    sentences: list[list[tuple[str, str]]],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Words, tags with -1 at padding, and lengths."""
    lengths = torch.tensor([len(s) for s in sentences])
    words, tags = (
        torch.full((len(sentences), int(lengths.max())), fill) for fill in (0, -1)
    )
    for k, pairs in enumerate(sentences):
        words[k, : len(pairs)] = torch.tensor(
            [VOCABULARY.index(word) for word, _ in pairs]
        )
        tags[k, : len(pairs)] = torch.tensor([TAGS.index(tag) for _, tag in pairs])
    return words, tags, lengths


class Tagger(torch.nn.Module):
    """Scores of tags for each word, and of each tag after another."""

    def __init__(self) -> None:
        super().__init__()
        self.unary = torch.nn.Embedding(len(VOCABULARY), len(TAGS))
        self.transition = torch.nn.Parameter(torch.zeros(len(TAGS), len(TAGS)))

    def forward(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.unary(words), self.transition


rng = random.Random(0)
train = [sentence(rng) for _ in range(SENTENCES)]
words, gold, lengths = padded([sentence(rng) for _ in range(HELD_OUT)])
kept = gold >= 0


def chain_loss(smooth, scores, tags, lengths):
    """Smoothed max minus the score of the gold tags, per sentence."""
    y = pm.Chain().encode(tags, len(TAGS))
    return (
        smooth.with_lengths(lengths).max(*scores) - pm.Chain().score(y, *scores)
    ).mean()


def word_loss(smooth, scores, tags, lengths):
    """Cross-entropy of each word by itself."""
    return pm.fenchel_young(pm.Shannon(), scores[0], tags, ignore_index=-1)


METHODS = {
    "words alone": (word_loss, pm.Marginals(pm.Chain())),
    "CRF": (chain_loss, pm.Marginals(pm.Chain())),
    "sparse": (chain_loss, pm.LocalMax(pm.Chain(), pm.Gini())),
}
trained = {}
print(f"{'loss':12s} tags right  sentences right  tags with probability 0")
for name, (loss_of, smooth) in METHODS.items():
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(STEPS):
        batch = [train[(step * BATCH + k) % SENTENCES] for k in range(BATCH)]
        inputs, tags, sizes = padded(batch)
        loss = loss_of(smooth, model(inputs), tags, sizes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        scores = model(words)
        chain = pm.Chain(lengths)
        right = (chain.decode(chain.map(*scores)) == gold) | ~kept
        zeros = (
            (smooth.with_lengths(lengths)(*scores).unary[kept] == 0).float().mean()
        )
        per_tag = right[kept].float().mean()
    trained[name] = model
    print(
        f"{name:12s} {per_tag:10.3f}  {right.all(1).float().mean():15.3f} ",
        f"{zeros:.0%}",
    )

example = ["will", "may", "mark", "the", "brown", "bill"]
index = torch.tensor([VOCABULARY.index(word) for word in example])
for name in ("CRF", "sparse"):
    smooth = METHODS[name][1]
    with torch.no_grad():
        scores = trained[name](index)
        mu = smooth(*scores).unary
        likely, probs = smooth.distribution(*scores).topk(3)
    print(f"\n{name}: tags above 0")
    for word, row in zip(example, mu.tolist()):
        print(
            f"  {word:6s}",
            "  ".join(f"{tag} {p:.2f}" for tag, p in zip(TAGS, row) if p > 0),
        )
    for tags, p in zip(pm.Chain().decode(likely).tolist(), probs.tolist()):
        if p > 0:
            print(f"  {p:.3f}", " ".join(TAGS[t] for t in tags))
