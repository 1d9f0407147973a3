"""The linear-chain conditional random field."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from polymax import _check, _ragged
from polymax._ragged import Ragged
from polymax.distributions.gibbs import Gibbs
from polymax.hypergraphs.passes import HARD, SHANNON
from polymax.nn.crf_tokens import Scored, tokens_first
from polymax.nn.tag_schemes import TagConstraints, scheme_constraints, scheme_of
from polymax.structures import Chain
from polymax.structures.compact.choices import used_index

# positions with this tag are left out, as in torch.nn.functional.cross_entropy
LEFT_OUT = -100


class CRF(nn.Module):
    """A linear-chain conditional random field: emission scores, and learned scores of neighbouring tags.

        log p(y) = start[y_1] + sum_t emissions[t, y_t] + sum_t transitions[y_(t-1), y_t] + end[y_n] - log Z

    A call with emissions and tags returns the negative log-likelihood. A state_dict of pytorch-crf loads.
    `num_tags` is the number of tags, or their names. Names imply the constraints of their scheme: BIO, or BIOES (also
    spelled IOBES, and BILOU). `constraints` may be the name of a scheme, a bool tensor (s, s) of allowed transitions,
    or `TagConstraints`; other transitions have probability 0. With `constraints=None` all transitions are allowed.

    Positions at which the mask is False are left out: the token after them follows the token before them.

    Shapes:
        emissions (B, n, s); tags (B, n); mask (B, n), True (or 1) for tokens, False (or 0) for padding and other
        positions that are left out; with batch_first=False these are (n, B, s) and (n, B). Or without a mask:
        emissions a list of (n_k, s), or a PackedSequence of them, and tags in the same form with (n_k,)

    Example:
        >>> crf = CRF(3)
        >>> loss = crf(torch.zeros(2, 4, 3), torch.tensor([[0, 1, 2, 0], [1, 1, 0, 0]]))
        >>> crf.decode(torch.tensor([[[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]]]))
        [[0, 2]]
        >>> tagger = CRF(["O", "B-PER", "I-PER"])  # I-PER follows B-PER or I-PER alone
        >>> tagger.decode(torch.tensor([[[1.0, 0.0, 2.0], [0.0, 0.0, 9.0]]]))
        [[1, 2]]

    See: Lafferty, McCallum and Pereira 2001, Conditional random fields.
    """

    allowed_transitions: Tensor | None
    allowed_start: Tensor | None
    allowed_end: Tensor | None

    def __init__(
        self,
        num_tags: int | Sequence[str],
        batch_first: bool = True,
        constraints: Tensor | TagConstraints | str | None = "labels",
    ) -> None:
        labels = None if isinstance(num_tags, int) else _labels(num_tags)
        num_tags = num_tags if isinstance(num_tags, int) else len(num_tags)
        if isinstance(num_tags, bool) or num_tags < 1:
            raise ValueError(f"num_tags must be a positive integer, or the names of the tags; got {num_tags!r}")
        if isinstance(constraints, str):
            scheme = (labels and scheme_of(labels)) if constraints == "labels" else constraints
            if scheme and labels is None:
                raise ValueError(
                    f"constraints {constraints!r} need the names of the tags: CRF(['O', 'B-PER', ...], ...), not"
                    f" CRF({num_tags}, ...)"
                )
            constraints = scheme_constraints(scheme, labels) if scheme and labels else None
        super().__init__()
        self.num_tags = num_tags
        self.labels = labels
        self.batch_first = batch_first
        self.start_transitions = nn.Parameter(torch.empty(num_tags))
        self.end_transitions = nn.Parameter(torch.empty(num_tags))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
        allowed = constraints if isinstance(constraints, tuple) else (constraints, None, None)
        for name, t, dims in zip(("transitions", "start", "end"), allowed, (2, 1, 1), strict=True):
            shape = (num_tags,) * dims
            if t is not None and not isinstance(t, Tensor):
                raise TypeError(f"constraints on {name} must be a bool tensor {shape}; got {type(t).__name__}")
            if t is not None and (t.dtype != torch.bool or t.shape != shape):
                raise ValueError(f"constraints on {name} must be bool {shape}; got {t.dtype} {tuple(t.shape)}")
            # constraints are not saved: they are an argument of the constructor
            self.register_buffer(f"allowed_{name}", t, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all scores to small random numbers, uniform in [-0.1, 0.1]."""
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
        -1 is unknown: the likelihood is summed over all tags. A bool tensor (B, n, s) gives the tags to sum over. A
        position whose tag is -100 is left out, as by the mask: the token after it follows the token before it. An empty
        sequence has the loss 0. Tags that the constraints forbid raise a ValueError; on a GPU, and in compiled code,
        where tags are not read, their loss is inf.
        """
        if reduction not in ("mean", "sum", "none", "token_mean"):
            raise ValueError(f"reduction must be 'mean', 'sum', 'none' or 'token_mean'; got {reduction!r}")
        whole, kept = self._positions(emissions, mask)
        known = self._tags(self._padded_tags(tags, kept), kept)
        if known.dtype != torch.bool:
            kept = kept & (known != LEFT_OUT)
            known = torch.where(kept, known, 0)
        scored = self._scored(whole, kept)
        known = scored.aligned(known)
        losses = self._losses(scored, known)
        if self._constrained and _check.readable(losses) and bool((losses == torch.inf).any()):
            self._refuse_forbidden(scored, known)
        if reduction == "mean":
            losses = losses.mean()
        elif reduction != "none":
            losses = losses.sum() / (scored.lengths.sum() if reduction == "token_mean" else 1)
        return losses.to(scored.dtype)

    def decode(self, emissions: Tensor | Ragged, mask: Tensor | None = None) -> list[list[int]]:
        """The most probable tags of each sequence, a tag for each token; positions that are left out have no tag."""
        with torch.no_grad():
            scored = self._scores(emissions, mask)
            tags = used_index(scored.chain.states(HARD, scored.unary, scored.transition)).tolist()
        return [row[:n] for row, n in zip(tags, scored.lengths.tolist(), strict=True)]

    def best_tags(self, emissions: Tensor | Ragged, mask: Tensor | None = None) -> Tensor:
        """The most probable tags as one tensor shaped like the mask, -1 at positions left out.

        The values are those of `decode`; this method does not wait for a device, and torch.export records it.
        """
        with torch.no_grad():
            scored = self._scores(emissions, mask)
            tags = scored.restored(used_index(scored.chain.states(HARD, scored.unary, scored.transition)), -1)
        return tags if self.batch_first else tags.transpose(0, 1)

    def marginals(self, emissions: Tensor | Ragged, mask: Tensor | None = None) -> Any:
        """p(y_t = tag), in the form of the emissions (tensor, list or PackedSequence); 0 at positions left out."""
        scored = self._scores(emissions, mask)
        mu = scored.chain.states(SHANNON, scored.unary, scored.transition).to(scored.dtype)
        if _ragged.is_ragged(emissions):
            return _ragged.like(mu, scored.lengths, emissions)
        mu = scored.restored(mu, 0.0)
        return mu if self.batch_first else mu.transpose(0, 1)

    def topk(self, emissions: Tensor | Ragged, k: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The k most probable tag sequences (B, k, n), best first, -1 where the mask is False, and their probabilities.

        Probabilities are (B, k). If there are fewer than k, rows of -1 of probability 0 follow.
        """
        scored = self._scores(emissions, mask)
        best, probabilities = self._gibbs(scored).topk(k)
        tags = scored.restored(Chain().decode(best).transpose(1, 2), -1).transpose(1, 2)
        return tags, probabilities

    def distribution(self, emissions: Tensor | Ragged, mask: Tensor | None = None) -> Gibbs:
        """The distribution over tag sequences, with samples and entropy.

        Its structures have the tokens first, in order, and the positions that are left out after them.
        """
        return self._gibbs(self._scores(emissions, mask))

    def _gibbs(self, scored: Scored) -> Gibbs:
        return Gibbs(scored.chain, (scored.unary, scored.transition), scored.dtype)

    def extra_repr(self) -> str:
        tags = f"num_tags={self.num_tags if self.labels is None else list(self.labels)}"
        return f"{tags}, batch_first={self.batch_first}"

    @property
    def _constrained(self) -> bool:
        return any(t is not None for t in (self.allowed_transitions, self.allowed_start, self.allowed_end))

    def _scores(self, given: Tensor | Ragged, mask: Tensor | None) -> Scored:
        return self._scored(*self._positions(given, mask))

    def _positions(self, given: Tensor | Ragged, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Emissions (B, n, s), and the mask (B, n) of the positions that are tokens."""
        emissions, mask = self._padded(given, mask)
        _check.floating(emissions, "emissions")
        order = "(B, n" if self.batch_first else "(n, B"
        if emissions.dim() != 3 or emissions.shape[-1] != self.num_tags:
            raise ValueError(f"emissions must be {order}, {self.num_tags}); got {tuple(emissions.shape)}")
        kept = emissions.new_ones(emissions.shape[:2], dtype=torch.bool) if mask is None else mask
        if not isinstance(kept, Tensor) or kept.is_floating_point():
            raise TypeError(
                f"mask must be a bool tensor (True = token), or integers 0 and 1; got {_check.kind(kept)}: use .bool()"
            )
        if kept.dtype != torch.bool and _check.readable(kept) and bool(((kept != 0) & (kept != 1)).any()):
            raise ValueError(
                f"mask of integers must be 0 or 1 (1 = token); got {int(kept[(kept != 0) & (kept != 1)][0])}"
            )
        if kept.shape != emissions.shape[:2]:
            other = "the other order; give mask.T, or the batch_first of the tensors"
            why = f": {other}" if kept.shape == emissions.shape[:2][::-1] else ""
            raise ValueError(f"mask must be {order}), {tuple(emissions.shape[:2])}; got {tuple(kept.shape)}{why}")
        kept = kept.bool()
        if not self.batch_first:
            emissions, kept = emissions.transpose(0, 1), kept.transpose(0, 1)
        if _check.readable(kept) and _other_order(kept):
            raise ValueError(
                f"mask is {'(n, B)' if self.batch_first else '(B, n)'}, it seems: its columns, not its rows, are tokens"
                " followed by padding; give mask.T, or the batch_first of the tensors"
            )
        return emissions, kept

    def _scored(self, emissions: Tensor, kept: Tensor) -> Scored:
        """The chain of the tokens of emissions (B, n, s)."""
        start = _only(self.start_transitions, self.allowed_start)
        end = _only(self.end_transitions, self.allowed_end)
        transition = _only(self.transitions, self.allowed_transitions)
        return tokens_first(emissions, kept, start, transition, end)

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
        # the emissions may be padded further than the tags
        whole = torch.nn.functional.pad(whole, (*(0, 0) * (whole.dim() - 2), 0, kept.shape[1] - whole.shape[1]))
        return whole if self.batch_first else whole.transpose(0, 1)

    def _tags(self, tags: Tensor, kept: Tensor) -> Tensor:
        """Tags (B, n), 0 at positions left out, or a bool tensor of allowed tags (B, n, s)."""
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
        if _check.readable(tags):
            bad = ((tags < -1) & (tags != LEFT_OUT)) | (tags >= self.num_tags)
            if bool(bad.any()):
                raise ValueError(
                    f"tags must be in [0, {self.num_tags}), -1 if unknown, or {LEFT_OUT} at positions left out;"
                    f" got {int(tags[bad][0])}"
                )
        return tags

    def _losses(self, scored: Scored, tags: Tensor) -> Tensor:
        """-log of the probability of the sequences that agree with the tags, (B,); inf if all are forbidden."""
        unary, transition, chain, lengths = scored[:4]
        if tags.dtype != torch.bool:
            # test for unknown tags only if values can be read without waiting for a device
            if _check.readable(tags) and not bool((tags < 0).any()):
                return chain.less(tags, unary, transition).value(SHANNON)
            tags = (tags[..., None] == torch.arange(self.num_tags, device=tags.device)) | (tags < 0)[..., None]
        # the sums over all sequences and over those that agree, as one batch of twice as many
        both = torch.cat([unary, unary.masked_fill(~tags, -torch.inf)])
        total, gold = Chain(lengths.repeat(2)).logsumexp(both, transition).chunk(2)
        return torch.where(gold == -torch.inf, torch.inf, total - gold)

    def _refuse_forbidden(self, scored: Scored, tags: Tensor) -> None:
        """Raise ValueError for tags that the constraints forbid; emissions of -inf raise no error."""
        with torch.no_grad():
            transition = _only(torch.zeros_like(self.transitions), self.allowed_transitions).double()
            zeros = self._scored(torch.zeros_like(scored.unary), scored.kept)
            free = zeros._replace(unary=zeros.unary.double().clamp(max=0), transition=transition)
            lost = self._losses(free, tags) == torch.inf
        if not bool(lost.any()):
            return
        b = int(lost.nonzero()[0])
        n, hint = int(scored.lengths[b]), "constraints=None allows all moves"
        row, where = tags[b, :n], scored.order[b].tolist() if scored.order is not None else list(range(n))
        if tags.dtype == torch.bool or bool((row < 0).any()):
            raise ValueError(f"no tags of instance {b} that agree with `tags` keep the constraints; {hint}")
        y = row.tolist()
        if self.allowed_start is not None and not self.allowed_start[y[0]]:
            fault = f"the first token has tag {self._name(y[0])}"
        elif self.allowed_end is not None and not self.allowed_end[y[-1]]:
            fault = f"the last token has tag {self._name(y[-1])}"
        moves = self.allowed_transitions
        for t in range(1, n):
            if moves is not None and not moves[y[t - 1], y[t]]:
                fault = f"tag {self._name(y[t])} at position {where[t]} follows {self._name(y[t - 1])}"
                break
        raise ValueError(f"tags of instance {b} break the constraints: {fault}; {hint}")

    def _name(self, tag: int) -> str:
        return str(tag) if self.labels is None else self.labels[tag]


def _labels(tags: Sequence[str]) -> tuple[str, ...]:
    """The names of tags, checked."""
    if isinstance(tags, str) or not isinstance(tags, Sequence) or not all(isinstance(t, str) for t in tags):
        raise TypeError(f"num_tags must be a positive integer, or a list of the names of the tags; got {tags!r}")
    if len(set(tags)) < len(tags):
        twice = next(t for k, t in enumerate(tags) if t in tags[:k])
        raise ValueError(f"the names of tags must differ; got {twice!r} twice")
    return tuple(tags)


def _other_order(kept: Tensor) -> bool:
    """True if a square mask has tokens before padding along its first dim, and not along its second."""
    if kept.shape[0] != kept.shape[1] or not bool((kept[:, 1:] & ~kept[:, :-1]).any()):
        return False
    return bool(kept[0].all()) and not bool((kept[1:] & ~kept[:-1]).any())


def _only(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
