"""Dynamic time warping by its names in commands: hard, soft (with the entropy) or quadratic (with the norm)."""

from torch import Tensor

import polymax as pm

SMOOTHINGS = ("soft", "quadratic", "hard")


def discrepancy(
    smoothing: str,
    cost: Tensor,
    gamma: float,
    lengths: tuple[Tensor, Tensor] | None = None,
    band: int | None = None,
) -> Tensor:
    """The least cost of an alignment, by the name of its smoothing; its gradient is the expected alignment.

        soft: - gamma log sum over A of exp(-<cost, A> / gamma)    hard: min over A of <cost, A>
        quadratic: every minimum of three in the recursion smoothed by gamma Gini

    Shapes: cost (*batch, n, m); lengths a pair of (*batch,), rows and columns; result (*batch,)

    Example:
        >>> cost = torch.tensor([[0.0, 1.0, 4.0], [4.0, 1.0, 0.0]])
        >>> [round(discrepancy(name, cost, 0.5).item(), 4) for name in SMOOTHINGS]
        [0.6205, 0.875, 1.0]

    See: Cuturi and Blondel 2017; Mensch and Blondel 2018, section 4.2.
    """
    if smoothing == "soft":
        return pm.soft_dtw(cost, gamma, lengths, band)
    if smoothing == "quadratic":
        return pm.smoothed_dtw(cost, pm.Gini(gamma), lengths, band)
    if smoothing == "hard":
        return pm.dtw(cost, lengths, band)
    raise ValueError(f"smoothing must be one of {', '.join(SMOOTHINGS)}; got {smoothing!r}")
