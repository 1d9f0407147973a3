"""Lightning's part of a training: steps, epochs, devices, logs and checkpoints."""

import csv
import logging
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf, isnan
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from rich.console import Console
from torch import Tensor
from torch.utils.data import DataLoader

from polymax.recipes.training.batches import Encoded, mixed, share, shuffled_batches, sorted_batches
from polymax.recipes.training.run import Config, Run, fitting, replaced, tensors
from polymax.recipes.training.settings import Learning
from polymax.recipes.training.task import Model

# columns of the log that are printed, beside those of dev
PRINTED = ("epoch", "train_loss", "seconds")


class Data(NamedTuple):
    """What is trained on, and what decides which epoch was best."""

    train: Encoded
    dev: Encoded


class Steps(LightningModule):
    """A model, its data and its optimiser, as the Trainer wants them."""

    def __init__(self, model: Model, data: Data, learning: Learning) -> None:
        super().__init__()
        self.model = model
        self.data = data
        self.learning = learning
        self.sums: dict[str, dict[str, Tensor]] = {}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.model.optimizer(self.learning.lr)

    def configure_gradient_clipping(self, optimizer: Any, *limit: Any, **limits: Any) -> None:
        # who compares values along a line needs their gradients as they are
        if not self.model.whole:
            super().configure_gradient_clipping(optimizer, *limit, **limits)

    def train_dataloader(self) -> Any:
        """Batches of the epoch: asked for at the start of each."""
        sizes, seed, epoch = self.data.train.sizes, self.learning.seed, self.trainer.current_epoch
        if self.model.whole:
            batches = sorted_batches(sizes, len(sizes))
        else:
            batches = shuffled_batches(sizes, self.learning.batch_size, seed, epoch)
        return self._loader(self.data.train, share(batches, self.global_rank, self.trainer.world_size))

    def val_dataloader(self) -> Any:
        sizes, processes = self.data.dev.sizes, self.trainer.world_size
        if len(sizes) < processes:
            raise ValueError(f"--dev must have an example for each of {processes} processes; got {len(sizes)}")
        # every example once, unlike those of the training: these are counted
        rows = sizes.argsort(stable=True)[self.global_rank :: processes]
        return self._loader(self.data.dev, list(rows.split(self.learning.batch_size)))

    def _loader(self, data: Encoded, batches: list[Tensor]) -> Any:
        # a generator of its own: it would draw from the one that drops entries, at moments that a resumed run has not
        return DataLoader(data, batch_size=None, sampler=batches, generator=torch.Generator())  # type: ignore[arg-type]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        measured = self._measured("train", batch)
        total, count = measured["loss"]
        loss = total / count
        self.log("loss", loss, prog_bar=True, batch_size=1)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._measured("dev", batch)

    def _measured(self, part: str, batch: Any) -> dict[str, tuple[Tensor, Tensor]]:
        measured = self.model.loss(batch)
        sums = self.sums.setdefault(part, {})
        for name, pair in measured.items():
            pair_sum = torch.stack([number.detach().double() for number in pair])
            sums[name] = sums[name] + pair_sum if name in sums else pair_sum
        return measured

    def means(self, part: str) -> dict[str, float]:
        """Means over all that was measured on a part since the last call, by all processes; and how much it was."""
        sums = self.sums.pop(part, {})
        totals = {name: self.trainer.strategy.reduce(pair, reduce_op="sum").tolist() for name, pair in sums.items()}
        means = {f"{part}_{name}": total / count for name, (total, count) in totals.items()}
        return {**means, f"{part}_count": totals["loss"][1]}


