"""The linear-chain conditional random field."""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from polymax import _check, _ragged
from polymax._ragged import Ragged
from polymax.backend.widen import wide
from polymax.distributions.gibbs import Gibbs
from polymax.hypergraphs.passes import HARD, SHANNON
from polymax.nn.tag_schemes import TagConstraints
from polymax.structures import Chain
from polymax.structures.compact.choices import used_index


class _Scored(NamedTuple):
    """Scores of a chain, the chain, the mask (B, n), and the dtype of results."""

    unary: Tensor
    transition: Tensor
    chain: Chain
    kept: Tensor
    dtype: torch.dtype


class CRF(nn.Module):
    """A linear-chain conditional random field: emission scores, and learned scores of neighbouring tags.

        log p(y) = start[y_1] + sum_t emissions[t, y_t] + sum_t transitions[y_(t-1), y_t] + end[y_n] - log Z

    Called on emissions and tags it gives the negative log-likelihood. A state_dict of pytorch-crf loads.
    `constraints` are moves that are allowed, a bool tensor (s, s), or `TagConstraints`; others have probability 0.

    Shapes:
        emissions (B, n, s); tags (B, n); mask (B, n), True for tokens, which come before padding; with
        batch_first=False these are (n, B, s) and (n, B). Or without a mask: emissions a list of (n_k, s), or a
        PackedSequence of them, and tags the same with (n_k,)

    Example:
        >>> crf = CRF(3)
        >>> loss = crf(torch.zeros(2, 4, 3), torch.tensor([[0, 1, 2, 0], [1, 1, 0, 0]]))
        >>> crf.decode(torch.tensor([[[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]]]))
        [[0, 2]]

    See: Lafferty, McCallum and Pereira 2001, Conditional random fields.
    """

    allowed_transitions: Tensor | None
    allowed_start: Tensor | None
    allowed_end: Tensor | None

    def __init__(
        self, num_tags: int, batch_first: bool = True, constraints: Tensor | TagConstraints | None = None
    ) -> None:
        if isinstance(num_tags, bool) or not isinstance(num_tags, int) or num_tags < 1:
            raise ValueError(f"num_tags must be a positive integer; got {num_tags!r}")
        super().__init__()
        self.num_tags = num_tags
        self.batch_first = batch_first
        self.start_transitions = nn.Parameter(torch.empty(num_tags))
        self.end_transitions = nn.Parameter(torch.empty(num_tags))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
        allowed = constraints if isinstance(constraints, tuple) else (constraints, None, None)
        for name, t, dims in zip(("transitions", "start", "end"), allowed, (2, 1, 1), strict=True):
            if t is not None and (t.dtype != torch.bool or t.shape != (num_tags,) * dims):
                shape = (num_tags,) * dims
                raise ValueError(f"constraints on {name} must be bool {shape}; got {t.dtype} {tuple(t.shape)}")
            # constraints are not saved: whoever makes the module gives them again
            self.register_buffer(f"allowed_{name}", t, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small random scores, uniform in [-0.1, 0.1]."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def forward(
        self,
        emissions: Tensor | Ragged,
        tags: Tensor | Ragged,
        mask: Tensor | None = None,
        reduction: str = "mean",
    ) -> Tensor:
        """The negative log-likelihood of tags, reduced over sequences.

        The reduction is "mean", "sum", "none" (B,), or "token_mean", the sum divided by the number of tokens. A tag of
        -1 is unknown, and all tags are summed over; a bool tensor (B, n, s) says which tags to sum over. An empty
        sequence has the loss 0, and tags that are not allowed have the loss inf.
        """
        if reduction not in ("mean", "sum", "none", "token_mean"):
            raise ValueError(f"reduction must be 'mean', 'sum', 'none' or 'token_mean'; got {reduction!r}")
        scored = self._scores(emissions, mask)
        gold = self._gold(scored, self._tags(self._padded_tags(tags, scored.kept), scored.kept))
        total = scored.chain.logsumexp(scored.unary, scored.transition)
        losses = torch.where(gold == -torch.inf, torch.inf, total - gold)
        if reduction == "mean":
            losses = losses.mean()
        elif reduction != "none":
            losses = losses.sum() / (scored.kept.sum() if reduction == "token_mean" else 1)
        return losses.to(scored.dtype)

    def decode(self, emissions: Tensor | Ragged, mask: Tensor | None = None) -> list[list[int]]:
        """The most probable tags of each sequence."""
        with torch.no_grad():
            unary, transition, chain, kept, _ = self._scores(emissions, mask)
            tags = used_index(chain.states(HARD, unary, transition)).tolist()
        return [row[:n] for row, n in zip(tags, kept.sum(1).tolist(), strict=True)]

    def marginals(self, emissions: Tensor | Ragged, mask: Tensor | None = None) -> Any:
        """p(y_t = tag), shaped like the emissions, a list or packed where these are; 0 at padding."""
        unary, transition, chain, kept, dtype = self._scores(emissions, mask)
        mu = chain.states(SHANNON, unary, transition).to(dtype)
        if _ragged.is_ragged(emissions):
            return _ragged.like(mu, kept.sum(1), emissions)
        return mu if self.batch_first else mu.transpose(0, 1)

    def topk(self, emissions: Tensor | Ragged, k: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The k most probable tag sequences (B, k, n), best first, -1 at padding, and their probabilities (B, k).

        Where there are fewer, rows of -1 of probability 0 follow.
        """
        best, probabilities = self.distribution(emissions, mask).topk(k)
        return Chain().decode(best), probabilities

    def distribution(self, emissions: Tensor | Ragged, mask: Tensor | None = None) -> Gibbs:
        """The distribution over tag sequences: it samples, and has an entropy."""
        unary, transition, chain, _, dtype = self._scores(emissions, mask)
        return Gibbs(chain, (unary, transition), dtype)

    def extra_repr(self) -> str:
        return f"num_tags={self.num_tags}, batch_first={self.batch_first}"

    def _scores(self, given: Tensor | Ragged, mask: Tensor | None) -> _Scored:
        emissions, mask = self._padded(given, mask)
        _check.floating(emissions, "emissions")
        if emissions.dim() != 3 or emissions.shape[-1] != self.num_tags:
            order = "B, n" if self.batch_first else "n, B"
            raise ValueError(f"emissions must be ({order}, {self.num_tags}); got {tuple(emissions.shape)}")
        kept = emissions.new_ones(emissions.shape[:2], dtype=torch.bool) if mask is None else mask
        if not isinstance(kept, Tensor) or kept.dtype not in (torch.bool, torch.uint8):
            came = kept.dtype if isinstance(kept, Tensor) else type(kept).__name__
            raise TypeError(f"mask must be a bool tensor (True = token); got {came}")
        if kept.shape != emissions.shape[:2]:
            raise ValueError(f"mask must be {tuple(emissions.shape[:2])}; got {tuple(kept.shape)}")
        kept = kept.bool()
        if not self.batch_first:
            emissions, kept = emissions.transpose(0, 1), kept.transpose(0, 1)
        if _check.readable(kept) and bool((kept[:, 1:] & ~kept[:, :-1]).any()):
            raise ValueError("mask must be True from the left: tokens first, then padding")
        lengths = kept.sum(1)
        start = _only(self.start_transitions, self.allowed_start)
        end = _only(self.end_transitions, self.allowed_end)
        transition = _only(self.transitions, self.allowed_transitions)
        dtype = torch.promote_types(emissions.dtype, transition.dtype)
        position = torch.arange(emissions.shape[1], device=emissions.device)[:, None]
        # the scores of starting and ending belong to the first and the last position
        unary = wide(emissions.to(dtype)) + torch.where(position == 0, start, 0)
        unary = unary + torch.where(position == lengths[:, None, None] - 1, end, 0)
        return _Scored(unary, wide(transition.to(dtype)), Chain(lengths), kept, dtype)

    def _padded(self, emissions: Tensor | Ragged, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Emissions as one tensor in the order of this module, and the mask of their lengths."""
        if not _ragged.is_ragged(emissions):
            return cast(Tensor, emissions), mask
        if mask is not None:
            raise ValueError("mask must be None: a list or a PackedSequence of emissions has lengths of its own")
        whole, lengths = _ragged.padded(emissions, "emissions", 2)
        kept = torch.arange(whole.shape[1], device=whole.device) < lengths[:, None]
        return (whole, kept) if self.batch_first else (whole.transpose(0, 1), kept.T)

    def _padded_tags(self, tags: Tensor | Ragged, kept: Tensor) -> Tensor:
        """Tags as one tensor in the order of this module; `kept` is (B, n)."""
        if not _ragged.is_ragged(tags):
            return cast(Tensor, tags)
        first = tags[0] if not isinstance(tags, PackedSequence) else tags.data
        allowed = isinstance(first, Tensor) and first.dtype == torch.bool
        whole, lengths = _ragged.padded(tags, "tags", 2 if allowed else 1)
        if lengths.tolist() != kept.sum(1).tolist():
            raise ValueError(f"tags must be as long as emissions, {kept.sum(1).tolist()}; got {lengths.tolist()}")
        # padding of the emissions may be longer than that of the tags
        whole = torch.nn.functional.pad(whole, (*(0, 0) * (whole.dim() - 2), 0, kept.shape[1] - whole.shape[1]))
        return whole if self.batch_first else whole.transpose(0, 1)

    def _tags(self, tags: Tensor, kept: Tensor) -> Tensor:
        """Tags (B, n) with 0 at padding, or what they allow (B, n, s)."""
        if not isinstance(tags, Tensor) or tags.is_floating_point():
            kind = tags.dtype if isinstance(tags, Tensor) else type(tags).__name__
            raise TypeError(f"tags must be a tensor of integers, or a bool tensor of allowed tags; got {kind}")
        shape = tuple(kept.shape) if self.batch_first else tuple(kept.shape[::-1])
        if tags.dtype == torch.bool:
            shape = (*shape, self.num_tags)
        if tags.shape != shape:
            raise ValueError(f"tags must be {shape}; got {tuple(tags.shape)}")
        tags = tags if self.batch_first else tags.transpose(0, 1)
        if tags.dtype == torch.bool:
            return tags
        tags = torch.where(kept, tags.long(), 0)
        if _check.readable(tags) and bool(((tags < -1) | (tags >= self.num_tags)).any()):
            came = int(tags[(tags < -1) | (tags >= self.num_tags)][0])
            raise ValueError(f"tags must be in [0, {self.num_tags}), or -1 where not known; got {came}")
        return tags

    def _gold(self, scored: _Scored, tags: Tensor) -> Tensor:
        """log of the sum over sequences that agree with the tags of exp(score), (B,)."""
        unary, transition, chain, kept, _ = scored
        if tags.dtype != torch.bool:
            # whether tags are missing is not asked where the answer has to be waited for
            if _check.readable(tags) and not bool((tags < 0).any()):
                return _score(unary, transition, tags, kept)
            tags = (tags[..., None] == torch.arange(self.num_tags, device=tags.device)) | (tags < 0)[..., None]
        return chain.logsumexp(unary.masked_fill(~tags, -torch.inf), transition)


def _score(unary: Tensor, transition: Tensor, tags: Tensor, kept: Tensor) -> Tensor:
    """The score of the given sequence of each instance, (B,)."""
    states = unary.gather(2, tags[..., None])[..., 0]
    steps = transition[tags[:, :-1], tags[:, 1:]]
    return torch.where(kept, states, 0).sum(1) + torch.where(kept[:, 1:], steps, 0).sum(1)


def _only(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
