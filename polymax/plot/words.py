"""Words in pictures: never read as formulas, in one line, and in fonts that have their letters."""

import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any
from unicodedata import category, combining, east_asian_width

from polymax.plot.canvas import MISSING

# points
SIZE = 10.0
# longer words, such as web addresses, are shortened in the middle
LONGEST = 60
# BOX replaces letters that no font has; a warning shows at most SHOWN of them
BOX, SHOWN = "□", 10
# fonts whose glyphs do not belong to their code points
ODD = ("cm", "STIXNonUnicode", "STIXSize", "Last Resort")


class Lettering:
    """Words that are drawn together: `texts` has one text for each word, `look` the options of matplotlib's texts.

    Line ends and other control characters are escaped. Letters that the default font lacks come from another installed
    font; if no font has them, they are boxes, with a warning.

    Example:
        >>> words = Lettering(["$x$", "two\\nlines", 7])
        >>> words.texts, words.look
        (['$x$', 'two\\\\nlines', '7'], {'parse_math': False, 'usetex': False})
    """

    def __init__(self, words: Iterable[Any]) -> None:
        spelled = [shortened(escaped(str(word))) for word in words]
        letters = {ord(letter) for text in spelled for letter in text}
        families, known = _families(letters)
        self.texts = ["".join(c if ord(c) in known else _stand_in(c) for c in text) for text in spelled]
        if boxes := "".join(sorted({chr(c) for c in letters - known if _stand_in(chr(c)) == BOX})):
            some = boxes if len(boxes) <= SHOWN else f"{boxes[:SHOWN]}..."
            warnings.warn(
                f"no font that is installed has the letters {some}, and boxes stand for them; the Noto fonts have most",
                stacklevel=2,
            )
        self.look: dict[str, Any] = {"parse_math": False, "usetex": False}
        if families:
            self.look["fontfamily"] = families


def escaped(word: str) -> str:
    """A word in one line, whose control characters can be seen.

    Example:
        >>> escaped("a\\tb"), escaped("naïve $x_1$")
        ('a\\\\tb', 'naïve $x_1$')
    """
    hidden = ("Cc", "Cs", "Zl", "Zp")
    return "".join(ascii(c)[1:-1] if category(c) in hidden else c for c in word)


def shortened(word: str) -> str:
    """The word in at most 60 characters; the middle of a longer one is left out.

    Example:
        >>> len(shortened("x" * 300)), shortened("short")
        (60, 'short')
    """
    half = LONGEST // 2
    return word if len(word) <= LONGEST else f"{word[:half]}…{word[1 - half :]}"


def text_width(text: str) -> float:
    """Width of a text in points at size 10, by the width of its characters: 1, 0 or about 0.6 of the size."""
    return SIZE * sum(0 if combining(c) else 1 if east_asian_width(c) in "WF" else 0.62 for c in text)


def write_word(ax: Any, x: float, y: float, word: Any, **look: Any) -> None:
    """Write a word at the point (x, y), in a font that has its letters."""
    words = Lettering([word])
    ax.text(x, y, words.texts[0], **{**words.look, **look})


def write_ticks(axis: Any, places: Any, words: Sequence[Any], **look: Any) -> None:
    """Write words at places of an axis."""
    lettering = Lettering(words)
    axis.set_ticks(places, labels=lettering.texts, **lettering.look, **look)


def write_title(ax: Any, word: Any, **look: Any) -> None:
    """Write a word above the axes."""
    words = Lettering([word])
    ax.set_title(words.texts[0], **words.look, **look)


def write_legend(ax: Any, handles: Sequence[Any], words: Sequence[Any], **options: Any) -> None:
    """Write a legend, in which names that begin with an underscore, which matplotlib would leave out, are kept."""
    lettering = Lettering(words)
    legend = ax.legend(handles, [str(k) for k in range(len(handles))], **options)
    for text, word in zip(legend.get_texts(), lettering.texts, strict=True):
        text.set(text=word, **lettering.look)


def _stand_in(letter: str) -> str:
    """The replacement of a letter that no font has: a space for spaces, nothing for combining marks, else a box."""
    kind = category(letter)
    return " " if kind == "Zs" else "" if kind in ("Mn", "Me", "Cf") else BOX


def _families(letters: set[int]) -> tuple[list[str], set[int]]:
    """Families of fonts that add missing letters, none if the fonts of the settings have all; and the letters found."""
    try:
        from matplotlib.font_manager import FontProperties, findfont
    except ImportError as error:
        raise ImportError(MISSING) from error
    own = FontProperties().get_family()
    known = set().union(*(_charmap(findfont(FontProperties(family=[family]))) for family in own))
    # invisible characters need no font
    missing = {letter for letter in letters - known if category(chr(letter)) not in ("Zs", "Cf")}
    chosen: list[str] = []
    for name, file in _plain_fonts() if missing else ():
        if found := missing & _charmap(file):
            chosen.append(name)
            missing -= found
            known |= found
    return ([*own, *chosen] if chosen else []), known


@cache
def _plain_fonts() -> list[tuple[str, str]]:
    """Names and files of the installed fonts, upright and of the usual weight, one of each family."""
    from matplotlib.font_manager import fontManager

    plain = [f for f in fontManager.ttflist if f.style == "normal" and f.weight in (400, "normal", "regular", "book")]
    found = {font.name: font.fname for font in plain if not font.name.startswith(ODD)}
    return sorted(found.items())


@cache
def _charmap(file: str) -> frozenset[int]:
    """The letters that a font has; none if its file cannot be read."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(get_font(file).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()
