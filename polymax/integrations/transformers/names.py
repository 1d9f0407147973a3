"""Names of attention implementations in Transformers.

Transformers accepts any registered name for any architecture, and does not save it with a model. `register` wraps two
of its functions: one refuses polymax's names for an architecture that would ignore them, the other writes them to
config.json, from which `from_pretrained` reads them. Other names are not changed.
"""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel

from polymax import mappings
from polymax.integrations.transformers.architectures import attention_mask, ignoring_classes
from polymax.integrations.transformers.forward import attention, layer_attention
from polymax.nn.adaptive import AdaptiveEntmax
from polymax.nn.attention_mapping import NAMED, Mapping, checked_mapping
from polymax.nn.block_routed import BlockRoutedAttention
from polymax.nn.length_scaling import LengthScaling

PREFIX = "polymax_"

# mappings that need no argument beside the scores
DEFAULTS: dict[str, Mapping] = {**NAMED}

# a function from the number of heads to the learned mapping of an attention module
Learned = Callable[[int], nn.Module]
LEARNED: dict[str, Learned] = {
    "adaptive_entmax": AdaptiveEntmax,
    "block_routed": BlockRoutedAttention,
    "length_scaled_entmax": LengthScaling,
    "length_scaled_softmax": partial(LengthScaling, mapping=mappings.softmax),
}

# by the whole name
learned_mappings: dict[str, Learned] = {}


def register(name: str | None = None, mapping: Mapping | None = None, *, learned: Learned | None = None) -> None:
    """Add the attention implementation `polymax_<name>`; without a name, add all mappings with their defaults.

    The name given here has no prefix, but the name given to a model has: `register("mine", fn)` adds "polymax_mine",
    for `AutoModel.from_config(config, attn_implementation="polymax_mine")`. A second registration replaces the first.
    Models return weights, with exact zeros, if called with `output_attentions=True`.

    `learned` is a function from the number of heads to a module with parameters, such as `pm.nn.AdaptiveEntmax`; every
    attention module gets one of its own by `use(model, "polymax_<name>")`.

    An architecture whose attention modules ignore such names is refused with a ValueError; `check(model)` says which
    modules of a model go through polymax. The name is saved with the model, in config.json.

    Example:
        >>> register()
        >>> register("entmax_1.3", pm.Tsallis(alpha=1.3))
        >>> from transformers import AttentionInterface
        >>> "polymax_sparsemax" in AttentionInterface(), "polymax_entmax_1.3" in AttentionInterface()
        (True, True)
    """
    if name is None:
        if mapping is not None or learned is not None:
            raise TypeError("name must be given with a mapping")
        for key, value in DEFAULTS.items():
            register(key, value)
        for key, make in LEARNED.items():
            register(key, learned=make)
        return
    if (mapping is None) == (learned is None):
        raise TypeError(f"register({name!r}, ...) must be given either mapping or learned")
    if not isinstance(name, str) or not name or name.startswith(PREFIX):
        raise ValueError(f"name must be a string without the prefix {PREFIX!r}, which is added; got {name!r}")
    whole = PREFIX + name
    if mapping is not None:
        AttentionInterface.register(whole, partial(attention, _stateless(checked_mapping(mapping))))
        learned_mappings.pop(whole, None)
    else:
        if not callable(learned):
            raise TypeError(f"learned must be a function of the number of heads; got {type(learned).__name__}")
        AttentionInterface.register(whole, partial(layer_attention, whole))
        learned_mappings[whole] = learned
    AttentionMaskInterface.register(whole, attention_mask)
    _extend_transformers()


def registered_names() -> list[str]:
    """The registered names with their prefix, as models take them."""
    return sorted(key for key in AttentionInterface().valid_keys() if key.startswith(PREFIX))


def checked_name(name: str) -> str:
    """The name if it is registered; otherwise a ValueError that lists the registered names."""
    if name in registered_names():
        return name
    if PREFIX + str(name) in registered_names():
        raise ValueError(f"the attention implementation {name!r} is named {PREFIX + name!r} in models")
    if str(name).startswith(PREFIX):
        own = name.removeprefix(PREFIX)
        raise ValueError(
            f"unknown attention implementation {name!r}: add it by polymax.integrations.transformers.register("
            f"{own!r}, mapping), without the prefix; there are {', '.join(registered_names())}"
        )
    raise ValueError(f"unknown attention implementation {name!r}; there are {', '.join(registered_names())}")


def saved_choice(config: PreTrainedConfig) -> str | dict[str, Any] | None:
    """The entry of config.json for a model's attention: a polymax name, a dictionary of names by part, or None."""
    name = config._attn_implementation
    own = name if isinstance(name, str) and name.startswith(PREFIX) else None
    parts = {key: getattr(config, key, None) for key in config.sub_configs}
    chosen = {key: saved_choice(part) for key, part in parts.items() if part is not None}
    return own if all(x == own for x in chosen.values()) else {"": own, **chosen}


def _stateless(mapping: Mapping) -> Mapping:
    if isinstance(mapping, nn.Module) and any(True for _ in mapping.parameters()):
        raise ValueError(
            f"mapping must have no parameters, which would belong to no model; got {type(mapping).__name__}: "
            "register(name, learned=...) takes a function from the number of heads to such a module"
        )
    return mapping


@functools.cache
def _extend_transformers() -> None:
    """Wrap the functions of Transformers, once for each process."""
    _extend_continuous_batching()
    accept, to_dict = PreTrainedModel.get_correct_attn_implementation, PreTrainedConfig.to_dict

    @functools.wraps(accept)
    def accept_or_refuse(self: PreTrainedModel, requested_attention: str | None, *args: Any, **options: Any) -> str:
        name = requested_attention
        if isinstance(name, str) and (name.startswith(PREFIX) or PREFIX + name in registered_names()):
            classes = ignoring_classes(type(self))
            if classes and checked_name(name):
                raise ValueError(
                    f"{type(self).__name__} cannot have {name!r}: its attention ({', '.join(classes)}) takes no "
                    "implementation by name and would not change. Choose another architecture, or, if it is a "
                    "part of the model, name the other parts alone: attn_implementation={'text_config': ...}"
                )
            checked_name(name)
        return accept(self, requested_attention, *args, **options)

    @functools.wraps(to_dict)
    def to_dict_with_attention(self: PreTrainedConfig) -> dict[str, Any]:
        fields = to_dict(self)
        choice = saved_choice(self)
        return fields if choice is None else {**fields, "attn_implementation": choice}

    PreTrainedModel.get_correct_attn_implementation = accept_or_refuse  # type: ignore[method-assign]
    PreTrainedConfig.to_dict = to_dict_with_attention  # type: ignore[method-assign]


def _extend_continuous_batching() -> None:
    """Make continuous batching accept polymax's names: polymax's attention reads its pages."""
    try:
        from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
    except ImportError:
        return
    switch = getattr(ContinuousBatchingManager, "switch_to_cb_friendly_attn", None)
    if switch is None:
        return

    @functools.wraps(switch)
    def switch_unless_ours(self: Any, model: Any, *args: Any, **options: Any) -> None:
        name = model.config._attn_implementation
        if not (isinstance(name, str) and name.startswith(PREFIX)):
            switch(self, model, *args, **options)

    ContinuousBatchingManager.switch_to_cb_friendly_attn = switch_unless_ours  # type: ignore[method-assign]
