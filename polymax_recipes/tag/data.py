"""Tagged sentences: from columns or CoNLL-U, and as batches of words, characters and tags."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.readers.columns import Places, Tagged, read_tagged
from polymax_recipes.readers.conllu import read_conllu
from polymax_recipes.readers.layout import begins_document
from polymax_recipes.readers.lines import ReadError
from polymax_recipes.readers.schemes import BIO, BIOES, IO, IOB1, detect
from polymax_recipes.tag.columns import FIRST_AND_LAST, Chosen, Remembered
from polymax_recipes.tag.rules import read_rules, rules_on
from polymax_recipes.tag.spans import rules_of, spell_spans
from polymax_recipes.text.chosen import table_of
from polymax_recipes.text.pretrained import encoder_vocabularies
from polymax_recipes.text.tokens import Tokens, numbers, token_vocabularies
from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.task import Vocabularies
from polymax_recipes.training.vocabulary import SPECIALS, UNKNOWN, Words, stored_words

SCHEMES = {scheme.name: scheme for scheme in (IO, BIO, BIOES, IOB1)}


def read_tags(
    files: Sequence[Path],
    chosen: Chosen = FIRST_AND_LAST,
    comments: bool | None = None,
    skipped: list[ReadError] | None = None,
) -> list[Tagged]:
    """The sentences of files: words and their UPOS of .conllu, else the first column and the last, or those chosen.

    What cannot be read is left out where there is a list of what was `skipped`.
    """
    if not files:
        raise ValueError("tagged sentences come in one file or more; got 0")
    found: list[Tagged] = []
    for file in files:
        # a file is a document, or several
        before = found[-1].document + 1 if found else 0
        sentences = _read(file, chosen, comments, skipped)
        found += [sentence._replace(document=before + sentence.document) for sentence in sentences]
    return found


def _read(file: Path, chosen: Chosen, comments: bool | None, skipped: list[ReadError] | None) -> Iterator[Tagged]:
    if not file.name.removesuffix(".gz").endswith(".conllu"):
        token, tag = chosen.plain
        yield from read_tagged(file, token=token, tag=tag, comments=comments, skipped=skipped)
        return
    places = Places(0, *chosen.conllu)
    document = 0
    for sentence in read_conllu(file, trees=False, skipped=skipped):
        rows = [sentence.lines[row].rstrip("\r\n").split("\t") for row in sentence.rows]
        document += any(begins_document(line) for line in sentence.lines)
        yield Tagged([row[places.token] for row in rows], [row[places.tag] for row in rows], places, document)


def vocabularies_of(
    examples: Sequence[Tagged],
    scheme: str,
    words: int,
    encoder: str = "",
    chosen: Chosen = FIRST_AND_LAST,
    constraints: str = "",
) -> Vocabularies:
    """Vocabularies of words in lower case and characters, or of an encoder; of tags; the schemes in which these are
    learned and written, the rules that those that are learned keep, the columns that all came from, and the rules of a
    file of `constraints`.

    Example:
        >>> vocabularies_of([Tagged(["Rome"], ["I-LOC"])], "BIO", 100)["tags"].words
        ('B-LOC',)
    """
    schemes = Words((scheme, _scheme_of(examples, scheme)) if scheme in SCHEMES else ())
    spelled = [Tagged(sentence.tokens, in_learned_scheme(sentence.tags, schemes)) for sentence in examples]
    rules = rules_of(spelled)
    tags = {tag for sentence in spelled for tag in sentence.tags}
    tokens = [sentence.tokens for sentence in examples]
    names = tuple(sorted(tags))
    stored = read_rules(Path(constraints)) if constraints else ()
    # a rule that is none is told before the training
    rules_on(stored, names)
    return {
        **(encoder_vocabularies(encoder) if encoder else token_vocabularies(tokens, words)),
        "tags": Words(names),
        "schemes": schemes,
        "rules": Words((rules,) if rules else ()),
        "columns": Remembered.of(examples, chosen).stored(),
        "constraints": Words(stored),
    }


def _scheme_of(examples: Sequence[Tagged], scheme: str) -> str:
    """The scheme of the files; BIO where they keep to none."""
    if not spell_spans({tag for sentence in examples for tag in sentence.tags}):
        raise ValueError(f"--scheme {scheme} must come with tags such as O and B-PER; these do not spell spans")
    try:
        return detect(sentence.tags for sentence in examples).name
    except ValueError:
        return BIO.name


def in_learned_scheme(tags: Sequence[str], schemes: Words) -> list[str]:
    """Tags in the scheme that a run learns; as they are where it was told none."""
    return SCHEMES[schemes.words[0]].convert(tags) if schemes.words else list(tags)


def in_written_scheme(tags: Sequence[str], schemes: Words) -> list[str]:
    """Tags in the scheme of the files that a run learned from.

    Example:
        >>> in_written_scheme(["B-PER", "E-PER", "O", "S-LOC"], Words(("BIOES", "BIO")))
        ['B-PER', 'I-PER', 'O', 'B-LOC']
    """
    return SCHEMES[schemes.words[1]].convert(tags) if schemes.words else list(tags)


class Batch(NamedTuple):
    """Shapes: words (b, n); characters (b, n, c); lengths (b,); tags (b, n), -1 at padding, -2 for unknown ones."""

    words: Tensor
    characters: Tensor
    lengths: Tensor
    tags: Tensor


class PieceBatch(NamedTuple):
    """Shapes: pieces (b, m); piece_lengths (b,); firsts (b, n); lengths (b,); tags (b, n), as in Batch."""

    pieces: Tensor
    piece_lengths: Tensor
    firsts: Tensor
    lengths: Tensor
    tags: Tensor


class Sentences:
    """Sentences in numbers: batches of them on request. Tags that training did not have are unknown."""

    def __init__(self, examples: Sequence[Tagged], vocabularies: Vocabularies) -> None:
        tags, schemes = numbers(vocabularies["tags"]), stored_words(vocabularies, "schemes")
        self.tokens = table_of([sentence.tokens for sentence in examples], vocabularies)
        self.tags = Ragged.of([tags.get(tag, UNKNOWN) for tag in in_learned_scheme(e.tags, schemes)] for e in examples)
        self.sizes = self.tokens.sizes

    def __getitem__(self, rows: Tensor) -> Batch | PieceBatch:
        tags, _ = self.tags.padded(rows)
        # PAD is 0, UNKNOWN is 1
        known = torch.where(tags < len(SPECIALS), -1 - tags, tags - len(SPECIALS))
        tokens = self.tokens[rows]
        return Batch(*tokens, known) if isinstance(tokens, Tokens) else PieceBatch(*tokens, known)
