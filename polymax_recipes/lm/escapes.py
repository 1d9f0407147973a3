r"""Texts of several lines in one line: a line feed is written as \n, a carriage return as \r, a backslash as \\."""

import re

LETTERS = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
READ = {spelled: letter for letter, spelled in LETTERS.items()}


def escaped(text: str) -> str:
    r"""The text in one line, with line ends and backslashes escaped.

    Example:
        >>> print(escaped("a\n\\b"))
        a\n\\b
    """
    return re.sub(r"[\\\n\r]", lambda found: LETTERS[found[0]], text)


def unescaped(text: str) -> str:
    r"""Return the text that was escaped; a ValueError if a backslash begins nothing that `escaped` writes.

    Example:
        >>> unescaped(r"a\n\\b") == "a\n\\b"
        True
    """

    def letter(found: re.Match[str]) -> str:
        if found[0] not in READ:
            raise ValueError(f"{found[0]} must be one of {', '.join(READ)}: --escaped reads backslashes")
        return READ[found[0]]

    return re.sub(r"\\.?", letter, text)
