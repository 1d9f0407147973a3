"""Trainings of 20 steps on two processes, each by a plain loop, Accelerate, Lightning and Trainer.

A function trains in this process alone, then together with the others, and returns a sentence for each step whose loss
differs. Batches are divided: each process has half of the rows, or, under tensor parallelism, all of them.
"""

import logging
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

import polymax as pm
from tests.distributed.checks import mesh_of

STEPS, ROWS, TOKENS, WORDS, SIZE = 20, 8, 6, 13, 8
CLOSE = 1e-6


class Words(nn.Module):
    """A model of words: sparse attention whose alpha is learned, and the loss of a last layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.attention = pm.nn.MultiheadAttention(SIZE, 4, batch_first=True, mapping=pm.nn.AdaptiveEntmax(4))
        self.norm = nn.LayerNorm(SIZE)
        self.head = pm.nn.LinearEntmaxLoss(SIZE, WORDS)

    def forward(self, words):
        x = self.embedding(words[:, :-1])
        heads, _ = self.attention(x, x, x, is_causal=True, need_weights=False)
        return self.head(self.norm(x + heads), words[:, 1:])


def model():
    torch.manual_seed(1)
    return Words()


def batches():
    """(STEPS, ROWS, TOKENS + 1) words, the same on all processes."""
    return torch.randint(WORDS, (STEPS, ROWS, TOKENS + 1), generator=torch.Generator().manual_seed(2))


def part(batch):
    """The rows of this process."""
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def optimizer(module):
    return torch.optim.SGD(module.parameters(), 0.2, momentum=0.9)


def trained(module, rows, backward=torch.Tensor.backward, steps=None):
    """The loss of each step of a plain loop, as this process has it."""
    steps, losses = optimizer(module) if steps is None else steps, []
    for batch in batches():
        steps.zero_grad()
        loss = module(rows(batch))
        backward(loss)
        steps.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def alone():
    return trained(model(), lambda batch: batch)


def mean(losses):
    """Losses of the parts of each batch, averaged over processes."""
    total = losses.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def differences(name, found, expected):
    off = (found - expected).abs()
    said = [f"{name}: step {k} has {float(found[k])}, not {float(expected[k])}" for k in (off > CLOSE).nonzero()[:2, 0]]
    return said if float(expected[-1]) < float(expected[0]) else [*said, f"{name}: nothing was learned"]


def sharded(module):
    for inner in (module.attention, module.head, module):
        fully_shard(inner, mesh=mesh_of(dist.get_world_size()))
    return module


def divided(module):
    plan = {"attention": pm.distributed.attention_plan(), "head": pm.distributed.words_plan()}
    return parallelize_module(module, mesh_of(dist.get_world_size()), plan)


def plain_loops():
    expected = alone()
    said = differences("ddp", mean(trained(DistributedDataParallel(model()), part)), expected)
    said += differences("fsdp", mean(trained(sharded(model()), part)), expected)
    tensor_parallel = trained(divided(model()), lambda batch: batch)
    said += differences("tensor parallel", tensor_parallel, expected)
    return said + differences("all processes", mean(tensor_parallel), expected)


def accelerate():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    expected, said = alone(), []
    for name, wrap in (("ddp", None), ("fsdp", sharded), ("tensor parallel", divided)):
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        accelerator = Accelerator(cpu=True)
        assert accelerator.num_processes == dist.get_world_size()
        if wrap is None:
            module, steps = accelerator.prepare(*_with_optimizer(model()))
        else:
            # a module that torch has divided already is not to be wrapped once more
            module = wrap(model())
            steps = accelerator.prepare_optimizer(optimizer(module))
        rows = part if wrap is not divided else (lambda batch: batch)
        found = mean(trained(module, rows, accelerator.backward, steps))
        said += differences(f"accelerate {name}", found, expected)
    return said


def _with_optimizer(module):
    return module, optimizer(module)


def lightning():
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

    class Module(LightningModule):
        def __init__(self, wrap, rows):
            super().__init__()
            self.model, self.wrap, self.rows, self.losses = model(), wrap, rows, []

        def configure_model(self):
            if self.wrap is not None:
                self.model, self.wrap = self.wrap(self.model), None

        def configure_optimizers(self):
            return optimizer(self)

        def train_dataloader(self):
            return torch.utils.data.DataLoader([self.rows(batch) for batch in batches()], batch_size=None)

        def training_step(self, batch):
            loss = self.model(batch)
            self.losses.append(loss.detach())
            return loss

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    expected, said = alone(), []
    for name, wrap, rows in (("ddp", None, part), ("fsdp", sharded, part), ("tensor parallel", divided, lambda b: b)):
        places = {"data_parallel_size": 1, "tensor_parallel_size": dist.get_world_size()}
        strategy = ModelParallelStrategy(**places) if wrap else DDPStrategy(process_group_backend="gloo")
        module = Module(wrap, rows)
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            Trainer(
                accelerator="cpu",
                devices=dist.get_world_size(),
                strategy=strategy,
                plugins=[TorchElasticEnvironment()],
                max_epochs=1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                use_distributed_sampler=False,
                default_root_dir=folder,
            ).fit(module)
        said += differences(f"lightning {name}", mean(torch.stack(module.losses)), expected)
    return said


def language_model(tied=False):
    """A small model of Transformers whose attention has a learned alpha for each head."""
    import transformers

    from polymax.integrations.transformers import register, use

    transformers.logging.set_verbosity(logging.ERROR)
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, intermediate_size=24, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.2,
        tie_word_embeddings=tied,
    )  # fmt: skip
    found = transformers.LlamaForCausalLM(config)
    register()
    use(found, "polymax_adaptive_entmax")
    return found.train()


def words_alone(loss_of, tied=False):
    """The losses of a plain loop over a model of Transformers, in this process alone."""
    module = language_model(tied)
    loss, steps, losses = loss_of(module), optimizer(module), []
    for batch in batches():
        steps.zero_grad()
        value = loss(module(batch), batch)
        value.backward()
        steps.step()
        losses.append(value.detach())
    return torch.stack(losses), module


def trainer():
    """Trainer with `EntmaxLoss`, under DDP, and on a model that fully_shard has divided, with the last layer a unit."""
    import transformers

    from polymax.integrations.transformers import EntmaxLoss

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

    expected, _ = words_alone(EntmaxLoss)
    rows = [{"input_ids": row, "labels": row} for batch in batches() for row in batch]
    said = []
    for name in ("ddp", "fsdp"):
        module = language_model()
        loss = EntmaxLoss(module)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arguments = transformers.TrainingArguments(
                output_dir=folder, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", max_steps=STEPS,
                per_device_train_batch_size=ROWS // dist.get_world_size(), lr_scheduler_type="constant",
                max_grad_norm=0.0, logging_strategy="no",
            )  # fmt: skip
            if name == "fsdp":
                module = _sharded_layers(module)
            made = Noted(module, arguments, train_dataset=rows, compute_loss_func=loss)
            made.losses = []
            if name == "fsdp":
                # torch has divided the model: it is not to be wrapped in DDP
                made.accelerator.prepare_model = lambda module, **options: module
            made.train()
        said += differences(f"trainer {name}", mean(torch.stack(made.losses)), expected)
    return said


def _sharded_layers(module):
    mesh = mesh_of(dist.get_world_size())
    for inner in (*module.model.layers, module.lm_head, module):
        fully_shard(inner, mesh=mesh)
    return module


def sharded_heads():
    """`EntmaxLoss` under fully_shard: the last layer a unit, within the root, and with the embedding's weight."""
    from polymax.integrations.transformers import EntmaxLoss

    said = []
    layers = ["model.layers.0", "model.layers.1"]
    for name, units, tied in (
        ("a unit", ["lm_head"], False),
        ("the root", [], False),
        ("the root, beside layers", layers, False),
        ("the root, tied", layers, True),
        ("a unit with the embedding", [("model.embed_tokens", "lm_head")], True),
    ):
        expected, _ = words_alone(EntmaxLoss, tied)
        module = language_model(tied)
        loss = EntmaxLoss(module)
        for unit in (*units, ""):
            found = [module.get_submodule(u) for u in ((unit,) if isinstance(unit, str) else unit)]
            fully_shard(found if len(found) > 1 else found[0], mesh=mesh_of(dist.get_world_size()))
        steps, losses = optimizer(module), []
        for batch in batches():
            steps.zero_grad()
            value = loss(module(part(batch)), part(batch))
            value.backward()
            steps.step()
            losses.append(value.detach())
        said += differences(f"last layer in {name}", mean(torch.stack(losses)), expected)
    module = language_model()
    loss = EntmaxLoss(module)
    fully_shard(module, mesh=mesh_of(dist.get_world_size()), reshard_after_forward=True)
    try:
        loss(module(part(batch)), part(batch))
        said.append("a weight that is sharded during the loss: no error")
    except RuntimeError as error:
        if "is sharded while the loss is computed" not in str(error):
            said.append(f"another error: {error}")
    return said


