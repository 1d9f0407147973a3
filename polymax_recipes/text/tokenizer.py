"""Raw text cut into sentences and tokens, by rules: English as in the Penn Treebank, and languages that write like it.

Tokens are, first match first: addresses of the web and of mail; @names and #tags; numbers with their separators
(1,000.5, 12:30); abbreviations with their periods (U.S., Mr., J.); words, with the hyphens, apostrophes and periods
inside of them; repeated marks (..., --, !!!); every other character alone. Contractions are cut as in English: do n't,
we 'll, Anna 's. A sentence ends at the end of the text, and after . ! ? or … with closing quotes and brackets, if a
space follows, and not a small letter after it; after 。！？ it always ends. Abbreviations do not end sentences. Scripts
without spaces are not cut into words: tokenise such text beforehand.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

TITLES = "mr mrs ms dr prof rev hon st jr sr messrs gen col capt lt sgt gov sen rep pres"
FIRMS = "inc ltd co corp bros dept est fig vol pp eds al vs etc approx mt ave blvd rd"
MONTHS = "jan feb mar apr jun jul aug sep sept oct nov dec"
ABBREVIATIONS = frozenset(f"{TITLES} {FIRMS} {MONTHS}".split())
TOKEN = re.compile(
    r"""
      (?:https?://|www\.)[^\s<>"]*[^\s<>".,;:!?)\]}'’]
    | [\w.+-]+@[\w-]+(?:\.[\w-]+)+
    | [@\#]\w+
    | [-+]?\d+(?:[.,:]\d+)*(?!\w)
    | (?:[^\W\d_]\.){2,}
    | \w+(?:[-'’.&]\w+)*
    | ([.!?…。！？*_=~-])\1+
    | \S
    """,
    re.VERBOSE,
)
CONTRACTED = re.compile(r"(?i)(.+?)(n['’]t|['’](?:s|re|ve|ll|d|m))")
ENDS, WIDE_ENDS, CLOSING = ".!?…", "。！？", "\"'”’»)]}」』"


class RawSentence(NamedTuple):
    """The tokens of a sentence, its text, and for each token True if a space follows it in the text."""

    tokens: list[str]
    text: str
    spaces: list[bool]


class _Token(NamedTuple):
    text: str
    start: int
    end: int


def tokens(text: str) -> list[str]:
    """The tokens of a text, in order.

    Example:
        >>> tokens("Mr. O'Neil doesn't pay $1,000.50 (yet) to e-mail j.doe@x.org...")
        ['Mr.', "O'Neil", 'does', "n't", 'pay', '$', '1,000.50', '(', 'yet', ')', 'to', 'e-mail', 'j.doe@x.org', '...']
    """
    return [token.text for token in _scan(text)]


def sentences(text: str) -> list[RawSentence]:
    """The sentences of a text; none of a blank one.

    Example:
        >>> [sentence.tokens for sentence in sentences('He asked: "Why?" Dr. No left at 5 p.m. today.')]
        [['He', 'asked', ':', '"', 'Why', '?', '"'], ['Dr.', 'No', 'left', 'at', '5', 'p.m.', 'today', '.']]
    """
    found: list[RawSentence] = []
    begun: list[_Token] = []
    every = list(_scan(text))
    for k, token in enumerate(every):
        begun.append(token)
        following = every[k + 1] if k + 1 < len(every) else None
        if following is None or _ends(begun, following):
            spaces = [a.end < b.start for a, b in zip(begun, begun[1:])] + [True]
            found.append(RawSentence([t.text for t in begun], text[begun[0].start : token.end], spaces))
            begun = []
    return found


def _ends(begun: list[_Token], following: _Token) -> bool:
    """Return True if a sentence ends before a token that follows."""
    last = len(begun) - 1
    while last > 0 and begun[last].text in CLOSING:
        last -= 1
    mark = begun[last].text[0] if not begun[last].text[0].isalnum() else ""
    if mark and mark in WIDE_ENDS:
        return following.text[0] not in CLOSING + WIDE_ENDS
    if not mark or mark not in ENDS or following.start == begun[-1].end:
        return False
    return not following.text[0].islower() and following.text[0] not in ",;:)"


def _scan(text: str) -> Iterator[_Token]:
    place = 0
    while match := TOKEN.search(text, place):
        start, place = match.span()
        word = match[0]
        if _abbreviates(word) and text[place : place + 1] == ".":
            place += 1
            yield _Token(text[start:place], start, place)
            continue
        contracted = CONTRACTED.fullmatch(word)
        cut = start + len(contracted[1]) if contracted else place
        yield _Token(text[start:cut], start, cut)
        if cut < place:
            yield _Token(text[cut:place], cut, place)


def _abbreviates(word: str) -> bool:
    """Return True if a period after a word belongs to it: after abbreviations, and initials except the pronoun I."""
    return word.lower() in ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I")
