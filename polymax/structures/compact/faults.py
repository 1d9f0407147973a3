"""Errors of invalid targets: the first fault, with its place and its instance."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polymax import _check


def refuse(what: str, bad: Tensor, explain: Callable[[tuple[int, ...], int], str]) -> None:
    """Raise ValueError at the first True of bad (*batch, places), with the message explain(instance, place)."""
    if bool(bad.any()):
        *instance, place = bad.nonzero()[0].tolist()
        raise ValueError(f"y is no {what}: {explain(tuple(instance), place)}")


def of(instance: tuple[int, ...]) -> str:
    """The words of a message that name the instance; empty if there is no batch."""
    return f" of instance {instance}" if instance else ""


def in_words(things: Sequence[object]) -> str:
    """The things as words: a, b and c."""
    words = [str(t) for t in things]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def check_integers(index: Tensor) -> None:
    """Raise TypeError unless `index` is a tensor of integers."""
    if not isinstance(index, Tensor) or index.is_floating_point() or index.dtype == torch.bool:
        raise TypeError(f"index must be a tensor of integers; got {_check.kind(index)}")


def sizes(shape: tuple[int, ...], *names: str) -> tuple[int, ...]:
    """The sizes that `encode` takes besides the compact form."""
    if len(shape) != len(names):
        raise TypeError(f"encode takes the index and {in_words(names)}; got sizes {shape}")
    return shape


def ends(index: Tensor) -> Tensor:
    """The length (*batch,) of each instance of an index (*batch, n): the place after its last entry that is not -1."""
    places = torch.arange(1, index.shape[-1] + 1, device=index.device)
    return torch.where(index >= 0, places, 0).amax(-1) if index.shape[-1] else index.new_zeros(index.shape[:-1])


def check_shape(index: Tensor, shape: tuple[int, ...], what: str) -> None:
    """Refuse a compact form of another shape."""
    if index.shape != shape:
        raise ValueError(f"y must be {what}, {tuple(shape)}; got {tuple(index.shape)}")


def inside(lengths: Tensor | None, batch: torch.Size, size: int, device: torch.device) -> Tensor:
    """A bool tensor (*batch, size), True for places before the end of each instance."""
    place = torch.arange(size, device=device)
    if lengths is None:
        return (place < size).expand(*batch, size)
    return place < lengths.to(device).unsqueeze(-1)


def check_padding(what: str, unit: str, part: str, index: Tensor, within: Tensor, start: int = 0) -> None:
    """Refuse a place within an instance without an entry, and an entry beyond its end."""

    def missing(instance: tuple[int, ...], place: int) -> str:
        came = int(index[(*instance, place)])
        if came == -2:
            return f"{unit} {place + start}{of(instance)} is not known (-2); say so by Partial(y)"
        return f"{unit} {place + start}{of(instance)} has no {part} ({came})"

    def beyond(instance: tuple[int, ...], place: int) -> str:
        return (
            f"{unit} {place + start}{of(instance)} has {part} {int(index[(*instance, place)])}, but lies beyond its"
            f" length {int(within[instance].sum())}; padding is -1"
        )

    refuse(what, within & (index < 0), missing)
    refuse(what, ~within & (index >= 0), beyond)
