"""Memory of tensors for NumPy and Numba, without a trace on the tensors."""

import numpy as np
from torch import Tensor
from torch._C import _from_dlpack
from torch.utils.dlpack import to_dlpack


def memory(x: Tensor) -> np.ndarray:
    """Return the memory of a CPU tensor as a NumPy array, which keeps the tensor alive.

    `x.numpy()` forbids for good that the storage of x be resized, as FSDP resizes those of parameters. Here it is a
    second storage, over the same memory, that is told so.
    """
    return _from_dlpack(to_dlpack(x)).numpy()


def array(x: Tensor) -> np.ndarray:
    """Return the numbers of a CPU tensor one after the other, as a NumPy array: its memory, or a copy."""
    return _from_dlpack(to_dlpack(x.contiguous())).numpy()
