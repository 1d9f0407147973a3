"""Memory of tensors for NumPy and Numba, with no side effect on the tensors."""

import numpy as np
from torch import Tensor
from torch._C import _from_dlpack
from torch.utils.dlpack import to_dlpack


def memory(x: Tensor) -> np.ndarray:
    """Return the memory of a CPU tensor as a NumPy array, which keeps the tensor alive.

    `x.numpy()` marks the storage of x as not resizable for good, but FSDP resizes the storages of parameters. This
    function marks a second storage over the same memory instead.
    """
    return _from_dlpack(to_dlpack(x.resolve_neg())).numpy()


def array(x: Tensor) -> np.ndarray:
    """Return the entries of a CPU tensor, contiguous, as a NumPy array: the tensor's memory, or a copy."""
    return _from_dlpack(to_dlpack(x.resolve_neg().contiguous())).numpy()
