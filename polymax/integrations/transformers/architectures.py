"""Tests for architectures that take attention from Transformers' interface, and for the masks that they accept.

The attention modules of an architecture look an implementation up by its name. Many modules do not: they compute
softmax themselves, and add any mask to their scores. No flag of a model says which, so the tests read the code of its
modules.
"""

import functools
import inspect
import sys
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
# parts of the names of functions that modules with their own attention call
SOFTMAX = ("softmax", "logsumexp", "scaled_dot_product_attention", "multi_head_attention_forward")


def calls_interface(module: type[nn.Module]) -> bool:
    """True if modules of this class look their attention function up by name."""
    return INTERFACE in _words(module)


def has_own_attention(module: type[nn.Module]) -> bool:
    """True if modules of this class compute attention themselves, by softmax or a function that contains it."""
    return (
        _is_attention(module)
        and not calls_interface(module)
        and any(s in word.lower() for word in _words(module) for s in SOFTMAX)
    )


class AttentionClasses(NamedTuple):
    """The names of attention classes: all; classes that call the interface; classes with their own attention."""

    all: tuple[str, ...]
    calling: tuple[str, ...]
    own: tuple[str, ...]


@functools.cache
def attention_classes(file: str) -> AttentionClasses:
    """The attention classes that a Python module defines."""
    # without whole models, whose methods mention the interface, too
    classes = [x for x in _subclasses_in(file, nn.Module) if not issubclass(x, PreTrainedModel)]
    return AttentionClasses(
        all=tuple(x.__name__ for x in classes if _is_attention(x)),
        calling=tuple(x.__name__ for x in classes if calls_interface(x)),
        own=tuple(x.__name__ for x in classes if has_own_attention(x)),
    )


def ignoring_classes(model: type[nn.Module]) -> tuple[str, ...]:
    """The attention classes of an architecture that ignores polymax's attention; otherwise ().

    Either no class calls the interface, or classes are chosen from a table by the name of the implementation, such as
    SAM_VISION_ATTENTION_CLASSES, which has only the names of Transformers.
    """
    classes = attention_classes(model.__module__)
    tables = any(name.endswith("ATTENTION_CLASSES") for name in vars(sys.modules[model.__module__]))
    return (classes.own or classes.all) if tables or not classes.calling else ()


@functools.cache
def takes_bool_and_none(file: str) -> tuple[bool, bool]:
    """True if the attention modules in a file may be given a bool mask, and True if they may be given no mask.

    If every attention class calls the interface, no class adds a bool mask to its scores. Without a mask, the
    `is_causal` of a module decides which keys are visible. It is correct if Transformers supports torch's attention for
    the architecture, which relies on it, and wrong in some other architectures.
    """
    classes, models = attention_classes(file), _subclasses_in(file, PreTrainedModel)
    return bool(classes.calling) and not classes.own, all(x._supports_sdpa for x in models)


@torch.compiler.assume_constant_result
def _of_config(config: type) -> tuple[bool, bool]:
    """Return `takes_bool_and_none` for the models of a configuration; (False, False) if their file is not imported."""
    file = config.__module__.replace(".configuration_", ".modeling_")
    return takes_bool_and_none(file) if file in sys.modules else (False, False)


def attention_mask(*args: Any, config: Any = None, **options: Any) -> Tensor | None:
    """A mask in the form that the modules of a model accept.

    It is bool (True = keep) if all attention modules of the architecture call polymax's function; otherwise it is a
    float mask that their own code adds to scores, with the lowest number for False. It is None if `is_causal` suffices
    and is reliable.
    """
    takes_bool, takes_none = _of_config(type(config))
    if not takes_none:
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return (sdpa_mask if takes_bool else eager_mask)(*args, config=config, **options)


def _subclasses_in(file: str, kind: type[nn.Module]) -> list[type[Any]]:
    """The subclasses of a class that a Python module defines."""
    found = (x for x in vars(sys.modules[file]).values() if isinstance(x, type) and issubclass(x, kind))
    return [x for x in found if x.__module__ == file]


def _is_attention(module: type[nn.Module]) -> bool:
    return any(part in module.__name__.lower() for part in ("attention", "attn"))


def _words(module: type[nn.Module]) -> frozenset[str]:
    """The names that the methods of a class use."""
    owners = (x for x in module.__mro__ if x not in (nn.Module, object))
    methods = [inspect.unwrap(x) for owner in owners for x in vars(owner).values() if callable(x)]
    return frozenset(word for x in methods if isinstance(x, FunctionType) for word in _code_words(x.__code__))


def _code_words(code: CodeType) -> set[str]:
    inner = (_code_words(x) for x in code.co_consts if isinstance(x, CodeType))
    return {*code.co_names, *code.co_freevars}.union(*inner)
