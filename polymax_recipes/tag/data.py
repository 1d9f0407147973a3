"""Tagged sentences: from columns or CoNLL-U, and as batches of words, characters and tags."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.readers.columns import Places, Tagged, read_tagged
from polymax_recipes.readers.conllu import read_conllu
from polymax_recipes.readers.layout import begins_document
from polymax_recipes.readers.lines import ReadError
from polymax_recipes.readers.schemes import BIO, BIOES, IO, IOB1, detect
from polymax_recipes.readers.tables import Role, Row
from polymax_recipes.tag.columns import FIRST_AND_LAST, Chosen, Remembered
from polymax_recipes.tag.rules import read_rules, rules_on
from polymax_recipes.tag.spans import rules_of, spell_spans
from polymax_recipes.text.chosen import table_of
from polymax_recipes.text.pretrained import encoder_vocabularies
from polymax_recipes.text.tokens import Tokens, numbers, token_vocabularies
from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.task import Vocabularies
from polymax_recipes.training.vocabulary import SPECIALS, UNKNOWN, Words, stored_words

ROLES = (
    Role("token", ("tokens", "words", "word", "form", "forms"), given=True),
    Role("tag", ("tags", "ner_tags", "ner", "labels", "label", "upos", "pos_tags")),
    Role("sentence", ("sentence_id", "sent_id", "sentences"), needed=False),
)
SCHEMES = {scheme.name: scheme for scheme in (IO, BIO, BIOES, IOB1)}


def read_tags(
    files: Sequence[Path],
    chosen: Chosen = FIRST_AND_LAST,
    comments: bool | None = None,
    skipped: list[ReadError] | None = None,
) -> list[Tagged]:
    """The sentences of files: words and UPOS of .conllu files, otherwise the first and the last column, or the chosen
    columns.

    With a list `skipped`, sentences that cannot be read are left out, and their errors are added to it.
    """
    if not files:
        raise ValueError("tagged sentences come in one file or more; got 0")
    return joined(_read(file, chosen, comments, skipped) for file in files)


def joined(parts: Iterable[Iterable[Tagged]]) -> list[Tagged]:
    """Return the sentences of several files, each with one or more documents."""
    found: list[Tagged] = []
    for part in parts:
        before = found[-1].document + 1 if found else 0
        found += [sentence._replace(document=before + sentence.document) for sentence in part]
    return found


def tagged_rows(rows: Iterable[Row], skipped: list[ReadError] | None = None) -> Iterator[Tagged]:
    """Return the sentences of a table: a row has the lists of a sentence, or one token.

    Rows of tokens form a sentence between blank lines, or as long as the column `sentence` does not change.
    """
    for own in _sentences(rows):
        try:
            yield _tagged(own)
        except ReadError as error:
            if skipped is None:
                raise
            skipped.append(error)


def token_rows(rows: Iterable[Row]) -> Iterator[tuple[int, list[str]]]:
    """Return the tokens of the sentences of a table, and the number of the row in which each begins."""
    for own in _sentences(rows):
        first = own[0]
        yield first.number, first.tokens("token") if len(own) == 1 else [_cell(row, "token") for row in own]


def _sentences(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Groups of rows: the tokens of a sentence, or a row that is a whole sentence."""

    def key(row: Row) -> object:
        alone = isinstance(row.values.get("token"), list) or _spaced(row)
        return row.number if alone else (row.group, row.values.get("sentence"))

    for _, group in groupby(rows, key):
        own = list(group)
        comma = os.fspath(own[0].path).removesuffix(".gz").endswith(".csv")
        if len(own) > 1 and not comma and not own[0].has("sentence"):
            raise own[0].error(
                "a row has one token: a column that numbers the sentences is needed, --columns sentence=NAME"
            )
        yield own


def _spaced(row: Row) -> bool:
    token, tag = row.values.get("token"), row.values.get("tag")
    return isinstance(token, str) and isinstance(tag, str) and 0 < token.count(" ") == tag.count(" ")


def _tagged(rows: list[Row]) -> Tagged:
    (first, *rest) = rows
    if rest or not (isinstance(first.values.get("token"), list) or _spaced(first)):
        return Tagged([_cell(row, "token") for row in rows], [_cell(row, "tag") for row in rows])
    tokens, tags = first.tokens("token"), first.tokens("tag")
    if len(tokens) != len(tags):
        raise first.error(f"tags must be one for each of {len(tokens)} tokens; got {len(tags)}")
    return Tagged(tokens, tags)


def _cell(row: Row, role: str) -> str:
    value = row.values.get(role)
    if value is None or isinstance(value, list | dict) or not str(value):
        raise row.error(f"the {role} is empty")
    return str(value)


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
    """Return the vocabularies of a tagger: words in lower case and characters, or those of an encoder; tags; the
    schemes in which tags are learned and written; the scheme whose rules the learned tags keep; columns of the files;
    rules of `constraints`.

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
    # an invalid rule is an error before the training
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
    """Return the scheme of the files; BIO if they keep to no scheme."""
    if not spell_spans({tag for sentence in examples for tag in sentence.tags}):
        raise ValueError(f"--scheme {scheme} must come with tags such as O and B-PER; these do not spell spans")
    try:
        return detect(sentence.tags for sentence in examples).name
    except ValueError:
        return BIO.name


def in_learned_scheme(tags: Sequence[str], schemes: Words) -> list[str]:
    """Return tags in the scheme that a run learns; without one, as they are."""
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
    """Sentences in numbers: batches of them on request. Tags outside of the training data are unknown."""

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
