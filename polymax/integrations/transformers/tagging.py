"""Token classification by a conditional random field above any encoder."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForTokenClassification
from transformers.modeling_outputs import TokenClassifierOutput

from polymax.integrations.transformers.encoders import (
    IGNORED,
    EncoderHeadConfig,
    EncoderWithHead,
    check_labels,
    check_tokens,
    label_names,
    word_places,
)
from polymax.nn.crf import CRF
from polymax.nn.tag_schemes import scheme_constraints, scheme_of


class CRFConfig(EncoderHeadConfig):
    """The configuration of `CRFForTokenClassification`.

    Arguments:
        encoder: a configuration of Transformers, or a dictionary of its fields with `model_type`
        constraints: the rules of tags: "labels" reads them from the names in `id2label`, "BIO", "BIOES", "IOBES" or
            "BILOU" names a scheme, None allows all transitions
        dropout: the probability with which entries of the encoder's output are dropped in training
        options: fields that all configurations have, such as `id2label`

    Example:
        >>> from transformers import BertConfig
        >>> CRFConfig(encoder=BertConfig(), id2label={0: "O", 1: "B-PER", 2: "I-PER"}).num_labels
        3
    """

    model_type = "polymax-crf"

    def __init__(
        self, encoder: Any = None, constraints: str | None = "labels", dropout: float = 0.1, **options: Any
    ) -> None:
        self.constraints = constraints
        super().__init__(encoder, dropout, **options)


class CRFForTokenClassification(EncoderWithHead):
    """A conditional random field above an encoder, as a model for token classification of Transformers.

    Labels are in Hugging Face's form: (B, n), -100 at special tokens and at subwords that are not the first of their
    word. The field is a chain of words, whose rules come from the names of the labels. The loss is its negative
    log-likelihood per word. `Trainer`, `pipeline("token-classification")`, `AutoModelForTokenClassification` and
    `push_to_hub` take the model; programs that load it import `polymax.integrations.transformers` before.

    In evaluation, softmax of `logits` gives the probability of each label given the whole sentence, in which no label
    exceeds that of the best sequence: the largest logit of a word is at its label in `decode`. Subwords that are not
    first have the logits of their word, in which B-X and I-X are exchanged if the label is B-X. In training, logits
    are the scores of words before the chain.

    Without labels, words begin where `word_mask` is True, otherwise at the tokens marked in `token_kinds`, which
    `from_encoder` and `with_tokenizer` fill from a tokenizer.

    Shapes: input_ids, attention_mask, labels, word_mask (B, n); logits (B, n, labels)

    Example:
        >>> from transformers import BertConfig
        >>> sizes = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> config = CRFConfig(encoder=BertConfig(**sizes), id2label={0: "O", 1: "B-PER", 2: "I-PER"})
        >>> model = CRFForTokenClassification(config)
        >>> tokens = torch.tensor([[1, 4, 2, 3]])
        >>> output = model(tokens, labels=torch.tensor([[-100, 1, 2, -100]]))
        >>> output.loss.shape, output.logits.shape
        (torch.Size([]), torch.Size([1, 4, 3]))
        >>> len(model.eval().decode(tokens)[0])
        4

    See: Lafferty, McCallum and Pereira 2001, Conditional random fields.
    """

    config_class = CRFConfig

    def __init__(self, config: CRFConfig, encoder: nn.Module | None = None) -> None:
        super().__init__(config, encoder)
        self.num_labels = config.num_labels
        self.classifier = nn.Linear(config.hidden_size, len(label_names(config)))
        self.crf = CRF(label_names(config), constraints=config.constraints)
        self.register_buffer("continued", _continued(label_names(config)), persistent=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        word_mask: Tensor | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> Any:
        """Return a `TokenClassifierOutput`; further arguments, such as `token_type_ids`, are the encoder's.

        Labels that break the rules raise a ValueError, as in `pm.nn.CRF`.
        """
        states, output = self._encoded(input_ids, attention_mask, options)
        emissions = self.classifier(states).float()
        check_labels(labels, states, "labels")
        check_tokens(word_mask, states, "word_mask")
        if labels is not None:
            word_mask = labels != IGNORED if word_mask is None else word_mask.bool() & (labels != IGNORED)
        words, inside = self._words(input_ids, attention_mask, word_mask, states)
        loss = None
        if labels is not None:
            total = self.crf(emissions, torch.where(words, labels, IGNORED), words, reduction="sum")
            loss = total / words.sum().clamp(min=1)
        logits: Any = emissions if self.training else self._decoded_logits(emissions, words, inside)
        found = TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=output.hidden_states, attentions=output.attentions
        )
        return found.to_tuple() if return_dict is False else found

    @torch.no_grad()
    def decode(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        word_mask: Tensor | None = None,
        **options: Any,
    ) -> list[list[str]]:
        """Return the names of the most probable labels of each sentence, one for each word.

        Words begin where `word_mask` (B, n) is True; without it, at the tokens that the tokenizer marks. The labels
        keep the rules.
        """
        training = self.training
        self.eval()
        try:
            states, _ = self._encoded(input_ids, attention_mask, options)
            words, _ = self._words(input_ids, attention_mask, word_mask, states)
            rows = self.crf.decode(self.classifier(states).float(), words)
        finally:
            self.train(training)
        names = label_names(self.config)
        return [[names[label] for label in row] for row in rows]

    def _decoded_logits(self, emissions: Tensor, words: Tensor, inside: Tensor) -> Tensor:
        """Logarithms of probabilities (B, n, labels), whose largest one is at the label of the best sequence."""
        probabilities = self.crf.marginals(emissions, words)
        best = self.crf.best_tags(emissions, words).clamp(min=0)
        at = best.unsqueeze(-1)
        most = probabilities.gather(-1, at)
        # strictly less than the best label, also after rounding
        less = torch.minimum(probabilities, most * (1 - 1e-5)).scatter(-1, at, most)
        # the first subword of the word that a token belongs to
        count = words.cumsum(1)
        source = word_places(words).gather(1, (count - 1).clamp(min=0))
        rows = less.gather(1, source.unsqueeze(-1).expand_as(less))
        # later subwords of a word get I-X in place of B-X
        label = best.gather(1, source)
        begun, moved = label.unsqueeze(-1), self.continued[label].unsqueeze(-1)
        later = (rows.gather(-1, begun) * (1 - 1e-5), rows.gather(-1, moved))
        exchanged = rows.scatter(-1, begun, later[1]).scatter(-1, moved, later[0])
        rows = torch.where(words.unsqueeze(-1), rows, torch.where(begun == moved, rows, exchanged))
        known = (words | inside) & (count > 0)
        return torch.where(known.unsqueeze(-1), rows.log(), 0)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, CRF):
            for parameter in module.parameters(recurse=False):
                if not getattr(parameter, "_is_hf_initialized", False):
                    nn.init.uniform_(parameter, -0.1, 0.1)

    def _fill_buffers(self) -> None:
        names = label_names(self.config)
        constraints = self.config.constraints
        scheme = scheme_of(names) if constraints == "labels" else constraints
        device = self.crf.transitions.device
        if scheme is not None:
            rules = scheme_constraints(scheme, names)
            for name, rule in zip(("transitions", "start", "end"), rules, strict=True):
                setattr(self.crf, f"allowed_{name}", rule.to(device))
        self.continued = _continued(names).to(device)


def _continued(names: list[str]) -> Tensor:
    """The label that later subwords of a word have: I-X for B-X if there is I-X, else the word's label."""
    later = [f"I-{name[2:]}" if name.startswith("B-") else name for name in names]
    return torch.tensor([names.index(a) if a in names else k for k, a in enumerate(later)])


AutoConfig.register(CRFConfig.model_type, CRFConfig)
AutoModelForTokenClassification.register(CRFConfig, CRFForTokenClassification)
