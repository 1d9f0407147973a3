"""Solver state that stays in GPU memory between launches of SparseMAP: its arrays, its start, and growth of its
places.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polymax.backend.triton_memory import Array
from polymax.kernels.active_set import cuda_loop
from polymax.kernels.active_set.cuda_start import prepare


@dataclass(frozen=True)
class State:
    """The solver state, in the shapes of cuda_loop.py."""

    held: tuple[Tensor, Tensor, Tensor]
    point: Tensor
    fresh: Tensor
    known: Tensor
    gaps: Tensor

    @staticmethod
    def arrays(count: int, d: int, slots: int, room: int) -> list[Array]:
        """Return the arrays of the state for so many instances; the first launch fills them."""
        return [
            Array(torch.int32, (count, room, slots)),
            Array(torch.float32, (count, room, room)),
            Array(torch.float64, (count, room + 3, room)),
            Array(torch.float64, (4, count, d)),
            Array(torch.int32, (count, slots)),
            Array(torch.int32, (3, count)),
            Array(torch.float64, (count,)),
        ]

    @classmethod
    def of(cls, arrays: Sequence[Tensor]) -> "State":
        """Return the state in the arrays of `arrays`."""
        places, gram, system, point, fresh, known, gaps = arrays
        return cls((places, gram, system), point, fresh, known, gaps)

    def with_seeds(self, places: Tensor, scores: Tensor, probs: Tensor) -> "State":
        """Return this state with structures to start from, (B, seeds, slots), their scores and weights.

        A structure that depends linearly on those before it is dropped.
        """
        seeds, (held, _, system) = places.shape[1], self.held
        held[:, :seeds] = places
        # structures that the scores forbid are dropped
        kept = (probs > 0) & (scores > -torch.inf)
        system[:, -3, :seeds] = torch.where(kept, scores, 0)
        system[:, -2, :seeds] = torch.where(kept, probs, -1)
        prepare(self.held, seeds)
        weights = system[:, -2, :seeds]
        system[:, -2, :seeds] = torch.where(weights >= 0, weights / weights.clamp(min=0).sum(-1, keepdim=True), -1)
        # the next step is weights; the first structure does not count as an iteration
        self.known[0] = cuda_loop.WEIGH.value
        self.known[1] = kept.any(-1).int() - 1
        return self

    def with_more_places(self) -> "State":
        """Return this state with twice the places; instances that lacked places continue."""
        (places, gram, system), pad = self.held, torch.nn.functional.pad
        room = places.shape[1]
        system = pad(torch.cat([pad(system[:, :room], (0, 0, 0, room)), system[:, room:]], 1), (0, room))
        system[:, -2, room:] = -1
        status = self.known[0]
        status = torch.where(status == cuda_loop.FULL.value, cuda_loop.GOING.value, status)
        self.known[0] = torch.where(status == cuda_loop.FACE_FULL.value, cuda_loop.DIRECTION.value, status)
        return replace(self, held=(pad(places, (0, 0, 0, room)), pad(gram, (0, room, 0, room)), system))
