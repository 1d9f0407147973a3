"""Log-probabilities and entropies of tokens for the policy-gradient trainers of TRL, without logits in memory."""

from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from polymax import _check
from polymax.integrations.transformers.losses import scale_and_cap
from polymax.losses.linear import linear_log_prob
from polymax.sharding.placements import is_sharded

# labels of tokens that are left out
NOTHING = -100


@dataclass
class TokenLogProbs(ModelOutput):
    """The result of a model with a `LogProbHead`, under the names of TRL; entries of labels of -100 are 0.

    Shapes: log_probs, entropy and label_mask (batch, n - 1), the next token of each but the last; loss ()
    """

    loss: Tensor | None = None
    log_probs: Tensor | None = None
    entropy: Tensor | None = None
    label_mask: Tensor | None = None
    # what TRL's other trainers ask for
    log_sum_sq_probs: Tensor | None = None
    mean_logits: Tensor | None = None
    is_top1: Tensor | None = None
    aux_loss: Tensor | None = None


class LogProbHead:
    """`pm.linear_log_prob` as the last layer of a causal model, in the form in which TRL's trainers call it.

        trainer = GRPOTrainer(model, ...)
        LogProbHead(trainer.model, trainer.temperature)

    `model(..., labels=labels, fused_lm_head=True)`, as GRPOTrainer and RLOOTrainer of TRL 1.16 call their models, then
    returns `TokenLogProbs`; other calls, such as those of `generate`, do not change. `per_token` has the form of
    earlier versions, which ask for log-probabilities of the last tokens. Only rows whose label is not -100 are
    computed. Scales and caps of logits are found by a pass over a few tokens.

    A model of PEFT is given as `model.get_base_model()`. ValueError if the last layer is not linear, or if logits are
    not its outputs, scaled or capped.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> head = LogProbHead(LlamaForCausalLM(LlamaConfig(**sizes)), temperature=0.7)
        >>> log_probs, entropy = head.per_token(torch.tensor([[1, 4, 2, 3]]), logits_to_keep=2)
        >>> log_probs.shape, entropy.shape
        (torch.Size([1, 2]), torch.Size([1, 2]))
    """

    def __init__(self, model: PreTrainedModel, temperature: float = 1.0) -> None:
        _check.number(temperature, "temperature", "positive and finite", lambda t: 0 < t < torch.inf)
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ValueError(
                f"{type(model).__name__} must have a linear layer as get_output_embeddings(); got {type(head).__name__}"
            )
        self.model, self.temperature = model, float(temperature)
        self._forward = model.forward
        self._own = "forward" in vars(model)
        self.scale, self.softcap = self._transformation()
        # `generate` reads the names of arguments from the signature
        model.forward = wraps(type(model).forward)(partial(self._called))

    def remove(self) -> None:
        """Restore the model's forward pass."""
        if self._own:
            self.model.forward = self._forward
        else:
            del self.model.forward

    def per_token(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, logits_to_keep: int | None = None, **inputs: Any
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the last `logits_to_keep` tokens, or of all but the first.

        Shapes: input_ids and attention_mask (batch, n); both results (batch, logits_to_keep), 0 at masked tokens
        """
        kept = input_ids.shape[1] - 1 if logits_to_keep is None else logits_to_keep
        if not 1 <= kept < input_ids.shape[1]:
            raise ValueError(f"logits_to_keep must be in [1, {input_ids.shape[1]}), the number of tokens; got {kept}")
        labels = input_ids.clone()
        labels[:, :-kept] = NOTHING
        if attention_mask is not None:
            labels[attention_mask == 0] = NOTHING
            inputs["attention_mask"] = attention_mask
        found = self._scored(labels[:, 1:], input_ids=input_ids, **inputs)
        assert found.log_probs is not None
        assert found.entropy is not None
        return found.log_probs[:, -kept:], found.entropy[:, -kept:]

    def _called(
        self,
        *args: Any,
        fused_lm_head: bool = False,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **inputs: Any,
    ) -> Any:
        named = {"labels": labels, "shift_labels": shift_labels, "num_items_in_batch": num_items_in_batch}
        given = {name: value for name, value in named.items() if value is not None}
        if not fused_lm_head:
            return self._forward(*args, **given, **inputs)
        if shift_labels is None and labels is None:
            raise ValueError("labels must be given with fused_lm_head=True: tokens, -100 for those that are left out")
        following = labels[:, 1:] if shift_labels is None and labels is not None else shift_labels
        found = self._scored(following, *args, **inputs)
        assert found.log_probs is not None
        assert found.label_mask is not None
        items = found.label_mask.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
        found.loss = -found.log_probs.sum() / items
        return found

    def _scored(self, following: Any, *args: Any, **inputs: Any) -> TokenLogProbs:
        """Log-probabilities and entropies of tokens, of which (batch, n) or (batch, n - 1) follow the states."""
        if inputs.get("output_router_logits") or getattr(self.model.config, "output_router_logits", False):
            raise ValueError("output_router_logits must be False: LogProbHead has no loss of routers")
        inputs["use_cache"] = False
        states = self.model.base_model(*args, **inputs).last_hidden_state[:, : following.shape[1]]
        head: Any = self.model.get_output_embeddings()
        weight, bias = (t.full_tensor() if is_sharded(t) else t for t in (head.weight, head.bias))
        following = following.to(states.device)
        there = following != NOTHING
        chosen = (self.scale * states[there]).to(weight.dtype)
        found = linear_log_prob(
            chosen, weight, following[there], bias, temperature=self.temperature, softcap=self.softcap, entropy=True
        )
        log_probs, entropy = (t.new_zeros(there.shape).masked_scatter(there, t) for t in found)
        return TokenLogProbs(log_probs=log_probs, entropy=entropy, label_mask=there)

    @torch.no_grad()
    def _transformation(self) -> tuple[float, float | None]:
        """The factor and the cap that the model applies to the last layer's logits."""
        training = self.model.training
        self.model.eval()
        try:
            head: Any = self.model.get_output_embeddings()
            tokens = torch.arange(1, 5, device=head.weight.device).unsqueeze(0)
            found = self._forward(input_ids=tokens).logits
            raw = head(self.model.base_model(input_ids=tokens).last_hidden_state)
        finally:
            self.model.train(training)
        return scale_and_cap(self.model, found.double(), raw.double())