def tensor_parallel_model(folder):
    """A model of Transformers that `tp_plan` divides: logits, the loss of words, and gradients of each head's alpha."""
    import transformers

    from polymax.integrations.transformers import EntmaxLoss, load, use

    whole = language_model()
    for name, p in whole.named_parameters():
        if "polymax" in name:
            nn.init.normal_(p)
    if dist.get_rank() == 0:
        whole.save_pretrained(folder)
    dist.barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        split = load(folder, transformers.AutoModelForCausalLM, tp_plan="auto").train()
        plain = transformers.AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto", attn_implementation="sdpa")
    said, batch, slopes = [], batches()[0], []
    for module in (whole, split):
        module.zero_grad()
        loss = EntmaxLoss(module)
        value = loss(module(batch), batch)
        value.backward()
        loss.remove()
        logits = module(batch, labels=batch)
        found = {name: p.grad for name, p in module.named_parameters()}
        full = {name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in found.items()}
        slopes.append({"loss": value.detach(), "logits": logits.logits.detach(), **full})
    for name, expected in slopes[0].items():
        if not torch.allclose(slopes[1][name], expected, rtol=1e-4, atol=1e-5):
            said.append(f"{name} differs by {float((slopes[1][name] - expected).abs().max()):.1e}")
    use(plain, "polymax_adaptive_entmax")
    made = {tuple(p.shape) for name, p in plain.named_parameters() if "polymax" in name}
    return said if made == {(4,)} else [*said, f"alphas of {made}, not of all four heads"]


