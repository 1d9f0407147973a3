"""Mappings that replace softmax in attention, their names, and tests for the mappings that kernels compute."""

import difflib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from polymax import _check, mappings
from polymax.mappings import entmax, softmax, sparsemax
from polymax.nn.adaptive import AdaptiveEntmax
from polymax.regularizers import Gini, Regularizer, Shannon, Tsallis
from polymax.smoothing import Smoothing

# scores to weights along the last dimension: a function (x, dim=-1), a regularizer, a smoothing of a set of items, or
# one of the names below
Mapping = Callable[..., Tensor] | Regularizer | Smoothing | str

# mappings that need no argument beside the scores
NAMED: dict[str, Callable[..., Tensor]] = {
    "entmax": mappings.entmax,
    "fusedmax": mappings.fusedmax,
    "hardmax": mappings.hardmax,
    "normmax": mappings.normmax,
    "oscarmax": mappings.oscarmax,
    "softmax": mappings.softmax,
    "sparsemax": mappings.sparsemax,
    "sq_pnorm_max": mappings.sq_pnorm_max,
}


def checked_mapping(mapping: Mapping) -> Any:
    """Return the mapping itself, or the function of this name; raise an error for other objects."""
    if isinstance(mapping, str):
        return _named(mapping)
    if isinstance(mapping, type) or not (callable(mapping) or isinstance(mapping, Regularizer)):
        came = f"the class {mapping.__name__}" if isinstance(mapping, type) else type(mapping).__name__
        raise TypeError(f"mapping must be a function, a Regularizer, a Smoothing or a name; got {came}")
    return mapping


def _named(name: str) -> Callable[..., Tensor]:
    if name in NAMED:
        return NAMED[name]
    near = difflib.get_close_matches(name, NAMED, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"mapping must be one of the names {', '.join(NAMED)}, or a function; got {name!r}{hint}")


def check_heads(mapping: Any, heads: int, owner: str) -> None:
    """Refuse a learned mapping that has parameters for another number of heads; parameters of one head serve all."""
    own = getattr(mapping, "num_heads", None) if isinstance(mapping, nn.Module) else None
    if own is None or own in (1, heads):
        return
    raise ValueError(
        f"mapping must have parameters for the {heads} heads of {owner}; got {type(mapping).__name__}(num_heads={own})."
        " Over several processes, pm.distributed.attention_plan and tp_plan of Transformers divide the parameters with"
        " the heads"
    )


def apply_mapping(mapping: Any, scores: Tensor) -> Tensor:
    """Return the weights of scores along the last dimension; -inf is a forbidden entry."""
    if isinstance(mapping, Regularizer):
        return mapping.argmax(scores)
    return mapping(scores) if isinstance(mapping, Smoothing) else mapping(scores, dim=-1)


def is_softmax(mapping: Any) -> bool:
    """Return True if the mapping is softmax of temperature 1."""
    return mapping is softmax or (isinstance(mapping, Shannon) and _is_one(mapping.gamma))


def entmax_alpha(mapping: Any) -> float | Tensor | None:
    """Return the alpha of a mapping that is sparsemax or entmax; None for other mappings."""
    if isinstance(mapping, partial) and mapping.func in (entmax, sparsemax) and not mapping.args:
        if not mapping.keywords.keys() <= {"alpha"}:
            return None
        alpha = mapping.keywords.get("alpha", 1.5) if mapping.func is entmax else 2.0
    elif mapping is sparsemax or (isinstance(mapping, Gini) and _is_one(mapping.gamma)):
        return 2.0
    elif mapping is entmax:
        return 1.5
    elif isinstance(mapping, Tsallis) and _is_one(mapping.gamma):
        alpha = mapping.alpha
    elif isinstance(mapping, AdaptiveEntmax):
        alpha = mapping.alpha[:, None, None]
    else:
        return None
    _check.number(alpha, "alpha", "positive and finite", lambda v: (v > 0) & (v < math.inf))
    return alpha if isinstance(alpha, Tensor) else float(alpha)


def _is_one(gamma: Any) -> bool:
    return not isinstance(gamma, Tensor) and gamma == 1
