"""Which architectures take their attention from Transformers' interface, and which masks they can be given.

Transformers looks an implementation up by its name inside the attention modules of each architecture. Many modules do
not look: they compute softmax themselves and add whatever mask they get to their scores. No flag of a model says
so, and the code of its modules does.
"""

import functools
import inspect
import sys
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
# what attention of one's own calls, as a part of the name
SOFTMAX = ("softmax", "logsumexp", "scaled_dot_product_attention", "multi_head_attention_forward")


def calls_interface(module: type[nn.Module]) -> bool:
    """True if modules of this class look their attention function up by name."""
    return INTERFACE in _words(module)


def has_own_attention(module: type[nn.Module]) -> bool:
    """True if modules of this class compute attention themselves, by softmax or a function that contains it."""
    named = any(part in module.__name__.lower() for part in ("attention", "attn"))
    return named and not calls_interface(module) and any(s in word.lower() for word in _words(module) for s in SOFTMAX)


@functools.cache
def attention_classes(file: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The classes of a Python module that call the interface, and those that have attention of their own."""
    classes = [x for x in vars(sys.modules[file]).values() if isinstance(x, type) and issubclass(x, nn.Module)]
    # methods of whole models speak of the interface, too
    classes = [x for x in classes if x.__module__ == file and not issubclass(x, PreTrainedModel)]
    calling = tuple(x.__name__ for x in classes if calls_interface(x))
    return calling, tuple(x.__name__ for x in classes if has_own_attention(x))


@functools.cache
def ignoring_classes(model: type[nn.Module]) -> tuple[str, ...]:
    """The attention classes of an architecture, if none of them can be ours; otherwise nothing.

    None calls the interface, or classes are taken from a table by the name of the implementation, such as
    SAM_VISION_ATTENTION_CLASSES, which knows the names of Transformers alone.
    """
    calling, own = attention_classes(model.__module__)
    tables = any(name.endswith("ATTENTION_CLASSES") for name in vars(sys.modules[model.__module__]))
    return own if tables or not calling else ()


@torch.compiler.assume_constant_result
def _takes_bool(config: type) -> bool:
    """True if every attention class beside this configuration calls the interface, so that no class adds a mask."""
    file = config.__module__.replace(".configuration_", ".modeling_")
    return file in sys.modules and bool(attention_classes(file)[0]) and not attention_classes(file)[1]


def attention_mask(*args: Any, config: Any = None, **options: Any) -> Tensor | None:
    """A mask that the modules of a model understand.

    It is bool (True = keep), and None where everything before a query is visible, if all attention modules of the
    architecture end in our function. All others get what their own code adds to scores: the lowest number for False.
    """
    if _takes_bool(type(config)):
        return sdpa_mask(*args, config=config, **options)
    return eager_mask(*args, config=config, **options)


@functools.cache
def _words(module: type) -> frozenset[str]:
    """The names that the methods of a class use."""
    owners = (x for x in module.__mro__ if x not in (nn.Module, object))
    methods = [inspect.unwrap(x) for owner in owners for x in vars(owner).values() if callable(x)]
    return frozenset(word for x in methods if isinstance(x, FunctionType) for word in _code_words(x.__code__))


def _code_words(code: CodeType) -> set[str]:
    inner = (_code_words(x) for x in code.co_consts if isinstance(x, CodeType))
    return {*code.co_names, *code.co_freevars}.union(*inner)
