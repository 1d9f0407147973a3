"""Binary trees as transitions of a shift-reduce parser: checks, children, spans, merges, and trees of known shape.

Transitions (*batch, T) build a tree bottom-up, 0 to shift a token onto the stack, 1 to reduce the two topmost nodes to
one, -1 at padding; n tokens take n shifts and n - 1 reductions. Step t makes node t, so that nodes come in post-order:
the right child of a reduction at step t is node t - 1. An empty sentence has no transitions.
"""

from functools import lru_cache

import torch
from torch import Tensor

from polymax import _check
from polymax.structures.base import checked_lengths
from polymax.structures.compact.faults import of

SHIFT, REDUCE = 0, 1


def check_transitions(transitions: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Transitions (*batch, T) as int64; a ValueError if a row is not a tree, or if its length differs from `lengths`.

    Values on an accelerator are not checked.

    Example:
        >>> check_transitions(torch.tensor([[0, 0, 1], [0, 1, -1]]))
        Traceback (most recent call last):
        ValueError: transitions are not a tree: step 1 of instance (1,) reduces a stack of 1
    """
    if not isinstance(transitions, Tensor) or transitions.is_floating_point() or transitions.dtype == torch.bool:
        raise TypeError(
            f"transitions must be a tensor of integers, 0 to shift, 1 to reduce; got {_check.kind(transitions)}"
        )
    if transitions.dim() < 1:
        raise ValueError("transitions must be (*batch, T); got ()")
    steps = transitions.long()
    if not _check.readable(steps):
        return steps
    stack = _stack_size(steps)
    known = (steps >= -1) & (steps <= REDUCE)
    _refuse(~known, lambda i, t: f"step {t}{of(i)} is {int(steps[(*i, t)])}, not 0, 1, or -1 at padding")
    late = (steps[..., 1:] >= 0) & (steps[..., :-1] < 0)
    _refuse(late, lambda i, t: f"step {t + 1}{of(i)} follows padding")
    low = (steps == REDUCE) & (stack < 1)
    _refuse(low, lambda i, t: f"step {t}{of(i)} reduces a stack of {int(stack[(*i, t)]) + 1}")
    if steps.shape[-1]:
        over = stack[..., -1:] > 1
        _refuse(over, lambda i, _: f"{int(stack[(*i, -1)])} nodes{of(i)} are left on the stack at the end, not one")
    if lengths is not None:
        shifts = (steps == SHIFT).sum(-1)
        wanted = checked_lengths(lengths, shifts.shape, steps.shape[-1], steps.device, "lengths").reshape(shifts.shape)
        short = (shifts != wanted).unsqueeze(-1)
        _refuse(short, lambda i, _: f"{int(shifts[i])} tokens{of(i)} are shifted, not {int(wanted[i])}")
    return steps


def children(transitions: Tensor) -> tuple[Tensor, Tensor]:
    """The nodes that each step of (*batch, T) reduces, left and right, (*batch, T) each; -1 elsewhere.

    The left child is the last node before the right child's subtree: the last step after which the stack had the same
    size as after the reduction.

    Example:
        >>> children(torch.tensor([0, 0, 0, 1, 1]))
        (tensor([-1, -1, -1,  1,  0]), tensor([-1, -1, -1,  2,  3]))
    """
    steps = transitions.long()
    place = torch.arange(steps.shape[-1], device=steps.device).expand(steps.shape)
    order = _stack_size(steps).argsort(dim=-1, stable=True)
    before = torch.nn.functional.pad(order[..., :-1], (1, 0), value=-1) if steps.shape[-1] else order
    left = torch.zeros_like(order).scatter(-1, order, before)
    reduces = steps == REDUCE
    return torch.where(reduces, left, -1), torch.where(reduces, place - 1, -1)


def tree_spans(transitions: Tensor) -> Tensor:
    """The span [i, j] of each node, (*batch, T, 2), both ends included, -1 at padding.

    This is the compact form of `SpanTree`: pm.SpanTree().encode(tree_spans(transitions), n, n) are indicators.

    Example:
        >>> tree_spans(torch.tensor([0, 0, 0, 1, 1])).tolist()
        [[0, 0], [1, 1], [2, 2], [1, 2], [0, 2]]
    """
    steps = transitions.long()
    token = (steps == SHIFT).cumsum(-1) - 1
    left, _ = children(steps)
    first = torch.where(left < 0, torch.arange(steps.shape[-1], device=steps.device), left)
    # each round doubles the number of steps to the left
    for _ in range(steps.shape[-1].bit_length()):
        first = first.gather(-1, first)
    spans = torch.stack([token.gather(-1, first), token], -1)
    return spans.masked_fill((steps < 0).unsqueeze(-1), -1)


def transitions_of_spans(y: Tensor) -> Tensor:
    """The transitions (*batch, 2 n - 1) of binary trees, given the indicators (*batch, n, n) of their spans.

    The number of reductions after token j is the number of spans of two tokens or more that end in j.

    Example:
        >>> transitions_of_spans(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]))
        tensor([0, 0, 0, 1, 1])
    """
    if y.dim() < 2 or y.shape[-1] != y.shape[-2]:
        raise ValueError(f"y must be spans (*batch, n, n); got {tuple(y.shape)}")
    used = y != 0
    steps = check_transitions(transitions_of_counts(used.triu(1).sum(-2), used.diagonal(dim1=-2, dim2=-1).sum(-1)))
    if _check.readable(used):
        n = y.shape[-1]
        spans = tree_spans(steps)
        # padding writes beyond the end
        places = torch.where(steps < 0, n * n, spans[..., 0] * n + spans[..., 1])
        found = torch.zeros(*steps.shape[:-1], n * n + 1, dtype=torch.bool, device="cpu").scatter(-1, places, True)[
            ..., :-1
        ]

        def explain(instance: tuple[int, ...], place: int) -> str:
            return f"span [{place // n}, {place % n}]{of(instance)} does not fit the others"

        _refuse(used.flatten(-2) & ~found, explain, "spans")
    return steps


def transitions_of_merges(merges: Tensor, lengths: Tensor | None = None) -> Tensor:
    """The transitions (*batch, 2 n - 1) of trees that grow by merging neighbours.

    Entry s of merges (*batch, n - 1) is the index, from the left among the remaining nodes, of the node that is merged
    with the next; -1 at padding. Without lengths, every row has one token more than it has merges.

    Example:
        >>> transitions_of_merges(torch.tensor([[1, 0], [0, -1]]))
        tensor([[ 0,  0,  0,  1,  1],
                [ 0,  0,  1, -1, -1]])
    """
    batch, n = merges.shape[:-1], merges.shape[-1] + 1
    rows = merges.reshape(batch.numel(), n - 1).long()
    have = (rows >= 0).sum(-1) + 1
    size = have if lengths is None else checked_lengths(lengths, batch, n, rows.device, "lengths")
    if _check.readable(rows):
        left = size.unsqueeze(-1) - torch.arange(n - 1, device=rows.device)
        bad = (rows < -1) | (rows >= (left - 1).clamp(min=0)) | ((rows < 0) & (left > 1))
        bad = bad.reshape(merges.shape)
        left = left.reshape(merges.shape).clamp(min=0)
        _refuse(
            bad, lambda i, s: f"merge {s}{of(i)} is {int(merges[(*i, s)])}, of {int(left[(*i, s)])} nodes", "merges"
        )
    counts = torch.zeros_like(rows[:, :1].expand(-1, n)) if n > 1 else size.new_zeros(batch.numel(), n)
    place = torch.arange(n + 1, device=rows.device)
    # the first token of each node, then the end
    starts = torch.minimum(place, size.unsqueeze(-1))
    for s in range(n - 1):
        at = rows[:, s : s + 1]
        end = starts.gather(-1, (at + 2).clamp(min=0, max=n)) - 1
        counts = counts.scatter_add(-1, end.clamp(min=0), (at >= 0).long())
        gone = (at >= 0) & (place > at)
        starts = starts.gather(-1, (place + gone).clamp(max=n))
    return transitions_of_counts(counts, size).reshape(*batch, 2 * n - 1)


def left_branching(lengths: Tensor) -> Tensor:
    """Transitions (*batch, 2 n - 1) of trees like ((a b) c) d, for lengths (*batch,), n the longest.

    Example:
        >>> left_branching(torch.tensor([3, 1]))
        tensor([[ 0,  0,  1,  0,  1],
                [ 0, -1, -1, -1, -1]])
    """
    place = _places(lengths)
    return transitions_of_counts((place > 0).long().expand(*lengths.shape, -1), lengths)


def right_branching(lengths: Tensor) -> Tensor:
    """Transitions (*batch, 2 n - 1) of trees like a (b (c d)), for lengths (*batch,), n the longest.

    Example:
        >>> right_branching(torch.tensor([3, 1]))
        tensor([[ 0,  0,  0,  1,  1],
                [ 0, -1, -1, -1, -1]])
    """
    last = lengths.unsqueeze(-1) - 1
    return transitions_of_counts(torch.where(_places(lengths) == last, last, 0), lengths)


def balanced(lengths: Tensor) -> Tensor:
    """Transitions (*batch, 2 n - 1) of trees like (a b) (c d), for lengths (*batch,); an odd token goes to the left
    half.

    Example:
        >>> balanced(torch.tensor([4, 3]))
        tensor([[ 0,  0,  1,  0,  0,  1,  1],
                [ 0,  0,  1,  0,  1, -1, -1]])
    """
    width = _places(lengths).numel()
    rows = [_halves(n) + (0,) * (width - n) for n in lengths.reshape(-1).tolist()]
    counts = torch.tensor(rows, dtype=torch.long, device=lengths.device)
    return transitions_of_counts(counts.reshape(*lengths.shape, width), lengths)


def tree_depth(transitions: Tensor) -> Tensor:
    """The number of reductions above the deepest token, (*batch,): 0 for at most one token.

    Example:
        >>> tree_depth(torch.stack([balanced(torch.tensor(4)), left_branching(torch.tensor(4))]))
        tensor([2, 3])
    """
    return node_depths(transitions).amax(-1).clamp(min=0) if transitions.shape[-1] else transitions.sum(-1)


def node_depths(transitions: Tensor) -> Tensor:
    """The number of reductions above each node, (*batch, T): 0 for the root, -1 at padding."""
    steps = transitions.long()
    width = steps.shape[-1]
    left, right = children(steps)
    place = torch.arange(width, device=steps.device).expand(steps.shape)
    # nodes without a parent write to a place beyond the end
    up = torch.nn.functional.pad(place, (0, 1), value=width)
    for child in (left, right):
        up = up.scatter(-1, torch.where(child < 0, width, child), place)
    up = torch.cat([up[..., :-1], torch.full_like(up[..., -1:], width)], -1)
    depth = (up != torch.arange(width + 1, device=steps.device)).long()
    # each round doubles the number of steps towards the root
    for _ in range(width.bit_length()):
        depth = depth + depth.gather(-1, up)
        up = up.gather(-1, up)
    return torch.where(steps < 0, -1, depth[..., :-1])


def bracket_f1(transitions: Tensor, gold: Tensor, whole: bool = False) -> Tensor:
    """Unlabelled F1 between binary trees over the same tokens, (*batch,), in float32.

        F1 = 2 |A and B| / (|A| + |B|),        A and B the spans of two tokens or more

    The span of the whole sentence, which all trees share, counts only if `whole`; if no span counts, F1 is 1.

    Shapes: transitions and gold (*batch, T), over sentences of equal lengths

    Example:
        >>> bracket_f1(balanced(torch.tensor(4)), left_branching(torch.tensor(4)))
        tensor(0.5000)
    """
    a, b = check_transitions(transitions), check_transitions(gold)
    sizes = [(t == SHIFT).sum(-1) for t in (a, b)]
    if a.shape != b.shape or (_check.readable(a) and not torch.equal(*sizes)):
        raise ValueError(f"gold must be trees over the same tokens, {tuple(a.shape)}; got {tuple(b.shape)} or lengths")
    first, second = (tree_spans(t) for t in (a, b))
    counted = []
    for spans in (first, second):
        width = spans[..., 1] - spans[..., 0]
        counted.append((width > 0) & ((width + 1 < sizes[0].unsqueeze(-1)) | whole))
    same = (first.unsqueeze(-2) == second.unsqueeze(-3)).all(-1) & counted[0].unsqueeze(-1) & counted[1].unsqueeze(-2)
    total = counted[0].sum(-1) + counted[1].sum(-1)
    return torch.where(total == 0, 1, 2 * same.sum((-2, -1)) / total.clamp(min=1))


def _stack_size(steps: Tensor) -> Tensor:
    """The number of nodes on the stack after each step."""
    return torch.where(steps == SHIFT, 1, torch.where(steps == REDUCE, -1, 0)).cumsum(-1)


def transitions_of_counts(counts: Tensor, lengths: Tensor) -> Tensor:
    """Transitions (*batch, 2 n - 1) from the number of reductions after each token (*batch, n)."""
    n = counts.shape[-1]
    width = max(2 * n - 1, 0)
    place = torch.arange(n, device=counts.device)
    shift = place + counts.cumsum(-1) - counts
    # tokens that are padding write beyond the end
    shift = torch.where(place < lengths.unsqueeze(-1), shift.clamp(max=width), width)
    steps = torch.full((*counts.shape[:-1], width + 1), REDUCE, dtype=torch.long, device=counts.device)
    steps = steps.scatter(-1, shift, SHIFT)[..., :width]
    beyond = torch.arange(width, device=counts.device) >= (2 * lengths - 1).unsqueeze(-1)
    return steps.masked_fill(beyond, -1)


def _places(lengths: Tensor) -> Tensor:
    return torch.arange(int(lengths.max()) if lengths.numel() else 0, device=lengths.device)


@lru_cache(maxsize=1024)
def _halves(n: int) -> tuple[int, ...]:
    """The number of reductions after each of the n tokens of a balanced tree."""
    if n < 2:
        return (0,) * n
    *before, last = _halves(n // 2)
    return (*_halves(n - n // 2), *before, last + 1)


def _refuse(bad: Tensor, explain: object, what: str = "transitions") -> None:
    if bool(bad.any()):
        *instance, place = bad.nonzero()[0].tolist()
        raise ValueError(f"{what} are not a tree: {explain(tuple(instance), place)}")  # type: ignore[operator]