def exchanged_heads():
    """DeepSpeed's exchanges over heads: alphas of the process's heads, and documents that do not see each other."""
    import sys

    import deepspeed
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    # otherwise it compiles an operator that nothing here uses
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.comm.init_distributed("gloo")
    module = language_model()
    for name, p in module.named_parameters():
        if "polymax" in name:
            nn.init.normal_(p)
    ids = torch.randint(3, WORDS, (2, 8))
    again = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1]])
    cases = {"whole rows": torch.arange(8).expand(2, 8).clone(), "documents": again}
    expected = {name: _logits(module, ids, positions) for name, positions in cases.items()}
    UlyssesSPAttentionHF.register_with_transformers(
        module, "polymax_adaptive_entmax", dist.get_world_size(), micro_batch_size=len(ids)
    )
    own, said = slice(dist.get_rank() * 4, dist.get_rank() * 4 + 4), []
    for name, positions in cases.items():
        logits, slopes = _logits(module, ids[:, own], positions[:, own])
        if not torch.allclose(logits, expected[name][0][:, own], atol=1e-5):
            said.append(f"{name}: other logits")
        for key, g in slopes.items():
            # all processes add their gradients up, as trainers do
            dist.all_reduce(g)
            if not torch.allclose(g, expected[name][1][key], rtol=1e-3, atol=1e-4):
                said.append(f"{name}: gradient of {key}")
    return said


def _logits(module, ids, positions):
    module.zero_grad()
    logits = module(ids, position_ids=positions).logits
    logits.square().sum().backward()
    return logits.detach(), {name: p.grad.clone() for name, p in module.named_parameters()}
