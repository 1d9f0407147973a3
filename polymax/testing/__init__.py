"""Checks for what you write yourself."""

from polymax.testing.regularizer import check_regularizer as check_regularizer
from polymax.testing.regularizer import generic_scores as generic_scores
from polymax.testing.structure import check_structure as check_structure
