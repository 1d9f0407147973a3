"""Lightning's part of a training: steps, epochs and devices."""

import logging
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from rich.console import Console
from torch import Tensor
from torch.utils.data import DataLoader

from polymax_recipes.training.bars import Bar, Lines, say
from polymax_recipes.training.batches import Encoded, mixed, share, shuffled_batches, sorted_batches
from polymax_recipes.training.checkpoint import Checkpoints, check_checkpoint, write_tensors
from polymax_recipes.training.fully_sharded import FullySharded, shard, weights_of, whole
from polymax_recipes.training.log import write_log
from polymax_recipes.training.measured import mean
from polymax_recipes.training.monitor import monitor_of
from polymax_recipes.training.run import Config, Run, refused
from polymax_recipes.training.settings import Learning
from polymax_recipes.training.task import Alternating, Measured, Model, named

# columns of the log that are printed, beside those of dev
PRINTED = ("epoch", "train_loss", "best", "seconds")


class Data(NamedTuple):
    """Training data, the dev data, which choose the best epoch, and the number of tokens of each training example."""

    train: Encoded
    dev: Encoded
    tokens: Tensor | None = None
    # further measures of dev after an epoch, such as BLEU
    measures: Callable[[], dict[str, float]] | None = None


class Steps(LightningModule):
    """A model, its data and its optimiser as a module of Lightning."""

    def __init__(self, model: Model, data: Data, learning: Learning, workers: int = 0) -> None:
        super().__init__()
        self.model = model
        self.data = data
        self.learning = learning
        self.workers = workers
        self.sums: dict[str, dict[str, Tensor]] = {}
        # examples and tokens of the epoch, in this process
        self.amount: dict[str, int] = {}
        self.automatic_optimization = not isinstance(model, Alternating)
        self.restored = False

    def configure_model(self) -> None:
        if isinstance(strategy := self.trainer.strategy, FullySharded):
            shard(self.model, strategy.device_mesh["data_parallel"])

    def configure_optimizers(self) -> Any:
        if not self.model.learns:
            return None
        lr, weight_decay = self.learning.lr, self.learning.weight_decay
        if isinstance(self.model, Alternating):
            parts = self.model.parts()
            return [torch.optim.AdamW(part.parameters, part.rate * lr, weight_decay=weight_decay) for part in parts]
        return self.model.optimizer(lr, weight_decay)

    def configure_gradient_clipping(self, optimizer: Any, *limit: Any, **limits: Any) -> None:
        # a line search needs unclipped gradients
        if not self.model.whole:
            super().configure_gradient_clipping(optimizer, *limit, **limits)

    def on_train_epoch_start(self) -> None:
        self.model.start_epoch(self.trainer.current_epoch)

    def train_dataloader(self) -> Any:
        """Return the batches of the epoch, at its start."""
        # Lightning calls this first after a checkpoint was restored
        self.restored = True
        sizes, seed, epoch = self.data.train.sizes, self.learning.seed, self.trainer.current_epoch
        if self.model.whole:
            batches = sorted_batches(sizes, len(sizes))
        else:
            batches = shuffled_batches(sizes, self.learning.batch_size, seed, epoch)
        own = share(batches, self.global_rank, self.trainer.world_size)
        rows = torch.cat(own)
        self.amount = {"examples": len(rows)}
        if self.data.tokens is not None:
            self.amount["tokens"] = int(self.data.tokens[rows].sum())
        return self._loader(self.data.train, own)

    def val_dataloader(self) -> Any:
        sizes, processes = self.data.dev.sizes, self.trainer.world_size
        if len(sizes) < processes:
            raise ValueError(f"--dev must have an example for each of {processes} processes; got {len(sizes)}")
        # every example exactly once, unlike in training, since measures count them
        rows = sizes.argsort(stable=True)[self.global_rank :: processes]
        return self._loader(self.data.dev, list(rows.split(self.learning.batch_size)))

    def _loader(self, data: Encoded, batches: list[Tensor]) -> Any:
        # a separate generator: draws from the global one, at other times in a resumed run, would change dropout
        own = torch.Generator()
        return DataLoader(data, None, sampler=batches, generator=own, num_workers=self.workers)  # type: ignore[arg-type]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.learning.decay == "linear":
            # a function of the step alone, so that a resumed run needs no state
            epochs = self.trainer.current_epoch + batch_idx / self.trainer.num_training_batches
            for optimizer in self.trainer.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = optimizer.defaults["lr"] * (1 - epochs / (self.trainer.max_epochs or 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        if isinstance(self.model, Alternating):
            self._take_turns(self.model.turns(batch))
            return None
        loss = self._mean_loss(self._add_to_sums("train", self.model.loss(batch)))
        return loss if self.model.learns else None

    def _take_turns(self, turns: Iterator[Measured]) -> None:
        first, second = cast(list[Any], self.optimizers())
        self._step(first, self._mean_loss(self._add_to_sums("train", next(turns))))
        for measured in turns:
            total, count = self._add_to_sums("train", measured)["turn"]
            self._step(second, total / count)

    def _step(self, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        if self.learning.clip:
            self.clip_gradients(optimizer, self.learning.clip, "norm")
        optimizer.step()

    def _mean_loss(self, measured: Measured) -> Tensor:
        total, count = measured["loss"]
        loss = total / count
        self.log("loss", loss, prog_bar=True, batch_size=1)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._add_to_sums("dev", self.model.loss(batch))

    def _add_to_sums(self, part: str, measured: Measured) -> Measured:
        sums = self.sums.setdefault(part, {})
        for name, pair in measured.items():
            pair_sum = torch.stack([number.detach().double() for number in pair])
            sums[name] = sums[name] + pair_sum if name in sums else pair_sum
        return measured

    def means(self, part: str) -> dict[str, float]:
        """Return the means of all measures on a part of the data since the last call, over all processes."""
        sums = self.sums.pop(part, {})
        totals = {name: self.trainer.strategy.reduce(pair, reduce_op="sum").tolist() for name, pair in sums.items()}
        return {f"{part}_{name}": mean(name, *pair) for name, pair in totals.items()}

    @torch.no_grad()
    def further_measures(self) -> dict[str, float]:
        """Return measures of dev other than means over its batches."""
        if self.data.measures is None:
            return {}
        training = self.model.training
        self.model.eval()
        with whole(self.model):
            found = {f"dev_{name}": value for name, value in self.data.measures().items()}
        self.model.train(training)
        return found

    def speeds(self, seconds: float) -> dict[str, float]:
        """Examples and tokens of the epoch by second, of all processes."""
        amounts = torch.tensor(list(self.amount.values()), dtype=torch.float64, device=self.device)
        totals = self.trainer.strategy.reduce(amounts, reduce_op="sum").tolist()
        return {f"{name}_per_second": round(total / seconds, 1) for name, total in zip(self.amount, totals)}


class Record(Callback):
    """The record of each epoch: it writes log.csv and the best weights.pt, and stops the training if needed.

    The random numbers of an epoch are a function of seed, epoch and process, so that a resumed run continues as if it
    had not stopped.
    """

    def __init__(self, run: Run, config: Config) -> None:
        self.run = run
        self.seed = config.learning.seed
        self.patience = config.running.patience
        self.monitor = monitor_of(named(config.task), config.learning.monitor)
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
        # wait until the device has finished the steps
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
        self.trained = perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Steps)
        means = {**pl_module.means("train"), **pl_module.means("dev"), **pl_module.further_measures()}
        self.check_loss(means, trainer.current_epoch + 1)
        seconds, dev_seconds = self.trained - self.began, perf_counter() - self.trained
        times = {"seconds": round(seconds, 3), "seconds_of_dev": round(dev_seconds, 3), **pl_module.speeds(seconds)}
        row = {"epoch": trainer.current_epoch + 1, "step": trainer.global_step, **means}
        self.rows.append({**row, "best": 0, **times})
        self.rows[-1]["best"] = int(self.best == len(self.rows) - 1)
        weights = weights_of(pl_module.model) if self.rows[-1]["best"] else None
        if trainer.is_global_zero:
            self.write(pl_module, weights)
        trainer.should_stop = self.exhausted
        for logger in trainer.loggers:
            logger.log_metrics(means, trainer.global_step)

    def check_loss(self, means: dict[str, float], epoch: int) -> None:
        """Raise a ValueError if a loss is NaN: such a loss stays NaN, and this epoch is not stored."""
        for name in ("train_loss", "dev_loss"):
            if isnan(means[name]):
                kept = f"{self.run.path} keeps the best epoch before it" if self.rows else "no epoch is kept"
                advice = "a new run with a smaller --lr may do better"
                raise ValueError(f"{name} of epoch {epoch} is NaN, so training ends here; {kept}, and {advice}")

    @property
    def best(self) -> int:
        """The place of the best epoch in the log."""
        return self.monitor.best(self.rows)

    @property
    def exhausted(self) -> bool:
        """Return True if the monitored measure has not improved for as many epochs as patience allows."""
        return 0 < self.patience <= len(self.rows) - 1 - self.best if self.rows else False

    def write(self, module: "Steps", weights: dict[str, Any] | None) -> None:
        """Write the log, print a line, and write the weights if they are the best."""
        write_log(self.run.log, self.rows)
        if weights is not None:
            write_tensors(weights, self.run.weights)
        shown = {name: value for name, value in self.rows[-1].items() if name in PRINTED or name.startswith("dev_")}
        text = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
        # a bar makes room for lines that are printed above it
        write = module.print if module.trainer.progress_bar_callback else say
        if len(self.rows) == 1:
            write(self.monitor.told(self.rows[0]))
        write(text)


def make_trainer(steps: Steps, run: Run, config: Config) -> Trainer:
    """The Trainer of a run; a ValueError if its devices are missing or its checkpoint does not fit."""
    running, learning = config.running, config.learning
    if not steps.automatic_optimization and running.devices * running.nodes > 1:
        raise ValueError("--devices and --nodes must be 1 where two parts of a model learn in turns")
    processes, fsdp = running.devices * running.nodes, running.strategy == "fsdp"
    if fsdp and (steps.model.whole or not steps.model.learns or not steps.automatic_optimization):
        raise ValueError("--strategy must not be fsdp for a model that does not learn by steps of one optimizer")
    if run.last.is_dir() and not fsdp:
        raise ValueError(f"--strategy must be fsdp, which has written {run.last}; --devices may be any number")
    if run.last.exists():
        check_checkpoint(steps, run.last)
    # runs after all other callbacks, so that the checkpoint of an epoch includes its record
    checkpoint = ModelCheckpoint(run.path, filename="last", enable_version_counter=False, save_on_train_epoch_end=True)
    callbacks: list[Callback] = [Record(run, config), checkpoint]
    terminal = Console().is_terminal
    with quiet():
        try:
            return Trainer(
                accelerator=running.accelerator,
                devices=running.devices,
                num_nodes=running.nodes,
                strategy=FullySharded(processes) if fsdp else running.strategy,
                precision=running.precision,  # type: ignore[arg-type]
                max_epochs=running.epochs if steps.model.learns else 1,
                # models with alternating parts clip each part themselves
                gradient_clip_val=(learning.clip or None) if steps.automatic_optimization else None,
                callbacks=[*callbacks, Bar() if terminal else Lines()],
                plugins=[] if fsdp else [Checkpoints()],
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
            with blame_checkpoint(steps, run.last):
                trainer.fit(steps, ckpt_path=run.last if run.last.exists() else None)
        except SystemExit:
            # Lightning turns Ctrl-C into SystemExit
            raise KeyboardInterrupt from None
        except MisconfigurationException as error:
            raise ValueError(str(error).strip().splitlines()[0]) from error


@contextmanager
def blame_checkpoint(steps: Steps, last: Path) -> Iterator[None]:
    """Turn an error before the first step of a resumed run into an error that names the checkpoint."""
    try:
        yield
    except (OSError, SystemExit):
        raise
    except Exception:
        if steps.restored or not last.exists():
            raise
        with refused(last, "a checkpoint of this run"):
            raise


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Lightning's advice on choices made here."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        # forking strategies are only used on request
        warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
        try:
            yield
        finally:
            logger.setLevel(level)
