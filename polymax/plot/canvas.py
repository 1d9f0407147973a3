"""Functions that all pictures use: figures without pyplot, and arrays from tensors."""

from typing import Any

import numpy as np
import torch

# light enough to carry dark text, and unlike any tint of the blue of positive weights
ZERO = "#d2d2d2"
FAINT = "#f2f2f2"
INK = "#333333"
MISSING = "polymax.plot needs matplotlib: pip install 'polymax[plot]'"


def new_axes(width: float, height: float, rows: int = 1, columns: int = 1) -> Any:
    """Axes of a new figure without a window: one, or an array of them."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(MISSING) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.subplots(rows, columns)


def array(name: str, values: Any) -> np.ndarray:
    """Values as a float64 array, from a tensor on any device or anything numpy reads."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of numbers; got {type(values).__name__}") from error
