"""Models of a pretrained encoder and a structured head: their configuration, the encoder, and the first subwords."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from polymax import _check

# kinds of tokens: one that may begin a word, one that continues a word, and one that is no part of the text
BEGINS, CONTINUES, SPECIAL = 0, 1, 2
# prefixes of tokens that begin words, and the prefix of tokens that continue words
BEGINNINGS, CONTINUATION = ("\u2581", "\u0120"), "##"
# labels of tokens that are left out, as in torch.nn.functional.cross_entropy
IGNORED = -100


class EncoderHeadConfig(PreTrainedConfig):
    """The configuration of an encoder, with labels and dropout of the layers above it.

    Arguments:
        encoder: a configuration of Transformers, or a dictionary of its fields with `model_type`
        dropout: the probability with which entries of the encoder's output are dropped in training
        options: fields that all configurations have, such as `id2label`
    """

    has_no_defaults_at_init = True
    sub_configs = {"encoder": AutoConfig}  # noqa: RUF012

    def __init__(self, encoder: Any = None, dropout: float = 0.1, **options: Any) -> None:
        if encoder is None:
            raise ValueError(
                f"{type(self).__name__} must be given encoder=, a configuration; a pretrained encoder without a head "
                "is loaded by the model's from_encoder(name, ...)"
            )
        if not isinstance(encoder, PreTrainedConfig):
            if not isinstance(encoder, dict) or "model_type" not in encoder:
                came = f"a dict with {', '.join(encoder) or 'nothing'}" if isinstance(encoder, dict) else repr(encoder)
                raise TypeError(
                    f"encoder must be a configuration of Transformers, or a dict with model_type; got {came}"
                )
            encoder = AutoConfig.for_model(**encoder)
        self.encoder = encoder
        self.dropout = dropout
        if options.get("id2label") and not options.get("label2id"):
            options["label2id"] = {name: int(number) for number, name in options["id2label"].items()}
        # the encoder keeps its attention, which the base class would reset
        options.setdefault("attn_implementation", encoder._attn_implementation)
        super().__init__(**options)

    @property
    def hidden_size(self) -> int:
        """The size of the encoder's output."""
        return self.encoder.hidden_size

    @property
    def vocab_size(self) -> int:
        """The number of tokens of the encoder."""
        return self.encoder.vocab_size

    @vocab_size.setter
    def vocab_size(self, size: int) -> None:
        self.encoder.vocab_size = size

    def get_text_config(self, *args: Any, **options: Any) -> Any:
        return self.encoder.get_text_config(*args, **options)


