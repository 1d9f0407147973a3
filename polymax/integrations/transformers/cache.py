"""A cache for `generate` that keeps boxes of keys, so that attention need not read pages that have no weight."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from polymax.nn.key_value_cache import KeyValueCache

# the attribute of keys in which `forward.attention` finds their boxes
BOXES = "polymax_boxes"


class BoxedLayer(DynamicLayer):
    """The keys and values of a layer, which grow without being copied at each token, with boxes of 64 keys."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self.cache = KeyValueCache()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.cache.append(key_states, value_states)
        return self._views()

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove must be a negative integer, or 0; got {tokens_to_remove}")
        if self.is_initialized and tokens_to_remove:
            self.cache.crop(max(self.cache.length + tokens_to_remove, 0))
            self._views()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.get_seq_length() > 0:
            self.batch_select_indices(torch.arange(len(self.cache.keys), device=self.device).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.get_seq_length() > 0:
            self.cache.select(indices.to(self.device))
            self._views()

    def _views(self) -> tuple[Tensor, Tensor]:
        self.keys, self.values = self.cache.keys, self.cache.values
        setattr(self.keys, BOXES, self.cache.boxes)
        return self.keys, self.values


class BoxedCache(DynamicCache):
    """Transformers' DynamicCache, whose layers without a window keep boxes of keys: for models of long contexts.

    On CUDA, models with an attention `polymax_sparsemax`, `polymax_entmax` or a learned one then leave out the pages of
    keys that cannot have weight. What is generated does not depend on it.

    Example:
        >>> from polymax.integrations.transformers import register
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> register()
        >>> sizes = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model = LlamaForCausalLM._from_config(LlamaConfig(**sizes), attn_implementation="polymax_entmax")
        >>> tokens, cache = torch.tensor([[3, 4, 5]]), BoxedCache(config=model.config)
        >>> boxed = model.generate(tokens, max_new_tokens=2, do_sample=False, past_key_values=cache)
        >>> torch.equal(boxed, model.generate(tokens, max_new_tokens=2, do_sample=False))
        True
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.layers = [BoxedLayer() if type(layer) is DynamicLayer else layer for layer in self.layers]
        if self.layer_class_to_replicate is DynamicLayer:
            self.layer_class_to_replicate = BoxedLayer
