"""Checks for regularizers and structures that you write yourself."""

from polymax.testing.law import Law as Law
from polymax.testing.regularizer import check_regularizer as check_regularizer
from polymax.testing.regularizer import generic_scores as generic_scores
from polymax.testing.regularizer import regularizer_laws as regularizer_laws
from polymax.testing.structure import check_structure as check_structure
from polymax.testing.structure import laws as laws
