"""Progress of an epoch: Lightning's bar on a terminal, elsewhere a line every half minute."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from polymax_recipes.training.progress import Clock


class Bar(RichProgressBar):
    """Lightning's bar, without the last letters of the name of a folder."""

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        return {name: value for name, value in metrics.items() if name != "v_num"}


class Lines(Callback):
    """A line now and then within long epochs."""

    def __init__(self) -> None:
        self.clock = Clock()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.clock.restart()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *step: Any) -> None:
        if trainer.is_global_zero and self.clock.due():
            loss = trainer.callback_metrics.get("loss")
            told = "" if loss is None else f", loss {float(loss):.4g}"
            say(f"epoch {trainer.current_epoch + 1}, step {step[-1] + 1} of {trainer.num_training_batches}{told}")

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *step: Any) -> None:
        if trainer.is_global_zero and self.clock.due():
            # outputs, batch, its number, and that of the loader
            say(f"epoch {trainer.current_epoch + 1}, batch {step[2] + 1} of {trainer.num_val_batches[0]} of dev")


def say(text: str) -> None:
    """Print a line and flush it, for readers of files and pipes."""
    print(text, flush=True)
