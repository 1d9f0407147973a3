"""The variance of a parser's gradient over passes through the same batch."""

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from polymax_recipes.latent.classifier import Classifier
from polymax_recipes.training.measured import device_of
from polymax_recipes.training.task import Report


def gradient_measures(model: Classifier, batch: Any, passes: int, seed: int = 0) -> Report:
    """The variance of the gradient in the parser's parameters, summed over them, and the square of its mean.

        variance = sum over w of var(g_w),        mean = sum over w of mean(g_w)^2

    Trees are drawn as in training, but without dropout, and the model does not change.
    """
    copy = deepcopy(model).train()
    for module in copy.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    parameters = copy.parser_parameters()
    for parameter in parameters:
        parameter.requires_grad_()
    state = model.state_dict()
    device = device_of(model)
    found = []
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        torch.manual_seed(seed)
        for _ in range(passes):
            # baselines change with each pass: restore them, so that all passes begin equally
            copy.load_state_dict(state)
            total, count = copy.loss(batch)["loss"]
            slopes = torch.autograd.grad(total / count, parameters, allow_unused=True)
            flat = [torch.zeros_like(w) if g is None else g for g, w in zip(slopes, parameters)]
            found.append(torch.cat([g.flatten() for g in flat]).double())
    every = torch.stack(found)
    return {"gradient_variance": float(every.var(0).sum()), "gradient_mean": float(every.mean(0).square().sum())}
