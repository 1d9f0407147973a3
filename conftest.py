"""What the examples in docstrings may use without importing it."""

import pytest
import torch

import polymax


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(torch=torch, pm=polymax)
