"""Sentences of a small grammar, with their dependency trees and their entities: generated text that is free to use.

A prepositional phrase hangs from the verb or from the noun before it, with probabilities that depend on the words: a
model trained on such sentences gives both readings weight.
"""

import random
from dataclasses import dataclass, field

PEOPLE = ["Anna", "Otto", "Ida", "Maria", "Paul", "Nora", "Emil", "Clara", "Hugo", "Lena"]
FAMILIES = ["Berg", "Wolf", "Stein", "Lind", "Hart", "Moss"]
PLACES = ["Rome", "Oslo", "Lima", "Paris", "New York", "Cape Town", "Berlin", "Kyoto"]
FIRMS = ["Nordbank", "Acme", "Blue River Press", "Atlas Museum", "Redwood Labs", "Harbour Trust"]
SEEN = ["man", "woman", "dog", "bird", "child", "teacher", "painter", "sailor"]
PRONOUNS = ["she", "he", "they", "nobody"]
NOUNS = [*SEEN, "book", "letter", "song", "telescope", "hat", "boat", "garden", "stone"]
TOOLS = ["telescope", "camera", "lamp", "mirror"]
WORN = ["hat", "coat", "scarf", "dog"]
ADJECTIVES = ["old", "small", "red", "quiet", "young", "green"]
ADVERBS = ["often", "quietly", "today", "never", "again"]
SIGHT = ["saw", "watched", "found", "heard", "followed"]
WORK = ["reads", "writes", "sings", "paints", "sells", "likes", "keeps"]
ALONE = ["sleeps", "works", "sings", "waits", "left", "returned"]
SAYING = ["says", "knows", "thinks", "believes"]


@dataclass
class Sentence:
    """Words of a sentence, each with a tag, a head (counted from 1, 0 for the root), a relation and an entity."""

    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    relations: list[str] = field(default_factory=list)
    entities: list[str] = field(default_factory=list)

    def add(self, word: str, tag: str, head: int = 0, relation: str = "root", entity: str = "O") -> int:
        """Add a word and return its number."""
        for part, value in zip(vars(self).values(), (word, tag, head, relation, entity)):
            part.append(value)
        return len(self.words)

    def hang(self, word: int, head: int, relation: str) -> None:
        """Let a word hang from another."""
        self.heads[word - 1], self.relations[word - 1] = head, relation

    def conllu(self) -> str:
        """The sentence in CoNLL-U."""
        rows = zip(self.words, self.tags, self.heads, self.relations)
        lines = [
            f"{k}\t{word}\t_\t{tag}\t_\t_\t{head}\t{name}\t_\t_" for k, (word, tag, head, name) in enumerate(rows, 1)
        ]
        return "\n".join(lines) + "\n\n"

    def columns(self) -> str:
        """The words and their entities in BIO, in columns."""
        return "\n".join(f"{word} {entity}" for word, entity in zip(self.words, self.entities)) + "\n\n"


def sentences(count: int, seed: int = 0) -> list[Sentence]:
    """Return `count` sentences, equal for equal seeds.

    Example:
        >>> " ".join(sentences(1, seed=3)[0].words).endswith(".")
        True
    """
    chance = random.Random(seed)
    return [_sentence(chance) for _ in range(count)]


def _sentence(chance: random.Random) -> Sentence:
    made = Sentence()
    if chance.random() < 0.15:
        subject = _noun_phrase(made, chance)
        verb = made.add(chance.choice(SAYING), "VERB")
        made.hang(subject, verb, "nsubj")
        mark = made.add("that", "SCONJ")
        inner = _clause(made, chance)
        made.hang(mark, inner, "mark")
        made.hang(inner, verb, "ccomp")
    else:
        verb = _clause(made, chance)
        if chance.random() < 0.12:
            link = made.add("and", "CCONJ")
            other = _clause(made, chance)
            made.hang(link, other, "cc")
            made.hang(other, verb, "conj")
    made.hang(verb, 0, "root")
    made.add(".", "PUNCT", verb, "punct")
    return made


def _clause(made: Sentence, chance: random.Random) -> int:
    """A clause; the number of its verb."""
    subject = _noun_phrase(made, chance)
    adverb = made.add(chance.choice(ADVERBS), "ADV") if chance.random() < 0.15 else 0
    if chance.random() < 0.2:
        verb = made.add(chance.choice(ALONE), "VERB")
        told = 0.0
    else:
        seeing = chance.random() < 0.6
        verb = made.add(chance.choice(SIGHT if seeing else WORK), "VERB")
        seen = _noun_phrase(made, chance, SEEN if seeing else NOUNS, following=verb)
        made.hang(seen, verb, "obj")
        told = chance.random()
        if seeing and told < 0.5:
            # "with a telescope" belongs to seeing, "with a hat" to a person
            tool = chance.random() < 0.5
            preposition = made.add("with", "ADP")
            noun = _common(made, chance, TOOLS if tool else WORN)
            by_verb = chance.random() < (0.75 if tool else 0.15)
            made.hang(preposition, noun, "case")
            made.hang(noun, verb if by_verb else seen, "obl" if by_verb else "nmod")
    made.hang(subject, verb, "nsubj")
    if adverb:
        made.hang(adverb, verb, "advmod")
    if chance.random() < 0.4:
        preposition = made.add(chance.choice(["in", "near", "for"]), "ADP")
        names = (FIRMS, "ORG") if made.words[-1] == "for" else (PLACES, "LOC")
        name = _name(made, chance, *names)
        made.hang(preposition, name, "case")
        made.hang(name, verb, "obl")
    return verb


def _noun_phrase(made: Sentence, chance: random.Random, nouns: list[str] = NOUNS, following: int = 0) -> int:
    """A noun phrase; the number of its head."""
    kind = chance.random()
    if kind < 0.3:
        name = [chance.choice(PEOPLE)]
        return _name(
            made, chance, [" ".join([*name, chance.choice(FAMILIES)]) if chance.random() < 0.4 else name[0]], "PER"
        )
    if kind < 0.4 and not following:
        return made.add(chance.choice(PRONOUNS), "PRON")
    if kind < 0.47:
        return _name(made, chance, FIRMS, "ORG")
    head = _common(made, chance, nouns)
    if chance.random() < 0.08:
        that = made.add("that", "PRON")
        verb = made.add(chance.choice(WORK), "VERB", head, "acl:relcl")
        made.hang(that, verb, "nsubj")
        made.hang(_common(made, chance, NOUNS), verb, "obj")
    return head


def _common(made: Sentence, chance: random.Random, nouns: list[str]) -> int:
    """A noun with its article, and perhaps an adjective; its number."""
    article = made.add(chance.choice(["the", "a"]), "DET")
    adjective = made.add(chance.choice(ADJECTIVES), "ADJ") if chance.random() < 0.25 else 0
    noun = made.add(chance.choice(nouns), "NOUN")
    made.hang(article, noun, "det")
    if adjective:
        made.hang(adjective, noun, "amod")
    return noun


def _name(made: Sentence, chance: random.Random, names: list[str], entity: str) -> int:
    """A name of one or more words; the number of the first."""
    parts = chance.choice(names).split()
    first = made.add(parts[0], "PROPN", entity=f"B-{entity}")
    for part in parts[1:]:
        made.add(part, "PROPN", first, "flat", f"I-{entity}")
    return first
