"""Trainer on a model that `tp_plan` divides, for 20 steps, and Accelerate with DeepSpeed's exchanges.

Each returns a sentence for each loss that is not the one of one process.
"""

import copy
import os
import sys
import tempfile
import warnings
from contextlib import contextmanager
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from tests.distributed.trainings import (
    ROWS,
    STEPS,
    TOKENS,
    batches,
    differences,
    language_model,
    mean,
    optimizer,
    words_alone,
)


def trainer_tensor_parallel(folder):
    """Trainer on a model of `load(path, tp_plan="auto")`, whose last layer is divided by words, with `EntmaxLoss`."""
    import transformers

    from polymax.integrations.transformers import EntmaxLoss, load

    class Noted(transformers.Trainer):
        losses: list

        def _get_train_sampler(self, *args):
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def create_optimizer(self, *args):
            self.optimizer = self.optimizer or optimizer(self.model)
            return self.optimizer

        def training_step(self, *args, **options):
            loss = super().training_step(*args, **options)
            self.losses.append(loss)
            return loss

    if dist.get_rank() == 0:
        language_model().save_pretrained(folder)
    dist.barrier()
    expected, whole = words_alone(EntmaxLoss)
    rows = [{"input_ids": row, "labels": row} for batch in batches() for row in batch]
    with tempfile.TemporaryDirectory() as out, warnings.catch_warnings(), _on_a_cpu():
        warnings.simplefilter("ignore")
        module = load(folder, transformers.AutoModelForCausalLM, tp_plan="auto").train()
        arguments = transformers.TrainingArguments(
            output_dir=out, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", max_steps=STEPS,
            per_device_train_batch_size=ROWS, lr_scheduler_type="constant", max_grad_norm=0.0, logging_strategy="no",
        )  # fmt: skip
        made = Noted(module, arguments, train_dataset=rows, compute_loss_func=EntmaxLoss(module))
        made.losses = []
        made.train()
    said = differences("trainer tensor parallel", mean(torch.stack(made.losses)), expected)
    trained = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in module.named_parameters()}
    for name, p in whole.named_parameters():
        if not torch.allclose(trained[name], p, rtol=1e-3, atol=1e-4):
            said.append(f"{name} differs by {float((trained[name] - p).abs().max()):.1e} after the training")
    return said


@contextmanager
def _on_a_cpu():
    """Let Accelerate take a `ParallelismConfig` on processes of a CPU, which it refuses by the name of their kind."""
    from accelerate import ParallelismConfig

    with mock.patch.object(ParallelismConfig, "_validate_accelerator", return_value=None):
        yield


def accelerate_exchanges():
    """Accelerate's `ParallelismConfig(sp_backend="deepspeed")`: its wrapper, engine, and batches cut by tokens.

    Rows hold documents, whose positions begin again. Losses of 20 steps are those of one process.
    """
    packed = torch.tensor([0, 1, 2, 3, 0, 1])
    whole = language_model()
    for name, p in whole.named_parameters():
        if "polymax" in name:
            nn.init.normal_(p)
    # before the wrapper takes the place of the attention
    expected = _of_one_process(copy.deepcopy(whole), packed)
    accelerator = _with_exchanges()
    # the loaders of all processes take turns: each has batches of its own
    own = batches()[dist.get_rank() :: dist.get_world_size(), :, :TOKENS].flatten(0, 1)
    rows = [{"input_ids": row, "labels": row, "position_ids": packed} for row in own]
    given = torch.utils.data.DataLoader(rows, batch_size=ROWS)
    model, steps, loader = accelerator.prepare(whole, optimizer(whole), given)
    losses, said = [], []
    for batch in loader:
        if batch["input_ids"].shape != (ROWS, TOKENS // dist.get_world_size()):
            said.append(f"a process has {tuple(batch['input_ids'].shape)} tokens")
        loss = _of_tokens(model(batch["input_ids"], position_ids=batch["position_ids"]).logits, batch["input_ids"])
        # the engine adds up gradients over the processes of a sequence
        accelerator.backward(loss)
        steps.step()
        steps.zero_grad()
        losses.append(loss.detach())
    return [*said, *differences("exchanges", mean(torch.stack(losses)) * dist.get_world_size(), expected)]


def _of_one_process(module, packed):
    losses, steps = [], optimizer(module)
    for words in batches()[..., :TOKENS]:
        loss = _of_tokens(module(words, position_ids=packed.expand(ROWS, -1)).logits, words)
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def _of_tokens(logits, words):
    """The part of these tokens in the mean loss of all, each token to be said again."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten(), reduction="sum") / (ROWS * TOKENS)


def _with_exchanges():
    """An accelerator for DeepSpeed's exchanges over heads, with polymax's attention inside of them."""
    import accelerate
    import deepspeed  # noqa: F401
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import DeepSpeedPlugin, DeepSpeedSequenceParallelConfig, ParallelismConfig

    # otherwise it compiles an operator that nothing here uses
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    # the name is checked when the object is made, and not afterwards
    told = DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=True)
    told.sp_attn_implementation = "polymax_adaptive_entmax"
    parallel = ParallelismConfig(sp_backend="deepspeed", sp_size=dist.get_world_size(), sp_handler=told)
    config = {"train_micro_batch_size_per_gpu": ROWS, "gradient_accumulation_steps": 1}
    # Accelerate would clip gradients at 1
    config |= {"zero_optimization": {"stage": 0}, "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0}
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    return accelerate.Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config), parallelism_config=parallel)
