"""A plugin for pytest that puts losses of polymax under the names of Liger-Kernel and of cut cross-entropy.

    cd LIGER; PYTHONPATH=src:.:POLYMAX/tests/peers_own python -m pytest -p peers_swap \\
        test/transformers/test_fused_linear_cross_entropy.py test/transformers/test_fused_linear_jsd.py \\
        -k "not accuracy and not predicted and not token_scaling and not structured_output"
    cd CUT; TORCHDYNAMO_DISABLE=1 PYTHONPATH=.:POLYMAX/tests/peers_own python -m pytest -p peers_swap \\
        tests/test_cce_loss_forward.py tests/test_cce_loss_backward.py -k "not torch_compile and not cce_exact"
"""

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

import polymax as pm


class FusedCrossEntropy:
    """The loss, its z-loss, and nothing else: (loss, z_loss, None, None)."""

    @staticmethod
    def apply(
        hidden, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0,
        label_smoothing=0.0, reduction="mean", softcap=None, return_z_loss=False, accum_dtype=None, *others,
    ):  # fmt: skip
        if any(others):
            raise NotImplementedError("scaled tokens, accuracies and predicted tokens are not part of the loss")
        loss, normalizer = pm.linear_cross_entropy(
            hidden, weight, target, bias, class_weights=ce_weight, ignore_index=ignore_index,
            label_smoothing=label_smoothing, softcap=softcap, reduction=reduction, z_loss=lse_square_scale,
            return_normalizer=True, dtype=torch.float32,
        )  # fmt: skip
        there = target != ignore_index
        penalty = lse_square_scale * normalizer.square()
        summed = penalty.sum() / there.sum() if reduction == "mean" else penalty.sum()
        return loss, summed if return_z_loss else None, None, None


class FusedDivergence:
    """The generalized Jensen-Shannon divergence of two layers, by `pm.distillation_loss`."""

    @staticmethod
    def apply(
        hidden, weight, teacher_hidden, teacher_weight, label=None, beta=0.5, ignore_index=-100, temperature=1.0, *_
    ):
        with torch.no_grad():
            logits = torch.nn.functional.linear(teacher_hidden, teacher_weight).float() / temperature
            ids = torch.arange(len(weight), device=hidden.device).expand(logits.shape)
            if label is not None:
                ids = torch.where((label == ignore_index).unsqueeze(1), -1, ids)
            teacher = pm.WordDistribution(ids, torch.where(ids < 0, 0, logits.softmax(-1)), len(weight))
            counted = (ids >= 0).any(1).sum().clamp(min=1)
        total = pm.distillation_loss(
            hidden / temperature, weight, teacher, alpha=1.0, beta=beta, reduction="none"
        )  # fmt: skip
        return total.float().sum() / counted


def linear_cross_entropy(
    e: Tensor, c: Tensor, targets: Tensor, bias=None, ignore_index=-100, softcap=None, reduction="mean", shift=0,
    return_lse=False, **options,
):  # fmt: skip
    """The function of cut cross-entropy, whose implementation is chosen by none of its names here."""
    if shift:
        e, targets = e[..., : -int(shift), :], targets[..., int(shift) :]
    return pm.linear_cross_entropy(
        e, c, targets, bias, ignore_index=ignore_index, softcap=softcap, reduction=reduction,
        return_normalizer=return_lse, dtype=torch.float32,
    )  # fmt: skip


# for each package, the modules that have a name, and what stands there instead
LIGER = {
    "LigerFusedLinearCrossEntropyFunction": FusedCrossEntropy,
    "LigerFusedLinearJSDFunction": FusedDivergence,
}
LIGER_MODULES = (
    "liger_kernel.ops",
    "liger_kernel.transformers.functional",
    "liger_kernel.transformers.fused_linear_cross_entropy",
    "liger_kernel.transformers.fused_linear_jsd",
)


def pytest_configure(config):
    """Exchange the names before tests are imported."""
    if find_spec("liger_kernel") is not None:
        for place in LIGER_MODULES:
            module = importlib.import_module(place)
            for name, ours in LIGER.items():
                if hasattr(module, name):
                    setattr(module, name, ours)
    elif find_spec("cut_cross_entropy") is not None:
        # the package itself needs a GPU; its tests name this function, a number and two formulas
        package = ModuleType("cut_cross_entropy")
        spec = find_spec("cut_cross_entropy")
        package.__path__ = list(spec.submodule_search_locations or [])
        package.linear_cross_entropy = linear_cross_entropy
        sys.modules["cut_cross_entropy"] = package
        if not torch.cuda.is_available():
            _on_the_cpu()


def _on_the_cpu():
    """Let tests that ask for a GPU run on the CPU."""
    torch.cuda.is_available = lambda: True
    torch.cuda.manual_seed = torch.manual_seed
    for name in ("randn", "rand", "randint", "randperm", "tensor", "arange", "zeros"):
        make = getattr(torch, name)

        def placed(*args, make=make, **options):
            options.pop("device", None)
            return make(*args, **options)

        setattr(torch, name, placed)
