"""The figures of the demo."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

import polymax as pm
from polymax.plot import attention, curves, simplex
from polymax.plot.canvas import INK, new_axes
from polymax.plot.matrix import word_axes
from polymax_recipes.demo.catalogue import MAPPINGS, call, name
from polymax_recipes.demo.speed import Timing
from polymax_recipes.demo.translation import Learned

PANELS = ("softmax", "entmax", "sparsemax", "fusedmax", "oscarmax")


def attention_panels(scores: Tensor, target: Sequence[str], source: Sequence[str]) -> Any:
    """The scores and their weights under five mappings, on one colour scale."""
    axes = new_axes(12.6, 8.2, rows=2, columns=3)
    below = (scores - scores.amax(-1, keepdim=True)).clamp(min=-6)
    mesh = axes[0, 0].pcolormesh(below.numpy(), cmap="Purples", vmin=-6, vmax=0, edgecolors="white", lw=0.4)
    word_axes(axes[0, 0], target, source)
    axes[0, 0].set_title("scores, below the best of the row", fontsize=11)
    chosen = {name(mapping): mapping for mapping in MAPPINGS}
    for ax, panel in zip(axes.flat[1:], PANELS):
        attention(chosen[panel](scores), target, source, ax=ax, clusters=panel == "oscarmax", vmax=1.0)
        ax.set_title(call(chosen[panel]), fontsize=11, family="monospace")
    figure = axes[0, 0].figure
    figure.get_layout_engine().set(h_pad=0.1, w_pad=0.06)
    for ax in axes.flat:
        ax.tick_params(labelsize=8.5)
    bars = (
        (mesh, axes[:, 0], 0.7, 30, "score (−6 and lower: white)"),
        (axes[0, 1].collections[0], axes[:, 1:], 0.5, 44, "weight (exact zeros: grey)"),
    )
    for colors, beside, shrink, aspect, label in bars:
        figure.colorbar(colors, ax=beside, location="bottom", shrink=shrink, aspect=aspect, label=label)
    return figure


def translation_panels(models: Sequence[Learned]) -> Any:
    """The attention that each model learned, on one colour scale, and the measures that are equal on every machine."""
    axes = new_axes(12.6, 4.6, columns=len(models))
    for ax, model in zip(axes, models):
        attention(model.weights, model.target, model.source, ax=ax, vmax=1.0)
        ax.set_title(call(model.mapping), fontsize=11, family="monospace")
        measures = model.measures()
        shown = f"{measures['right']} right, {measures['zeros']} zeros, {measures['groups']} groups a word"
        ax.set_xlabel(shown, fontsize=9.5)
        ax.tick_params(labelsize=9.5)
    figure = axes[0].figure
    label = "weight (exact zeros: grey)"
    figure.colorbar(axes[0].collections[0], ax=axes, location="bottom", shrink=0.4, aspect=44, label=label)
    return figure


def curve_panels() -> Any:
    """Smoothed max and argmax of two classes."""
    left, _ = curves(
        {
            "Zero()": pm.Zero(),
            "Shannon()": pm.Shannon(),
            "Tsallis(alpha=1.5)": pm.Tsallis(alpha=1.5),
            "Gini()": pm.Gini(),
            "Norm(alpha=2)": pm.Norm(alpha=2.0),
            "Fused(strength=0.2)": pm.Fused(strength=0.2),
        }
    )
    return left.figure


def simplex_panels() -> Any:
    """Six regularizers on the triangle of three classes."""
    axes = new_axes(10.2, 6.6, rows=2, columns=3)
    shown = {
        "Shannon()": pm.Shannon(),
        "Tsallis(alpha=1.5)": pm.Tsallis(alpha=1.5),
        "Gini()": pm.Gini(),
        "Norm(alpha=2)": pm.Norm(alpha=2.0),
        "Fused(strength=0.2)": pm.Fused(strength=0.2),
        "Oscar(strength=0.2)": pm.Oscar(strength=0.2),
    }
    for ax, (title, regularizer) in zip(axes.flat, shown.items()):
        simplex(regularizer, ax=ax)
        ax.set_title(title, fontsize=11, family="monospace")
    return axes[0, 0].figure


def speed_panel(timings: Sequence[Timing]) -> Any:
    """Ratio to torch.softmax, a row for each mapping and a dot for each shape."""
    names = list(dict.fromkeys(timing.mapping for timing in timings))
    ax = new_axes(7.6, 1.0 + 0.32 * len(names))
    for k, shape in enumerate(dict.fromkeys(timing.shape for timing in timings)):
        rows = [timing for timing in timings if timing.shape == shape]
        places = [names.index(timing.mapping) for timing in rows]
        label = " × ".join(str(size) for size in shape)
        ratios = [timing.ratio for timing in rows]
        ax.plot(ratios, places, "osD^v"[k % 5], color=f"C{k}", label=label, alpha=0.85)
    ax.axvline(1, color=INK, linewidth=0.9)
    ax.set_xscale("log")
    ax.set_xlabel("time of forward and backward, in multiples of torch.softmax (log scale)")
    ax.xaxis.set_major_formatter("{x:g}×")
    ax.set_yticks(np.arange(len(names)), names)
    ax.invert_yaxis()
    ax.grid(color="#e5e5e5", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, title="rows × size", loc="center left", bbox_to_anchor=(1, 0.5))
    return ax.figure
