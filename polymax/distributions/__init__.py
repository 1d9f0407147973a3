"""Distributions over whole structures: random walks over derivations, and the Gibbs distribution among them."""

from polymax.distributions.gibbs import Gibbs, TreeGibbs
from polymax.distributions.walk import Walk

__all__ = ["Gibbs", "TreeGibbs", "Walk"]