class EncoderWithHead(PreTrainedModel):
    """An encoder that `AutoModel` builds, with the methods that all heads on top of it share.

    `token_kinds` (vocabulary,) says of each token if it begins a word, continues a word or is special. It comes from a
    tokenizer, and is saved with the model. Without a tokenizer, every token is a word.
    """

    config_class: Any = EncoderHeadConfig
    base_model_prefix = "polymax_model"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    token_kinds: Tensor

    def __init__(self, config: EncoderHeadConfig, encoder: nn.Module | None = None) -> None:
        super().__init__(config)
        if encoder is None:
            encoder = _encoder_of(AutoModel.from_config(config.encoder))
        else:
            # post_init draws parameters of modules without this mark
            for module in encoder.modules():
                module._is_hf_initialized = True  # type: ignore[assignment]
        self.encoder: Any = encoder
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("token_kinds", torch.zeros(config.vocab_size, dtype=torch.uint8))

    @classmethod
    def from_encoder(
        cls,
        encoder: str | PreTrainedModel,
        labels: Sequence[str] | None = None,
        tokenizer: Any = None,
        encoder_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Return a model with a pretrained encoder and a head to be trained.

        Arguments:
            encoder: a name or a folder for `AutoModel.from_pretrained`, or a model
            labels: the names of the labels, in the order of their numbers
            tokenizer: the encoder's tokenizer, from which the model learns which tokens begin words
            encoder_options: options of `AutoModel.from_pretrained`, such as `dtype`
            options: further fields of the configuration
        """
        inner: Any = encoder
        if isinstance(encoder, str):
            inner = AutoModel.from_pretrained(encoder, **(encoder_options or {}))
        if labels is not None:
            options["id2label"] = dict(enumerate(labels))
        model: Any = cls(cls.config_class(encoder=inner.config, **options), _encoder_of(inner))
        if inner.dtype in (torch.float16, torch.bfloat16):
            model = model.to(inner.dtype)
        return model if tokenizer is None else model.with_tokenizer(tokenizer)

    @classmethod
    def from_pretrained(cls, *args: Any, **options: Any) -> Any:
        found = super().from_pretrained(*args, **options)
        model = found[0] if isinstance(found, tuple) else found
        # buffers that are not saved have no values after loading
        model._fill_buffers()
        return found

    def with_tokenizer(self, tokenizer: Any) -> Any:
        """Learn from a tokenizer which tokens begin words and which are special; return the model."""
        self.token_kinds.copy_(token_kinds(tokenizer, len(self.token_kinds)))
        return self

    def get_input_embeddings(self) -> Any:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    def resize_token_embeddings(self, *args: Any, **options: Any) -> Any:
        found = super().resize_token_embeddings(*args, **options)
        size, kinds = self.get_input_embeddings().num_embeddings, self.token_kinds
        self.config.vocab_size = size
        self.token_kinds = nn.functional.pad(kinds, (0, size - len(kinds)))
        return found

    def _fill_buffers(self) -> None:
        """Give values to buffers that are not saved."""

    def _encoded(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, options: dict[str, Any]
    ) -> tuple[Tensor, Any]:
        """The states (B, n, d) after dropout, and the output of the encoder."""
        given = {name: value for name, value in options.items() if value is not None}
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **given, return_dict=True)
        return self.dropout(output.last_hidden_state), output

    def _words(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, word_mask: Tensor | None, states: Tensor
    ) -> tuple[Tensor, Tensor]:
        """True at first subwords (B, n), and True at all tokens of words (B, n)."""
        check_tokens(word_mask, states, "word_mask")
        seen = states.new_ones(states.shape[:2], dtype=torch.bool)
        if attention_mask is not None and attention_mask.dim() == 2:
            seen = attention_mask.bool()
        if input_ids is None:
            return (seen if word_mask is None else word_mask.bool() & seen), seen
        kinds = self.token_kinds[input_ids]
        inside = seen & (kinds != SPECIAL)
        if word_mask is not None:
            return word_mask.bool() & seen, inside
        before = nn.functional.pad(inside[:, :-1], (1, 0), value=False)
        return inside & ((kinds == BEGINS) | ~before), inside


def label_names(config: Any) -> list[str]:
    """Return the names of the labels, in the order of their numbers."""
    return [config.id2label[number] for number in range(config.num_labels)]


def check_tokens(x: Tensor | None, states: Tensor, name: str) -> None:
    """Refuse a tensor that has no entry for each token, unless it is None."""
    if x is not None and (not isinstance(x, Tensor) or x.shape != states.shape[:2]):
        raise ValueError(f"{name} must be {tuple(states.shape[:2])}, as input_ids; got {_check.shape(x)}")


def check_labels(x: Tensor | None, states: Tensor, name: str) -> None:
    """Refuse a tensor that has no integer for each token, unless it is None."""
    check_tokens(x, states, name)
    if x is not None and x.is_floating_point():
        raise TypeError(f"{name} must be integers; got {x.dtype}")


def token_kinds(tokenizer: Any, size: int) -> Tensor:
    """Say of each token if it begins a word (0), continues a word (1) or is special (2): uint8 (size,).

    Tokens that continue words have the prefix "##", or lack the sign of a space before them, if the vocabulary has
    either; otherwise every token begins a word.
    """
    vocabulary = {token: number for token, number in tokenizer.get_vocab().items() if number < size}
    counts = {mark: sum(token.startswith(mark) for token in vocabulary) for mark in (*BEGINNINGS, CONTINUATION)}
    mark = max(counts, key=lambda key: counts[key])
    kinds = torch.zeros(size, dtype=torch.uint8)
    if counts[mark]:
        later = [n for token, n in vocabulary.items() if token.startswith(mark) == (mark == CONTINUATION)]
        kinds[later] = CONTINUES
    # the unknown word is a word of the text
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    kinds[[number for number in special if number < size]] = SPECIAL
    return kinds


def word_places(words: Tensor) -> Tensor:
    """Return the positions of first subwords in order, and then those of other tokens: words and result (B, n)."""
    position = torch.arange(words.shape[1], device=words.device)
    return torch.where(words, position, position + words.shape[1]).argsort(1)


def word_labels(encoding: Any, labels: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return labels of tokens from labels of words: -100 at subwords that are not first, and at special tokens.

    `encoding` is the result of a fast tokenizer for sentences that are split into words.

    Arguments:
        encoding: a `BatchEncoding` of a fast tokenizer
        labels: for each sentence the labels of its words

    Example:
        >>> from transformers import BertTokenizerFast
        >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "an", "##na", "met"]
        >>> tokenizer = BertTokenizerFast(vocab={piece: number for number, piece in enumerate(pieces)})
        >>> encoding = tokenizer([["anna", "met"]], is_split_into_words=True)
        >>> word_labels(encoding, [[7, 0]])  # [CLS] an ##na met [SEP]
        [[-100, 7, -100, 0, -100]]
    """
    found = []
    for k, given in enumerate(labels):
        ids = encoding.word_ids(k)
        before = [None, *ids[:-1]]
        found.append([IGNORED if a is None or a == b else given[a] for a, b in zip(ids, before, strict=True)])
    return found


def _encoder_of(model: Any) -> nn.Module:
    """The encoder of a model, without a pooler that no head uses."""
    if model.config.is_encoder_decoder and hasattr(model, "decoder"):
        return model.get_encoder()
    if getattr(model, "pooler", None) is not None and "bert" in type(model).__name__.lower():
        model.pooler = None
    return model
