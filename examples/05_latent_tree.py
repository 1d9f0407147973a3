"""Classify sentences by trees that nobody shows the model: which adjective belongs
to the noun that is asked about?

A sentence has three nouns, one of them asked about, and three adjectives, good or
bad, in any order. An adjective agrees with its noun in an ending, a random vector
that both share in this sentence alone. So neither words nor their order decide,
pairs of words do; a vote of the three adjectives is right in three of four cases. A
parser scores arcs, a graph convolution composes along the tree, and the label is
all they learn from, by three ways to get a gradient through a tree. Printed:
accuracy, how often an arc joins the asked noun and its adjective, the time of a
step, and the trees that the sparse distribution holds for the sentence it is least
sure of. Run: python examples/05_latent_tree.py
"""

import argparse
import time

import torch
from torch import Tensor, nn

import polymax as pm

# steps are short: threads would only wait for each other
torch.set_num_threads(1)
PAIRS, ENDING, HIDDEN, BATCH, TESTED = 3, 8, 16, 64, 1000
KINDS = ("noun", "noun?", "bad", "good")
METHODS = {
    "left-chain": "each word hangs from the one before",
    "straight-through": "the best tree, and the gradient of its arcs",
    "structured-attention": "the expected arcs of all trees",
    "sparse-expectation": "the expected loss over the trees of SparseMAP",
}


class Sentences:
    """Word vectors (count, 6, ENDING + 4), labels, and the places of the asked noun
    and its adjective, from 1.
    """

    def __init__(self, count: int) -> None:
        endings = torch.randn(count, PAIRS, ENDING).repeat(1, 2, 1)
        good, asked = (
            torch.randint(2, (count, PAIRS)),
            torch.randint(PAIRS, (count, 1)),
        )
        kinds = torch.cat([(torch.arange(PAIRS) == asked).long(), 2 + good], 1)
        order = torch.rand(count, 2 * PAIRS).argsort(-1)
        places = order.argsort(-1) + 1
        words = torch.cat([endings, nn.functional.one_hot(kinds, len(KINDS))], -1)
        self.words = words.take_along_dim(order.unsqueeze(-1), 1)
        self.labels = good.gather(1, asked).squeeze(1)
        self.noun, self.adjective = (
            places.gather(1, asked + k * PAIRS).squeeze(1) for k in range(2)
        )
        self.kinds, self.order = kinds, order

    def names(self, b: int) -> list[str]:
        """The words of one sentence, with letters for endings."""
        return [
            f"{KINDS[self.kinds[b, i]]}-{'aeo'[i % PAIRS]}"
            for i in self.order[b].tolist()
        ]


class Classifier(nn.Module):
    def __init__(self, method: str) -> None:
        super().__init__()
        self.latent = pm.nn.LatentDependency(
            ENDING + len(KINDS), HIDDEN, method, composition="gcn"
        )
        self.output = nn.Linear(HIDDEN, 2)

    def loss(self, batch: Sentences) -> Tensor:
        """The mean loss; what it is for one encoding, or for several of a sentence,
        is all that a method asks.
        """

        def loss_fn(encodings: Tensor, rows: Tensor) -> Tensor:
            return nn.functional.cross_entropy(
                self.output(encodings), batch.labels[rows], reduction="none"
            )

        return self.latent.loss(batch.words, None, loss_fn).loss.mean()

    @torch.no_grad()
    def tested(self, batch: Sentences) -> tuple[float, float]:
        """Accuracy, and the share of trees in which an arc joins the asked noun and
        its adjective.
        """
        right = (
            self.output(self.latent.encode(batch.words)).argmax(-1) == batch.labels
        )
        heads = self.latent.trees(batch.words)
        down = (
            heads.gather(1, batch.adjective.unsqueeze(1) - 1).squeeze(1)
            == batch.noun
        )
        up = (
            heads.gather(1, batch.noun.unsqueeze(1) - 1).squeeze(1)
            == batch.adjective
        )
        return right.float().mean().item(), (down | up).float().mean().item()


def trained(method: str, steps: int) -> tuple[Classifier, float]:
    """A classifier, and the milliseconds of a step."""
    torch.manual_seed(0)
    model = Classifier(method)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss(Sentences(BATCH)).backward()
        optimizer.step()
    return model, 1e3 * (time.perf_counter() - start) / steps


@torch.no_grad()
def shown(model: Classifier, batch: Sentences) -> None:
    """The trees of a sentence with their probabilities, as arcs from head to
    modifier.
    """
    found = model.latent.distribution(batch.words)
    b = int(found.entropy().argmax())
    names, (trees, probs) = batch.names(b), found.support()
    print(f"\n{' '.join(names)}")
    for heads, p in zip(
        model.latent.structure.decode(trees[b]).tolist(), probs[b].tolist()
    ):
        if p > 0:
            arcs = [
                f"{(['root', *names])[h]} > {name}" for name, h in zip(names, heads)
            ]
            print(f"  {p:.2f}  {',  '.join(arcs)}")


def main(steps: int) -> None:
    torch.manual_seed(1)
    test = Sentences(TESTED)
    print(f"{'method':22s} right  joined  ms/step")
    for method, meaning in METHODS.items():
        model, ms = trained(method, steps)
        accuracy, joined = model.tested(test)
        print(
            f"{method:22s} {accuracy:5.1%}  {joined:5.1%}  {ms:7.1f}   {meaning}",
            flush=True,
        )
    shown(model, test)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=500)
main(**vars(parser.parse_args()))
