"""Models whose attention goes through polymax: which modules do, mappings that belong to them, saving and loading."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, PreTrainedConfig, PreTrainedModel

from polymax.integrations.transformers.architectures import calls_interface, has_own_attention, ignoring_classes
from polymax.integrations.transformers.forward import attention
from polymax.integrations.transformers.names import (
    DEFAULTS,
    LEARNED,
    PREFIX,
    checked_name,
    learned_mappings,
    register,
    registered_names,
    saved_choice,
)
from polymax.integrations.transformers.process_heads import sharing
from polymax.mappings import softmax


def check(model: PreTrainedModel, **inputs: Any) -> dict[str, str | None]:
    """The attention modules of a model by name, each with the implementation that it called, from one forward pass.

    None stands for a module that has attention of its own, and takes no implementation by name. A model without any
    module that goes through polymax is a ValueError. Without inputs, a few tokens are passed; models of images or sound
    need their inputs.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> register()
        >>> check(BertModel._from_config(BertConfig(**sizes), attn_implementation="polymax_sparsemax"))
        {'encoder.layer.0.attention.self': 'polymax_sparsemax'}
    """
    heads = _calls(model, inputs)
    found: dict[str, str | None] = {}
    for name, module in model.named_modules():
        if name in heads or _takes_another_implementation(module):
            found[name] = getattr(module, "config", model.config)._attn_implementation
        elif has_own_attention(type(module)):
            found[name] = None
    if not heads:
        classes = sorted({type(model.get_submodule(name)).__name__ for name in found}) or ["it has none"]
        raise ValueError(
            f"no attention of {type(model).__name__} goes through polymax ({', '.join(classes)}); its "
            f"attn_implementation is {model.config._attn_implementation!r}"
        )
    return found


def use(model: PreTrainedModel, name: str, **inputs: Any) -> dict[str, str | None]:
    """Give a model the attention implementation `name`, such as "polymax_sparsemax", and return what `check` does.

    If the mapping is learned, as in "polymax_adaptive_entmax", each attention module gets one of its own, for its
    number of heads, as `polymax_mapping`: its parameters are among those of the model, for optimizers, state_dicts and
    `save_pretrained`; `load` gives them back. Call it before the optimizer is made.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> register()
        >>> model = BertModel(BertConfig(**sizes))
        >>> use(model, "polymax_adaptive_entmax")
        {'encoder.layer.0.attention.self': 'polymax_adaptive_entmax'}
        >>> [name for name, _ in model.named_parameters() if "polymax" in name]
        ['encoder.layer.0.attention.self.polymax_mapping.logits']
    """
    checked_name(name)
    # Transformers only logs that it does not change such a model
    if classes := ignoring_classes(type(model)):
        raise ValueError(
            f"{type(model).__name__} cannot have {name!r}: its attention is its own ({', '.join(classes)})"
        )
    model.set_attn_implementation(name)
    for module in model.modules():
        if hasattr(module, "polymax_mapping"):
            del module.polymax_mapping
    model.config.__dict__.pop("polymax_heads", None)
    if name in learned_mappings:
        # from this, `load` makes the same modules
        model.config.polymax_heads = _calls(model, inputs)
        _add_mappings(model)
    return check(model, **inputs)


def load(pretrained: Any, model_class: Any = None, **options: Any) -> Any:
    """A model as `save_pretrained` wrote it, with the attention it had, and with its learned mappings.

    `from_pretrained` keeps the name of an implementation too, once `register` was called, but does not know of learned
    mappings. A mapping of one's own must be registered again under its name before. `model_class` is a class of
    Transformers, one of its Auto classes, or None for the class that was saved; options are those of `from_pretrained`.
    """
    if "attn_implementation" in options:
        raise TypeError("load gives a model the attention it was saved with; from_pretrained takes attn_implementation")
    for key in DEFAULTS:
        if PREFIX + key not in registered_names():
            register(key, DEFAULTS[key])
    for key in LEARNED:
        if PREFIX + key not in registered_names():
            register(key, learned=LEARNED[key])
    config = options.pop("config", None)
    if config is None:
        config, options = AutoConfig.from_pretrained(pretrained, return_unused_kwargs=True, **options)
    if saved_choice(config) is None:
        raise ValueError(
            f"config.json of {pretrained} names no attention of polymax: load the model by from_pretrained with "
            "attn_implementation='polymax_...', or give it to use(model, name)"
        )
    found = _class_of(config, model_class)
    if not getattr(config, "polymax_heads", None):
        return found.from_pretrained(pretrained, config=config, **options)
    model, report = _with_mappings(found).from_pretrained(
        pretrained, config=config, **{**options, "output_loading_info": True}
    )
    model.__class__ = found
    if missing := [key for key in report["missing_keys"] if ".polymax_mapping." in key]:
        raise ValueError(f"{pretrained} has no weights of learned mappings: {', '.join(sorted(missing))}")
    return (model, report) if options.get("output_loading_info") else model


def _class_of(config: PreTrainedConfig, given: Any) -> Any:
    """A class of models for a configuration."""
    if given is None:
        names = config.architectures or []
        if len(names) != 1 or not hasattr(transformers, names[0]):
            raise ValueError(f"model_class must be given: config.json names {names or 'no class'}")
        return getattr(transformers, names[0])
    if hasattr(given, "_model_mapping"):
        if type(config) not in given._model_mapping:
            raise ValueError(f"model_class must take {type(config).__name__}; got {given.__name__}")
        found = given._model_mapping[type(config)]
        if not isinstance(found, (list, tuple)):
            return found
        saved = [x for x in found if x.__name__ in (config.architectures or [])]
        return (saved or list(found))[0]
    return given


def _with_mappings(model: Any) -> Any:
    """A subclass of a model's class, whose instances have the mappings that their configuration lists."""

    def init(self: Any, config: PreTrainedConfig, *args: Any, **options: Any) -> None:
        model.__init__(self, config, *args, **options)
        _add_mappings(self)

    return type(model.__name__, (model,), {"__init__": init, "__module__": model.__module__})


