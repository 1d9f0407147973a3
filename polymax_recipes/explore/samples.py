"""Models and attention that come with the explorer: python -m polymax_recipes.explore.samples [OUT].

A parser, a tagger of entities, and the attention of a small language model are trained on sentences of a grammar, in
some minutes on a CPU. The trained models are in the package, so that the page opens with examples.
"""

import json
import logging
import shutil
import sys
import tempfile
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import polymax as pm
from polymax_recipes.explore.attention_file import save_attention
from polymax_recipes.explore.grammar import Sentence, sentences
from polymax_recipes.training.digests import NAME, read_digests
from polymax_recipes.training.run import Config, Run

FOLDER = "samples"
# files of a run that are needed to use it
KEPT = ("config.json", "vocabulary.json", "weights.pt", "digests.json")
TRAIN, DEV = 1500, 100
SMALL = {"epochs": 2, "batch_size": 32, "lr": 0.006, "dropout": 0.2, "accelerator": "cpu", "layers": 1}
PARSER = {"hidden": 48, "embedding": 32, "characters": 12, "arcs": 48, "labels": 24, "projective": True}
TAGGER = {"hidden": 32, "embedding": 24, "characters": 12, "spelling": 16}
# the language model: width, heads, layers, steps, sentences of a text
WIDTH, HEADS, LAYERS, STEPS, JOINED = 48, 4, 3, 250, 6


def samples() -> tuple[list[Path], Path]:
    """The directories of the models that come with the package, the parser first, and the file of attention."""
    here = Path(str(files("polymax_recipes.explore").joinpath(FOLDER)))
    return [here / "parser", here / "tagger"], here / "attention.npz"


def make(out: Path) -> None:
    """Train all of it, and write it."""
    from polymax_recipes.training.fit import train

    out.mkdir(parents=True, exist_ok=True)
    parts = {"train": sentences(TRAIN, seed=0), "dev": sentences(DEV, seed=1)}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for task, name, ending, given in (("parse", "parser", "conllu", PARSER), ("tag", "tagger", "txt", TAGGER)):
            given_files: dict[str, Any] = {}
            for part, found in parts.items():
                file = place / f"{part}.{ending}"
                file.write_text("".join(_written(one, ending) for one in found), encoding="utf-8")
                given_files[part] = [file]
            reports = train(task, given_files, place / name, {**SMALL, **given})
            print(name, {key: round(value, 3) for key, value in reports["dev"].items()})
            (out / name).mkdir(exist_ok=True)
            for kept in KEPT:
                shutil.copy(place / name / kept, out / name / kept)
            forget_places(Run(out / name))
    write_attention(out / "attention.npz")


def forget_places(run: Run) -> None:
    """Reduce the paths of training files to their names, and update the digests of the files that are kept."""
    config = Config.read(run.config)
    files = {part: tuple(Path(file).name for file in given) for part, given in config.files.items()}
    replace(config, files=files).write(run.config)
    listed = {name: found for name, found in read_digests(run.path).items() if name in KEPT}
    (run.path / NAME).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")


def _written(sentence: Sentence, ending: str) -> str:
    return sentence.conllu() if ending == "conllu" else sentence.columns()


class Reader(nn.Module):
    """A causal language model whose attention is entmax with a learned alpha for each head.

    Shapes: tokens (b, n) -> scores of the next token (b, n, words), weights of each layer (b, heads, n, n)
    """

    def __init__(self, words: int, longest: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, WIDTH), nn.Embedding(longest, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * LAYERS))
        self.attention = nn.ModuleList(
            pm.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, mapping=pm.nn.AdaptiveEntmax(HEADS))
            for _ in range(LAYERS)
        )
        self.steps = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(LAYERS)
        )
        self.out = nn.Linear(WIDTH, words)

    def forward(self, tokens: Tensor, weights: bool = False) -> tuple[Tensor, list[Tensor]]:
        n = tokens.shape[1]
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        states, seen = self.words(tokens) + self.places(torch.arange(n)), []
        for k in range(LAYERS):
            x = self.norms[2 * k](states)
            found, one = self.attention[k](x, x, x, attn_mask=later, need_weights=weights, average_attn_weights=False)
            seen.append(one)
            states = states + found
            states = states + self.steps[k](self.norms[2 * k + 1](states))
        return self.out(states), seen


def write_attention(file: Path) -> None:
    """Train the language model, and write its attention over a text outside of the training data."""
    torch.manual_seed(0)
    texts = [_text(seed) for seed in range(600)]
    known = {word: k for k, word in enumerate(sorted({word for text in texts for word in text}))}
    shortest = min(map(len, texts))
    data = torch.tensor([[known[word] for word in text[:shortest]] for text in texts])
    model = Reader(len(known), shortest)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(STEPS):
        batch = data[torch.randint(len(data), (16,))]
        scores, _ = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("language model", round(loss.item(), 3))
    unseen = next(text for text in map(_text, range(10_000, 20_000)) if set(text) <= set(known))[:shortest]
    with torch.no_grad():
        _, weights = model(torch.tensor([[known[word] for word in unseen]])[:, :-1], weights=True)
    save_attention(file, weights, unseen[:-1])


def _text(seed: int) -> list[str]:
    return [word for sentence in sentences(JOINED, seed=1000 + seed) for word in sentence.words]


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / FOLDER)
