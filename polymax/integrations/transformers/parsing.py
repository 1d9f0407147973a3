"""Dependency parsing by scores of arcs above any encoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModel
from transformers.utils import ModelOutput

from polymax import _check
from polymax.integrations.transformers.encoders import (
    IGNORED,
    EncoderHeadConfig,
    EncoderWithHead,
    check_labels,
    label_names,
    word_places,
)
from polymax.losses import crf_loss, sparsemap_loss, svm_loss
from polymax.nn.scorers import ArcScorer, RelationScorer
from polymax.structures import ProjectiveTree, SpanningTree

TREE_LOSSES: dict[str, Callable[..., Tensor]] = {"crf": crf_loss, "svm": svm_loss, "sparsemap": sparsemap_loss}


class DependencyParserConfig(EncoderHeadConfig):
    """The configuration of `DependencyParserModel`.

    Arguments:
        encoder: a configuration of Transformers, or a dictionary of its fields with `model_type`
        loss: the loss of trees: "crf" gives every tree a probability, "svm" is the margin loss with the cost of wrong
            heads, "sparsemap" gives few trees a probability
        projective: True for trees without crossing arcs
        single_root: True if exactly one word has the root as its head
        labelled: True if arcs have labels, those of `id2label`
        arc_size, label_size: the sizes of the hidden vectors of heads and modifiers
        dropout: the probability with which entries of the encoder's output and of hidden vectors are dropped
        options: fields that all configurations have, such as `id2label`

    Example:
        >>> from transformers import BertConfig
        >>> DependencyParserConfig(encoder=BertConfig(), id2label={0: "root", 1: "nsubj"}).num_labels
        2
    """

    model_type = "polymax-dependency-parser"
    # arcs differ in both sizes from batch to batch
    keys_to_ignore_at_inference = ["arcs", "hidden_states", "attentions"]  # noqa: RUF012

    def __init__(
        self,
        encoder: Any = None,
        loss: str = "crf",
        projective: bool = False,
        single_root: bool = True,
        labelled: bool = True,
        arc_size: int = 256,
        label_size: int = 64,
        dropout: float = 0.1,
        **options: Any,
    ) -> None:
        if loss not in TREE_LOSSES:
            raise ValueError(f"loss must be one of {', '.join(TREE_LOSSES)}; got {loss!r}")
        self.loss, self.projective, self.single_root, self.labelled = loss, projective, single_root, labelled
        self.arc_size, self.label_size = arc_size, label_size
        super().__init__(encoder, dropout, **options)


class Arc(NamedTuple):
    """The arc to a word: the number of its head, 0 for the root, and its label, None without labels.

    Example:
        >>> Arc(0, "root").head
        0
    """

    head: int
    label: str | None


@dataclass
class ParserOutput(ModelOutput):
    """The output of `DependencyParserModel`; `heads` and `relations` are None in training.

    Arguments:
        loss: the loss per word
        heads: the heads of the best tree (B, n) at first subwords, -100 elsewhere
        relations: the labels of its arcs (B, n), -100 elsewhere
        arcs: the scores of arcs (B, words + 1, words + 1), [head, modifier], 0 the root
        hidden_states, attentions: those of the encoder

    Example:
        >>> ParserOutput(loss=torch.tensor(0.5)).loss
        tensor(0.5000)
    """

    loss: Tensor | None = None
    heads: Tensor | None = None
    relations: Tensor | None = None
    arcs: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class DependencyParserModel(EncoderWithHead):
    """A biaffine dependency parser above an encoder, with a loss of whole trees.

    A word is the state of its first subword. `head_labels` (B, n) has the head of each word at its first subword, as
    treebanks number words: 0 is the root, the first word is 1. `labels` (B, n) has the labels of arcs. Both are -100 at
    special tokens and at other subwords. The loss is that of the trees plus the cross-entropy of labels, per word.
    `Trainer`, `AutoModel` and `push_to_hub` take the model; `ParserCollator` makes batches.

    Without `head_labels`, words begin where `word_mask` is True, otherwise at the tokens marked in `token_kinds`, which
    `from_encoder` and `with_tokenizer` fill from a tokenizer.

    Shapes: input_ids, attention_mask, head_labels, labels, word_mask (B, n)

    Example:
        >>> from transformers import BertConfig
        >>> sizes = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> config = DependencyParserConfig(encoder=BertConfig(**sizes), id2label={0: "root", 1: "nsubj"})
        >>> model = DependencyParserModel(config)
        >>> heads, labels = torch.tensor([[-100, 2, 0, -100]]), torch.tensor([[-100, 1, 0, -100]])
        >>> model(torch.tensor([[1, 4, 2, 3]]), head_labels=heads, labels=labels).loss.shape
        torch.Size([])
        >>> len(model.decode(torch.tensor([[4, 2, 3]]))[0])
        3

    See: Dozat and Manning 2017, Deep biaffine attention for neural dependency parsing.
    """

    config_class = DependencyParserConfig

    def __init__(self, config: DependencyParserConfig, encoder: nn.Module | None = None) -> None:
        super().__init__(config, encoder)
        self.arcs = ArcScorer(config.hidden_size, config.arc_size, config.dropout)
        self.relations = (
            RelationScorer(config.hidden_size, config.label_size, len(label_names(config)), config.dropout)
            if config.labelled
            else None
        )
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        head_labels: Tensor | None = None,
        labels: Tensor | None = None,
        word_mask: Tensor | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> Any:
        """Return a `ParserOutput`; further arguments, such as `token_type_ids`, are the encoder's."""
        states, output = self._encoded(input_ids, attention_mask, options)
        check_labels(head_labels, states, "head_labels")
        check_labels(labels, states, "labels")
        if head_labels is not None:
            word_mask = head_labels != IGNORED
        words, _ = self._words(input_ids, attention_mask, word_mask, states)
        place, lengths = word_places(words), words.sum(1)
        if _check.readable(lengths) and len(lengths):
            place = place[:, : int(lengths.max())]
        nodes = self.arcs.with_root(_taken(states, place))
        arcs = self.arcs(nodes[:, 1:]).float()
        trees = self._trees(lengths)
        inside = torch.arange(place.shape[1], device=place.device) < lengths.unsqueeze(-1)
        loss = best = relations = None
        if head_labels is not None:
            heads = torch.where(inside, head_labels.gather(1, place), -1)
            total = TREE_LOSSES[self.config.loss](trees, arcs, heads, reduction="sum")
            if self.relations is not None and labels is not None:
                known = torch.where(inside, labels.gather(1, place), IGNORED)
                scores = self.relations(nodes, heads).float()
                total = total + cross_entropy(scores.flatten(0, 1), known.flatten(), reduction="sum")
            loss = total / lengths.sum().clamp(min=1)
        if not self.training:
            with torch.no_grad():
                heads = trees.decode(trees.map(arcs))
                best = _spread(heads, place, inside, words)
                if self.relations is not None:
                    relations = _spread(self._best_relations(nodes, heads), place, inside, words)
        found = ParserOutput(loss, best, relations, arcs, output.hidden_states, output.attentions)
        return found.to_tuple() if return_dict is False else found

    @torch.no_grad()
    def decode(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        word_mask: Tensor | None = None,
        **options: Any,
    ) -> list[list[Arc]]:
        """Return the best tree of each sentence: for each word its arc, (head, label).

        Words begin where `word_mask` (B, n) is True; without it, at the tokens that the tokenizer marks.
        """
        training = self.training
        self.eval()
        try:
            found = self(input_ids, attention_mask, word_mask=word_mask, **options)
        finally:
            self.train(training)
        names, rows = label_names(self.config), []
        for k, heads in enumerate(found.heads.tolist()):
            numbers = [None] * len(heads) if found.relations is None else found.relations[k].tolist()
            pairs = [(head, number) for head, number in zip(heads, numbers, strict=True) if head != IGNORED]
            rows.append([Arc(head, None if n is None else names[n]) for head, n in pairs])
        return rows

    def _trees(self, lengths: Tensor) -> SpanningTree | ProjectiveTree:
        kind = ProjectiveTree if self.config.projective else SpanningTree
        return kind(lengths, single_root=self.config.single_root)

    def _best_relations(self, nodes: Tensor, heads: Tensor) -> Tensor:
        """The best labels (B, words) of arcs; a label "root" is for arcs from the root alone."""
        assert self.relations is not None
        scores = self.relations(nodes, heads).float()
        rooted = [name.lower() == "root" for name in label_names(self.config)]
        if any(rooted) and not all(rooted):
            root = torch.tensor(rooted, device=heads.device)
            scores = scores.masked_fill(root != (heads == 0).unsqueeze(-1), -torch.inf)
        return scores.argmax(-1)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        owned = {"root": "normal", "forms": "uniform"}
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, ArcScorer | RelationScorer) and not getattr(parameter, "_is_hf_initialized", False):
                if owned[name] == "normal":
                    nn.init.normal_(parameter, std=len(parameter) ** -0.5)
                else:
                    bound = 1 / (parameter.shape[-1] - 1)
                    nn.init.uniform_(parameter, -bound, bound)