def _add_mappings(model: PreTrainedModel) -> None:
    """Add a learned mapping to each attention module that the configuration lists."""
    for name, heads in model.config.polymax_heads.items():
        module = _submodule(model, name)
        implementation = checked_name(getattr(module, "config", model.config)._attn_implementation)
        like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
        # on the device of the model: from_pretrained makes parameters without memory, which cannot be moved
        with like.device:
            module.polymax_mapping = learned_mappings[implementation](heads).to(like.dtype)


def _submodule(model: PreTrainedModel, name: str) -> nn.Module:
    """A module by the name that it has in the model, in the model's base, or in a model with a head."""
    prefix = model.base_model_prefix + "."
    for key in (name, name.removeprefix(prefix), prefix + name):
        with contextlib.suppress(AttributeError):
            return model.get_submodule(key)
    raise ValueError(f"config.json tells of the learned mapping of {name}, which {type(model).__name__} does not have")


def _takes_another_implementation(module: nn.Module) -> bool:
    if isinstance(module, PreTrainedModel) or not calls_interface(type(module)):
        return False
    name = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return isinstance(name, str) and not name.startswith(PREFIX)


def _calls(model: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, int]:
    """The modules that go through polymax in a forward pass, by name, each with its number of heads."""
    called: dict[nn.Module, int] = {}

    def record(name: str, fn: Any, module: nn.Module, query: Tensor, *args: Any, **options: Any) -> Any:
        found = sharing(module)
        # under tensor parallelism a process has some of the heads
        called[module] = query.shape[1] * (1 if found is None or found.group is None else found.ways)
        if name in learned_mappings and not hasattr(module, "polymax_mapping"):
            # the weights do not matter here, and softmax takes all arguments that models pass
            fn = partial(attention, softmax)
        return fn(module, query, *args, **options)

    training = model.training
    try:
        with _recording_implementations(record), torch.no_grad():
            model.eval()(**(inputs or _few_tokens(model)))
    finally:
        model.train(training)
    return {name: called[module] for name, module in model.named_modules() if module in called}


@contextlib.contextmanager
def _recording_implementations(record: Any) -> Iterator[None]:
    """Our implementations, each called through `record` with its name."""
    before = {name: AttentionInterface()[name] for name in registered_names()}
    try:
        for name, fn in before.items():
            AttentionInterface.register(name, partial(record, name, fn))
        yield
    finally:
        for name, fn in before.items():
            AttentionInterface.register(name, fn)


def _few_tokens(model: PreTrainedModel) -> dict[str, Tensor]:
    if model.main_input_name != "input_ids":
        raise ValueError(
            f"{type(model).__name__} must be given inputs here, as keywords: it takes {model.main_input_name}"
        )
    tokens = torch.arange(4, device=model.device)[None]
    both = {"input_ids": tokens, "decoder_input_ids": tokens}
    return both if model.config.is_encoder_decoder else {"input_ids": tokens}
