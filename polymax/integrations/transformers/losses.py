"""Fine-tuning by sparse losses under `transformers.Trainer`, and generation by sparse probabilities."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from transformers import LogitsProcessor, PreTrainedModel

from polymax import _check
from polymax.backend.function import autocasts
from polymax.distributions.words import WordDistribution
from polymax.losses.linear import linear_entmax_loss
from polymax.mappings import entmax
from polymax.sharding.placements import is_sharded


class _Labels(NamedTuple):
    """The labels of a batch, and how their losses are reduced."""

    labels: Tensor | WordDistribution
    reduction: str


class _NoLogits(Function):
    """An empty tensor in the place of logits; DDP, which looks for unused parameters, finds these in its graph."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, *parameters: Tensor) -> Tensor:
        ctx.count = 1 + len(parameters)
        return states.new_empty((*states.shape[:-1], 0))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, ...]:
        return (None,) * ctx.count


class EntmaxLoss:
    """The entmax loss of a model's words, as Trainer takes it: `Trainer(..., compute_loss_func=EntmaxLoss(model))`.

    In training, the last layer of the model does not compute logits, and outputs have none: the loss takes the layer's
    inputs, and computes logits in blocks. In `evaluate` and `generate`, outputs have logits. The layer's weights, tied
    or not, do not change; `remove` restores the layer.

    With `shift`, for causal models, the state of a token predicts the label of the next token. Labels of -100 are left
    out. A pass over a few tokens finds out if the model scales or caps its logits.

    Labels may also be a teacher's: a dictionary of `ids` and `probs`, the words that can follow each token. Such lists
    are not shifted; a list of -1 is left out. A data collator puts them into the batch as `labels`.

    The loss is computed by a second call of the last layer, whose hooks run: `fully_shard`, DDP and a head that
    `tp_plan` divides by words, of which each process has some, give the loss and the gradients of one process.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model, tokens = LlamaForCausalLM(LlamaConfig(**sizes)), torch.tensor([[1, 4, 2]])
        >>> loss = EntmaxLoss(model, alpha=1.5)
        >>> loss(model.train()(tokens), labels=tokens).shape
        torch.Size([])
    """

    def __init__(self, model: PreTrainedModel, alpha: float = 1.5, *, shift: bool = True, **inputs: Any) -> None:
        _check.number(alpha, "alpha", "positive and finite", lambda v: 0 < v < torch.inf)
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ValueError(
                f"{type(model).__name__} must have a linear layer as get_output_embeddings(); got {type(head).__name__}"
            )
        self.alpha, self.shift, self.head = alpha, shift, head
        self._states: Tensor | None = None
        self._lower: torch.dtype | None = None
        # divided by words, not by fully_shard, whose parameters are whole inside of a forward pass
        self._by_words = is_sharded(head.weight) and not any(map(_fully_sharded, model.modules()))
        self._layer = head.forward
        head.forward = self._forward  # type: ignore[method-assign, assignment]
        try:
            self.scale, self.softcap = self._transformation(model, inputs)
        except BaseException:
            self.remove()
            raise

    def __call__(
        self, outputs: Any, labels: Tensor | Mapping[str, Tensor], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """The mean loss over labels, or the sum divided by `num_items_in_batch`, of all accumulated batches."""
        if labels is None:
            raise ValueError("labels must be given: a tensor of words, -100 for those that are left out")
        states, self._states = self._states, None
        if states is None:
            raise RuntimeError("the last layer of the model must have been called: the loss is that of its states")
        target: Tensor | WordDistribution
        if isinstance(labels, Mapping):
            ids, probs = (labels[name].to(states.device) for name in ("ids", "probs"))
            target = WordDistribution(ids, probs, len(self.head.weight))
        else:
            if self.shift:
                states, labels = states[..., :-1, :], labels[..., 1:]
            target = labels.to(states.device)
        reduction = "mean" if num_items_in_batch is None else "sum"
        # not a function beside the layer: fully_shard gathers the weight in hooks of the layer's call
        total = self.head(states, _Labels(target, reduction))
        logits = getattr(outputs, "logits", None)
        if isinstance(logits, Tensor) and logits.numel() == 0 and logits.requires_grad:
            # 0, by way of the outputs of the model: hooks on them begin the backward pass of fully_shard
            total = total + logits.sum()
        if num_items_in_batch is None:
            return total
        items = num_items_in_batch.to(total.device) if isinstance(num_items_in_batch, Tensor) else num_items_in_batch
        return total / items

    def remove(self) -> None:
        """Restore the last layer of the model."""
        self.head.__dict__.pop("forward", None)
        if getattr(self._layer, "__func__", None) is not type(self.head).forward:
            # a forward pass that was the layer's own before
            self.head.forward = self._layer  # type: ignore[method-assign]

    def _forward(self, states: Tensor, labels: "_Labels | None" = None) -> Tensor:
        """Return logits, or, in training, an empty tensor in their place; with labels, the loss."""
        if labels is not None:
            return self._loss(states, labels)
        self._states = states
        self._lower = torch.get_autocast_dtype(states.device.type) if autocasts(states.device) else None
        if not self.head.training:
            return self._layer(states)
        if is_sharded(self.head.weight):
            return states[..., :0]
        return _NoLogits.apply(states, *self.head.parameters(recurse=False))

    def _loss(self, states: Tensor, labels: "_Labels") -> Tensor:
        weight: Any = self.head.weight
        bias, target = self.head.bias, labels.labels
        lower = self._lower or weight.dtype
        # sums over a batch are kept in float32, products are those of the layer
        mixed = lower if lower in (torch.float16, torch.bfloat16) else None
        states = self.scale * (states if mixed is None else states.float())
        if is_sharded(weight):
            self._check_sharded()
            if isinstance(target, WordDistribution):
                raise TypeError("labels must be a tensor of words if the weight of the last layer is sharded by words")
            states, target = (_replicated(t, weight.device_mesh) for t in (states, target))
        with torch.autocast(states.device.type, dtype=mixed, enabled=mixed is not None):
            total = linear_entmax_loss(
                states, weight, target, bias, alpha=self.alpha, softcap=self.softcap, reduction=labels.reduction
            )
        return total.full_tensor() if is_sharded(total) else total  # type: ignore[attr-defined]

    def _check_sharded(self) -> None:
        """Refuse a weight that fully_shard has not gathered for the call of the last layer."""
        if not self._by_words:
            raise RuntimeError(
                "the weight of the last layer is sharded while the loss is computed: give the layer itself to "
                "fully_shard, or reshard_after_forward=False to the module that it is sharded with"
            )

    @torch.no_grad()
    def _transformation(self, model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[float, float | None]:
        """The factor and the cap that the model applies to the layer's logits."""
        training = model.training
        model.eval()
        try:
            given = inputs or {"input_ids": torch.arange(1, 5, device=self.head.weight.device).unsqueeze(0)}
            found = model(**given).logits.double()
            assert self._states is not None
            raw = self._layer(self._states).double()
        finally:
            self._states = None
            model.train(training)
        return scale_and_cap(model, found, raw)


def scale_and_cap(model: PreTrainedModel, found: Tensor, raw: Tensor) -> tuple[float, float | None]:
    """The factor and the cap that make the logits of a model from those of its last layer; ValueError if none do."""
    cap = getattr(model.config, "final_logit_softcapping", None)
    factor = float((raw * found).sum() / raw.square().sum())
    room = 2e-2 * float(found.abs().max())
    if found.shape == raw.shape and torch.allclose(found, factor * raw, rtol=2e-2, atol=room):
        # a factor that differs from 1 by rounding is 1
        return (1.0 if abs(factor - 1) < 5e-3 else factor), None
    capped = cap * torch.tanh(raw / cap) if cap else raw
    if cap and found.shape == raw.shape and torch.allclose(found, capped, rtol=2e-2, atol=room):
        return 1.0, float(cap)
    raise ValueError(f"{type(model).__name__} must have logits that are its last layer's, scaled or capped")


def _fully_sharded(module: nn.Module) -> bool:
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def _replicated(t: Tensor, mesh: Any) -> Any:
    """The DTensor of a tensor that all processes have."""
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(t, mesh, [Replicate()] * mesh.ndim, run_check=False)


class EntmaxLogitsProcessor(LogitsProcessor):
    """Scores of `generate` as logarithms of entmax probabilities: words of probability 0 are never drawn.

    `model.generate(..., do_sample=True, logits_processor=LogitsProcessorList([EntmaxLogitsProcessor(1.5)]))` draws from
    entmax itself; beams go by its log-probabilities.

    Example:
        >>> scores = EntmaxLogitsProcessor(alpha=2.0)(None, torch.tensor([[1.0, 0.5, -3.0]]))
        >>> scores.softmax(-1)
        tensor([[0.7500, 0.2500, 0.0000]])
    """

    def __init__(self, alpha: float = 1.5, temperature: float = 1.0) -> None:
        _check.number(alpha, "alpha", "positive and finite", lambda v: 0 < v < torch.inf)
        _check.number(temperature, "temperature", "positive and finite", lambda v: 0 < v < torch.inf)
        self.alpha, self.temperature = alpha, temperature

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        return entmax(scores.float() / self.temperature, self.alpha).log().to(scores.dtype)
