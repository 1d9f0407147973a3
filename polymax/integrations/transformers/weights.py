"""A model may want the weights of an attention module, which only the matrix of all scores can give."""

import ast
import functools
import inspect
import sys
from typing import Any

import torch
from torch import nn

try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:  # an older Transformers does not record requested outputs
    _active_collector = None  # type: ignore[assignment]

ASKED = "output_attentions"


def weights_wanted(module: nn.Module, options: dict[str, Any]) -> bool:
    """True if the call of a model requests weights, or may request them in a way that this test cannot see.

    In most architectures Transformers collects the weights, and stores which outputs were requested. Others pass
    `output_attentions` on to their attention, or read it in a layer around it.
    """
    if options.get(ASKED) or getattr(getattr(module, "config", None), ASKED, False):
        return True
    if _active_collector is None or _collects_attentions():
        return True
    return ASKED not in options and collects_itself(type(module).__module__)


def _collects_attentions() -> bool:
    """True if Transformers collects the weights of the call that is under way."""
    if not torch.compiler.is_compiling():
        collected = _active_collector.get()
    elif _active_collector.compiling:
        collected = _active_collector.global_var
    else:
        # a layer that is compiled by itself: the compiler cannot follow a ContextVar
        return _outer_call_collects()
    return collected is not None and any(key.endswith("attentions") for key in collected)


@torch.compiler.assume_constant_result
def _outer_call_collects() -> bool:
    collected = _active_collector.context_var.get()
    return collected is not None and any(key.endswith("attentions") for key in collected)


@torch.compiler.assume_constant_result
def collects_itself(file: str) -> bool:
    """True if the code of a Python module tests `output_attentions`, or cannot be read."""
    return _collects_itself(file)


@functools.cache
def _collects_itself(file: str) -> bool:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[file]))
    except (OSError, KeyError, TypeError):
        return True
    tests = (node.test for node in ast.walk(tree) if isinstance(node, (ast.If, ast.IfExp)))
    return any(isinstance(name, ast.Name) and name.id == ASKED for test in tests for name in ast.walk(test))
