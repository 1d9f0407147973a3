"""A pretrained encoder of Hugging Face that reads sentences, instead of a network with random weights.

A run keeps the tokenizer and the configuration among its vocabularies, and the weights among its weights: after its
first epoch, it no longer needs the directory or the site of the encoder.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.task import Vocabularies
from polymax_recipes.training.vocabulary import Subwords, Words, stored_words

# fields of a configuration that fetch code, kernels or models, or change the arithmetic
FETCHED = (
    "auto_map",
    "attn_implementation",
    "attn_implementation_internal",
    "experts_implementation",
    "trust_remote_code",
    "quantization_config",
    "use_kernels",
    "kernel_config",
    "backbone",
    "backbone_config",
    "use_pretrained_backbone",
    "use_timm_backbone",
    "name_or_path",
)
# fields of a configuration that name its origin and the program that wrote it
PASSING = ("_name_or_path", "transformers_version", "dtype")


class Pieces(NamedTuple):
    """Shapes: pieces (b, m); piece_lengths (b,); firsts (b, n), places of first pieces of tokens; lengths (b,)."""

    pieces: Tensor
    piece_lengths: Tensor
    firsts: Tensor
    lengths: Tensor


class PieceTable:
    """Sentences as the pieces of a pretrained encoder: batches of them on request.

    Tokens without pieces have the place of the first mark: tokens beyond the longest text that the encoder takes, and
    those that its tokenizer drops, such as control characters.
    """

    def __init__(self, sentences: Sequence[Sequence[str]], vocabularies: Vocabularies) -> None:
        subwords = vocabularies["pieces"]
        assert isinstance(subwords, Subwords)
        longest = longest_text(configuration(vocabularies))
        encoded = subwords.tokenizer.encode_batch([list(tokens) for tokens in sentences], is_pretokenized=True)
        # a text that is cut keeps its end marks
        self.pieces = Ragged.of(e.ids if len(e.ids) <= longest else [*e.ids[: longest - 1], e.ids[-1]] for e in encoded)
        self.firsts = Ragged.of(_firsts(e.word_ids, len(s), longest - 1) for e, s in zip(encoded, sentences))
        self.sizes = self.firsts.lengths

    def __getitem__(self, rows: Tensor) -> Pieces:
        return Pieces(*self.pieces.padded(rows), *self.firsts.padded(rows))


class PretrainedReader(nn.Module):
    """States of tokens: a pretrained encoder's states of their first pieces; it is fine-tuned.

    Shapes: as in Pieces -> (b, n, size), with dropout

    See: Devlin et al. 2019, BERT, Section 5.3.
    """

    def __init__(self, options: Any, vocabularies: Vocabularies) -> None:
        super().__init__()
        network = _transformers()
        stored = configuration(vocabularies)
        with nothing_fetched():
            config = network.AutoConfig.for_model(**own_configuration(stored))
            self.network = network.AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False)
        for name, parameter in self.network.named_parameters():
            # the pooler reads the whole text, and does not affect the states of tokens
            if name.startswith("pooler."):
                parameter.requires_grad_(False)
        self.dropout = nn.Dropout(options.dropout)
        self.size = config.hidden_size

    def forward(self, pieces: Tensor, piece_lengths: Tensor, firsts: Tensor, lengths: Tensor) -> Tensor:
        there = torch.arange(pieces.shape[1], device=pieces.device) < piece_lengths.unsqueeze(1)
        states = self.network(input_ids=pieces, attention_mask=there.long()).last_hidden_state
        return self.dropout(states.gather(1, firsts.unsqueeze(-1).expand(-1, -1, states.shape[-1])))

    def begin(self, encoder: str) -> None:
        """Take the weights of the encoder of a name or in a directory."""
        found = _from(encoder, "AutoModel", dtype=torch.float32)
        self.network.load_state_dict(found.state_dict())


def encoder_vocabularies(encoder: str) -> Vocabularies:
    """The tokenizer and the configuration of an encoder, given by name or directory, in the form that a run keeps."""
    tokenizer = _from(encoder, "AutoTokenizer", add_prefix_space=True)
    if not tokenizer.is_fast:
        raise ValueError(f"--encoder: {encoder} has no fast tokenizer (package tokenizers), which maps pieces to words")
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    # special tokens in a text are encoded as ordinary text
    backend.encode_special_tokens = True
    config = _from(encoder, "AutoConfig").to_dict()
    for name in PASSING:
        config.pop(name, None)
    return {"pieces": Subwords(backend), "network": Words((json.dumps(config, sort_keys=True),))}


def configuration(vocabularies: Vocabularies) -> dict[str, Any]:
    """The configuration of the encoder, as a run keeps it."""
    return json.loads(stored_words(vocabularies, "network").words[0])


def own_configuration(stored: dict[str, Any]) -> dict[str, Any]:
    """The configuration without fields that would fetch or run code; a ValueError if it is not for an encoder of text.

    A run may come from a stranger, and a configuration can name code, kernels and other models on the network.

    Example:
        >>> own_configuration({"model_type": "bert", "hidden_size": 8, "auto_map": {"AutoModel": "a/b--c.D"}})
        {'model_type': 'bert', 'hidden_size': 8}
    """
    _transformers()
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    kind = stored.get("model_type")
    if not isinstance(kind, str) or kind not in TOKENIZER_MAPPING_NAMES:
        raise ValueError(f"model_type must be that of an encoder of text; got {kind!r}")
    return {name: value for name, value in stored.items() if name.lstrip("_") not in FETCHED}


@contextmanager
def nothing_fetched() -> Iterator[None]:
    """Keep Hugging Face from the network inside the block."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def longest_text(config: dict[str, Any]) -> int:
    """The largest number of pieces of a text, with marks; some architectures number positions from 2.

    Example:
        >>> longest_text({"max_position_embeddings": 512})
        510
    """
    positions = config.get("max_position_embeddings") or 0
    return positions - 2 if positions > 0 else 2**31


def _firsts(word_ids: Sequence[int | None], tokens: int, end: int) -> list[int]:
    firsts = [0] * tokens
    for place in reversed(range(min(len(word_ids), end))):
        word = word_ids[place]
        if word is not None:
            firsts[word] = place
    return firsts


def _from(encoder: str, kind: str, **options: Any) -> Any:
    try:
        return getattr(_transformers(), kind).from_pretrained(encoder, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"--encoder: {encoder} cannot be loaded: {str(error).strip().splitlines()[0]}") from None


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ValueError("--encoder needs the package transformers: pip install 'polymax[transformers]'") from None
    return transformers
