"""How many functions of ours a call enters: short routes, each check once, counted by sys.setprofile as a guard."""

import sys

import pytest
import torch

import polymax as pm

UNARY, TRANSITION = torch.randn(4, 6, 3), torch.randn(3, 3)

# the call, and the most functions that it may enter
ROUTES = {
    "Marginals(Chain).max": (pm.Marginals(pm.Chain()).max, (UNARY, TRANSITION), 16),
    "Marginals(Chain)": (pm.Marginals(pm.Chain()), (UNARY, TRANSITION), 20),
}


def functions_entered(call):
    """The names of the library's functions that a call enters, in their order."""
    # the first calls import, compile and fill caches
    for _ in range(2):
        call()
    entered = []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and "polymax" in code.co_filename.split("/") and "tests" not in code.co_filename.split("/"):
            entered.append(f"{code.co_filename.rpartition('polymax/')[2]}:{code.co_name}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize("derived", [False, True], ids=["", "requires_grad"])
@pytest.mark.parametrize("name", ROUTES)
def test_routes_are_short(name, derived):
    op, scores, most = ROUTES[name]
    inputs = tuple(x.clone().requires_grad_(derived) for x in scores)
    entered = functions_entered(lambda: op(*inputs))
    assert 0 < len(entered) <= most, f"{name} enters {len(entered)} functions, not at most {most}: {entered}"