class Record(Callback):
    """What is known after each epoch: log.csv, weights.pt of the best, and whether to stop.

    The random numbers of an epoch are a function of seed, epoch and process, so that a run resumed at the start of an
    epoch goes on as if it had never stopped.
    """

    def __init__(self, run: Run, seed: int, patience: int) -> None:
        self.run = run
        self.seed = seed
        self.patience = patience
        self.rows: list[dict[str, float]] = []
        self.began = self.trained = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = state_dict["rows"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop = self.exhausted

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        seed = mixed(self.seed, trainer.current_epoch, trainer.global_rank)
        random.seed(seed)
        torch.manual_seed(seed)
        self.began = perf_counter()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.trained = perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Steps)
        means = {**pl_module.means("train"), **pl_module.means("dev")}
        speed = means.pop("train_count") / (self.trained - self.began)
        del means["dev_count"]
        seconds = perf_counter() - self.began
        row = {"epoch": trainer.current_epoch + 1, "step": trainer.global_step, **means}
        self.rows.append({**row, "seconds": round(seconds, 3), "units_per_second": round(speed, 1)})
        if trainer.is_global_zero:
            self.write(pl_module)
        trainer.should_stop = self.exhausted
        for logger in trainer.loggers:
            logger.log_metrics(means, trainer.global_step)

    @property
    def best(self) -> int:
        """The place of the row with the least loss; of the first where all are NaN."""
        losses = [row["dev_loss"] for row in self.rows]
        return min(range(len(losses)), key=lambda k: inf if isnan(losses[k]) else losses[k])

    @property
    def exhausted(self) -> bool:
        """Whether patience is."""
        return 0 < self.patience <= len(self.rows) - 1 - self.best if self.rows else False

    def write(self, module: "Steps") -> None:
        """The log, a line on the terminal, and the weights if they are the best."""
        replaced(self.run.log, lambda file: _write_csv(file, self.rows))
        if self.best == len(self.rows) - 1:
            replaced(self.run.weights, lambda file: torch.save(module.model.state_dict(), file))
        shown = {name: value for name, value in self.rows[-1].items() if name in PRINTED or name.startswith("dev_")}
        module.print("  ".join(f"{name} {value:.4g}" for name, value in shown.items()))


class Bar(RichProgressBar):
    """Lightning's bar, without the last letters of the name of a folder."""

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        return {name: value for name, value in metrics.items() if name != "v_num"}


def prepared(steps: Steps, run: Run, config: Config) -> Trainer:
    """The Trainer of a run; a ValueError where its devices are not there or its checkpoint does not fit."""
    running, learning = config.running, config.learning
    if run.last.exists():
        fitting(steps, tensors(run.last)["state_dict"], run.last)
    # after all other callbacks: the checkpoint of an epoch has its record
    checkpoint = ModelCheckpoint(run.path, filename="last", enable_version_counter=False, save_on_train_epoch_end=True)
    callbacks: list[Callback] = [Record(run, learning.seed, running.patience), checkpoint]
    terminal = Console().is_terminal
    with quiet():
        try:
            return Trainer(
                accelerator=running.accelerator,
                devices=running.devices,
                num_nodes=running.nodes,
                strategy=running.strategy,
                precision=running.precision,  # type: ignore[arg-type]
                max_epochs=running.epochs,
                gradient_clip_val=learning.clip or None,
                callbacks=[*callbacks, Bar()] if terminal else callbacks,
                logger=TensorBoardLogger(run.path, name=None, version=run.tensorboard.name),
                enable_progress_bar=terminal,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                use_distributed_sampler=False,
                reload_dataloaders_every_n_epochs=1,
            )
        except MisconfigurationException as error:
            raise ValueError(str(error).strip().splitlines()[0]) from error


def fit(trainer: Trainer, steps: Steps, run: Run) -> None:
    """Train to the end, from the last checkpoint if the run has one."""
    with quiet():
        try:
            trainer.fit(steps, ckpt_path=run.last if run.last.exists() else None)
        except SystemExit:
            # what Lightning makes of Ctrl-C
            raise KeyboardInterrupt from None
        except MisconfigurationException as error:
            raise ValueError(str(error).strip().splitlines()[0]) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without Lightning's advice on what is decided here."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        # a strategy that forks is one that was asked for
        warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
        try:
            yield
        finally:
            logger.setLevel(level)


def _write_csv(file: Path, rows: list[dict[str, float]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
