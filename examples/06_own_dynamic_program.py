"""A dynamic program of one's own: read text without spaces, and learn how frequent
words are from such text.

Places between letters are the nodes of a graph, words are its edges, and a reading
is a path. All inference and its gradients follow from the list of edges. Run:
python examples/06_own_dynamic_program.py
"""

import torch

import polymax as pm

LEXICON = (
    "a am and are at cat god he her here i in is it no not now nowhere on sat "
    "the there thin to we were where"
)
# what was meant, for the reader alone: the model sees it without the spaces
TEXTS = [
    "the cat is here",
    "we are here now",
    "now the cat is in there",
    "is he here now",
    "i am here and he is there",
    "the cat sat on it and now it is here",
    "here we are and there he is",
    "now it is he and not i",
]
QUESTION = "godisnowhere"
STEPS = 60
WORDS = LEXICON.split()


class Reading:
    """The graph of a text: every word that stands at a place is an edge from its
    start to its end.
    """

    def __init__(self, text: str) -> None:
        found = [
            (i, i + len(w), k)
            for i in range(len(text))
            for k, w in enumerate(WORDS)
            if text.startswith(w, i)
        ]
        self.words = torch.tensor([k for _, _, k in found])
        self.paths = pm.Dag([(i, j) for i, j, _ in found], source=0, sink=len(text))

    def scores(self, word_scores: torch.Tensor) -> torch.Tensor:
        return word_scores[self.words]

    def spell(self, path: torch.Tensor) -> str:
        return " ".join(WORDS[k] for k in self.words[path == 1].tolist())


def show(title: str, reading: Reading, word_scores: torch.Tensor) -> None:
    print(title)
    for name, smooth in (
        ("all", pm.Marginals(reading.paths)),
        ("sparse", pm.LocalMax(reading.paths, pm.Gini())),
    ):
        paths, probs = smooth.distribution(reading.scores(word_scores)).topk(4)
        found = [
            f"{reading.spell(path)} {p:.2f}"
            for path, p in zip(paths, probs.tolist())
            if p > 0
        ]
        print(f"  {name:6s}", " | ".join(found))


question = Reading(QUESTION)
readings = [Reading(text.replace(" ", "")) for text in TEXTS]
print(
    f"{QUESTION}: {len(question.words)} edges,",
    f"{len(question.paths.vertices())} readings",
)

logits = torch.zeros(len(WORDS), requires_grad=True)
optimizer = torch.optim.Adam([logits], lr=0.2)
for step in range(STEPS + 1):
    word_scores = logits.log_softmax(0)
    # the likelihood of a text sums over all of its readings; its gradient holds
    # expected counts of words
    loss = -sum(pm.Marginals(r.paths).max(r.scores(word_scores)) for r in readings)
    if step in (0, STEPS // 12, STEPS):
        show(
            f"after {step} steps, log-likelihood {-loss.item():.1f}",
            question,
            word_scores.detach(),
        )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    word_scores = logits.log_softmax(0)
    best = word_scores.topk(5).indices.tolist()
    print(
        "most frequent:",
        ", ".join(f"{WORDS[k]} {word_scores[k].exp():.2f}" for k in best),
    )
    right = sum(
        r.spell(r.paths.map(r.scores(word_scores))) == text
        for r, text in zip(readings, TEXTS)
    )
print(f"{right} of {len(TEXTS)} texts read as they were meant")