class ParserCollator:
    """Pads sentences to batches for `DependencyParserModel`: tokens as the tokenizer does, labels by -100.

    Example:
        >>> from transformers import BertTokenizerFast
        >>> tokenizer = BertTokenizerFast(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3})
        >>> features = [{"input_ids": [2, 1, 1, 3], "labels": [-100, 4, 5, -100]}, {"input_ids": [2], "labels": [-100]}]
        >>> ParserCollator(tokenizer)(features)["labels"]
        tensor([[-100,    4,    5, -100],
                [-100, -100, -100, -100]])
    """

    def __init__(self, tokenizer: Any) -> None:
        """Take the tokenizer that made the features."""
        self.tokenizer = tokenizer

    def __call__(self, features: Sequence[dict[str, Any]]) -> Any:
        """Return a batch of features with `input_ids`, and `head_labels` and `labels` if they have these."""
        names = [name for name in ("head_labels", "labels") if name in features[0]]
        batch = self.tokenizer.pad(
            [{k: v for k, v in each.items() if k not in names} for each in features], return_tensors="pt"
        )
        size = batch["input_ids"].shape[1]
        for name in names:
            rows = [list(each[name]) for each in features]
            padded = [(row, [IGNORED] * (size - len(row))) for row in rows]
            left = self.tokenizer.padding_side == "left"
            batch[name] = torch.tensor([b + a if left else a + b for a, b in padded])
        return batch


def _spread(values: Tensor, place: Tensor, inside: Tensor, words: Tensor) -> Tensor:
    """Values of words at the positions of their first subwords (B, n), -100 elsewhere."""
    # padding is written behind the last token
    at = torch.where(inside, place, words.shape[1])
    return values.new_full((len(words), words.shape[1] + 1), IGNORED).scatter(1, at, values)[:, :-1]


def _taken(states: Tensor, place: Tensor) -> Tensor:
    return states.gather(1, place.unsqueeze(-1).expand(*place.shape, states.shape[-1]))


AutoConfig.register(DependencyParserConfig.model_type, DependencyParserConfig)
AutoModel.register(DependencyParserConfig, DependencyParserModel)
