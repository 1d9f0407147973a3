"""Peers whose functions Numba would compile for ten seconds in each process: in tests they are plain Python."""

import warnings
from importlib import import_module
from importlib.util import find_spec

PEERS = ("pysdtw", "tslearn.metrics", "tslearn.barycenters")


def import_plain():
    """Import the peers that are installed while Numba compiles nothing."""
    from numba.core import config

    before, config.DISABLE_JIT = config.DISABLE_JIT, True
    try:
        with warnings.catch_warnings():
            # tslearn tells which optional packages are missing
            warnings.simplefilter("ignore")
            for name in PEERS:
                if find_spec(name.partition(".")[0]) is not None:
                    import_module(name)
    finally:
        config.DISABLE_JIT = before
