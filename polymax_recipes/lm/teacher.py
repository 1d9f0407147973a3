"""Teachers of language models: a run of lm, or lists of `WordDistribution.save`, in the place of the next tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

import polymax as pm
from polymax_recipes.lm.data import NOTHING, Batch, Windows
from polymax_recipes.lm.model import LanguageModel
from polymax_recipes.lm.tokens import tokens_of
from polymax_recipes.training.fit import first_process
from polymax_recipes.training.run import load
from polymax_recipes.words import alpha_of

Distributions = pm.WordDistribution | Tensor


class Teacher(Protocol):
    """Distributions of the tokens that follow."""

    def targets(self, batch: Batch) -> Distributions:
        """The distributions of all positions of a batch that predict a token, in their order: lists, or (n, tokens)."""


def teacher_of(path: str, data: Windows) -> Teacher:
    """Return the teacher at a path, checked for training data; a ValueError says what does not fit."""
    folder = Path(path)
    found: RunTeacher | StoredTeacher
    if (folder / "config.json").exists():
        found = RunTeacher(folder, data)
    elif (folder / "contents.json").exists():
        found = StoredTeacher(folder, data)
    else:
        raise ValueError(f"--teacher must be a run of lm, or a folder of WordDistribution.save; got {path}")
    if first_process():
        print(f"teacher {path}: {found.described}", flush=True)
    return found


class RunTeacher:
    """A trained model, which computes its distributions for each batch: lists for sparse losses, else all tokens."""

    def __init__(self, folder: Path, data: Windows) -> None:
        trained = load(folder)
        if not isinstance(trained.model, LanguageModel):
            raise ValueError(f"--teacher must be a run of lm; {folder} is a run of {trained.task.name}")
        tokens = tokens_of(trained.vocabularies)
        if tokens.spelled() != data.spelled:
            raise ValueError(
                f"--teacher: {folder} has other tokens than the training: {_kind(tokens.spelled())}, and "
                f"{_kind(data.spelled)}"
            )
        self.model = trained.model.eval().requires_grad_(False)
        self.options = trained.options
        self.described = f"a run of lm with --loss {trained.options.loss}"

    @torch.no_grad()
    def targets(self, batch: Batch) -> Distributions:
        model = self.model.to(batch.inputs.device)
        states = model.states(batch.inputs)[0][batch.targets != NOTHING]
        weight = model.embedding.weight
        if self.options.loss == "cross-entropy":
            return model.scores(states).float().softmax(-1)
        return pm.linear_entmax(states.to(weight.dtype), weight, alpha=alpha_of(self.options))


class StoredTeacher:
    """Lists on disk: a document for each training text, with a position for each token and for the end of the text."""

    def __init__(self, folder: Path, data: Windows) -> None:
        self.stored = pm.WordDistribution.load(folder)
        if self.stored.words != data.vocabulary:
            raise ValueError(
                f"--teacher: {folder} is over {self.stored.words} words; the training has {data.vocabulary} tokens"
            )
        if len(self.stored) != len(data.lengths):
            raise ValueError(
                f"--teacher: {folder} has {len(self.stored)} documents; the training has {len(data.lengths)} texts"
            )
        for number, length in enumerate(data.lengths.tolist()):
            if self.stored.length(number) != length:
                raise ValueError(
                    f"--teacher: document {number} of {folder} has {self.stored.length(number)} positions; text "
                    f"{number} of the training has {length} tokens, its end included: these are lists of other texts"
                )
        mean = self.stored.entries / max(self.stored.positions, 1)
        self.described = f"{self.stored.positions} positions with lists of {mean:.1f} tokens"
        self.starts = torch.cat([data.lengths.new_zeros(1), data.lengths.cumsum(0)])

    def targets(self, batch: Batch) -> Distributions:
        places = batch.places[batch.targets != NOTHING].cpu()
        documents = torch.searchsorted(self.starts, places, right=True) - 1
        found = self.stored.at(documents, places - self.starts[documents])
        device = batch.inputs.device
        return pm.WordDistribution(found.ids.to(device), found.probs.to(device), found.words)


def listed(teacher: RunTeacher, data: Windows, batch: int) -> Iterator[pm.WordDistribution]:
    """Yield the distributions of a run for each text of the data, as `WordDistribution.save` takes them."""
    waiting: list[pm.WordDistribution] = []
    count, number = 0, 0
    lengths = data.lengths.tolist()
    for rows in torch.arange(len(data.sizes)).split(batch):
        found = teacher.targets(data[rows])
        if isinstance(found, Tensor):
            raise ValueError("a run of --loss entmax or sparsemax has lists of tokens; cross-entropy gives all tokens")
        waiting.append(found)
        count += len(found.ids)
        while number < len(lengths) and count >= lengths[number]:
            whole = _joined(waiting)
            size = lengths[number]
            yield pm.WordDistribution(whole.ids[:size], whole.probs[:size], whole.words)
            waiting = [pm.WordDistribution(whole.ids[size:], whole.probs[size:], whole.words)]
            count, number = count - size, number + 1


def _joined(parts: list[pm.WordDistribution]) -> pm.WordDistribution:
    longest = max(part.ids.shape[1] for part in parts)
    ids = [torch.nn.functional.pad(part.ids, (0, longest - part.ids.shape[1]), value=-1) for part in parts]
    probs = [torch.nn.functional.pad(part.probs, (0, longest - part.probs.shape[1])) for part in parts]
    return pm.WordDistribution(torch.cat(ids), torch.cat(probs), parts[0].words)


def _kind(spelled: list[str] | None) -> str:
    return "bytes" if spelled is None else f"{len(spelled)} pieces"
