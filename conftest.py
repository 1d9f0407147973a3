"""Names that examples in docstrings use without an import."""

import pytest
import torch

import polymax


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(torch=torch, pm=polymax)
