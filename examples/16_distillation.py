"""Distil a language model from a teacher whose distributions lie on disk.

A teacher that is trained by the entmax loss gives most words the probability 0, so
that the list of the other words is its whole distribution: nothing is cut off. One
student learns from the next words of a text, another one from the teacher's lists.
The text is the source of modules of Python itself, in words.
"""

import argparse
import collections
import inspect
import logging
import re
import tempfile

import torch
from torch import nn

import polymax as pm

ALPHA, LENGTH, HELD_OUT = 1.5, 64, 0.2
torch.manual_seed(0)
torch.set_num_threads(1)


def read_text():
    """Return the words of some modules as numbers, and how many there are.

    All rare words are one word.
    """
    modules = argparse, logging
    source = "".join(inspect.getsource(module) for module in modules)
    tokens = re.findall(r"\w+|[^\w\s]|\n", source)
    known = {w for w, n in collections.Counter(tokens).items() if n > 4}
    numbers = {w: k for k, w in enumerate(sorted(known), 1)}
    return torch.tensor([numbers.get(w, 0) for w in tokens]), len(numbers) + 1


class Model(nn.Module):
    """Words to states that predict the next word."""

    def __init__(self, words, size):
        super().__init__()
        self.embedding = nn.Embedding(words, size)
        self.layer = nn.GRU(size, size, batch_first=True)
        self.weight = nn.Parameter(torch.randn(words, size) / size**0.5)

    def forward(self, tokens):
        return self.layer(self.embedding(tokens))[0]


def train(model, windows, steps, teacher=None):
    """Train on windows of words; a teacher has lists for each position."""
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    for _ in range(steps):
        chosen = torch.randint(len(windows), (16,))
        states = model(windows[chosen, :-1])
        target = windows[chosen, 1:]
        if teacher is not None:
            places = torch.arange(LENGTH).expand(len(chosen), -1)
            target = teacher.at(chosen[:, None].expand(-1, LENGTH), places)
        loss = pm.linear_entmax_loss(states, model.weight, target, alpha=ALPHA)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def measure(model, windows):
    """Return the loss of held-out words, and how many words are possible."""
    states = model(windows[:, :-1])
    found = pm.linear_entmax(states, model.weight, alpha=ALPHA)
    loss = pm.linear_entmax_loss(states, model.weight, windows[:, 1:], alpha=ALPHA)
    return float(loss), float(found.support_size.float().mean())


def main():
    text, words = read_text()
    windows = text[: len(text) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    windows = windows[torch.randperm(len(windows))]
    cut = int(len(windows) * (1 - HELD_OUT))
    seen, held = windows[:cut], windows[cut:]
    print(f"{len(text)} words, {words} of them different")

    teacher = Model(words, 96)
    train(teacher, seen, 150)
    with torch.no_grad():
        lists = (
            pm.linear_entmax(teacher(w[None, :-1])[0], teacher.weight, alpha=ALPHA)
            for w in seen
        )
        folder = tempfile.mkdtemp()
        pm.WordDistribution.save(folder, lists)
    stored = pm.WordDistribution.load(folder)
    size = 4 * stored.entries + 8 * stored.positions
    listed, bytes_each = stored.entries / stored.positions, size / stored.positions
    print(f"{listed:.1f} words a position: {bytes_each:.0f} bytes on disk")

    print(f"teacher             loss {measure(teacher, held)[0]:.3f}")
    for name, source in (("next words", None), ("teacher's lists", stored)):
        torch.manual_seed(1)
        student = Model(words, 48)
        train(student, seen, 80, source)
        loss, possible = measure(student, held)
        print(f"student, {name:16s} loss {loss:.3f}, {possible:.0f} words possible")


if __name__ == "__main__":
    main()
