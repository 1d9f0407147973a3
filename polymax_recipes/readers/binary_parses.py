"""Binary trees without labels, ( ( the dog ) barks ), as SNLI and ListOps write them."""

from collections.abc import Iterable, Sequence


def parse_binary(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """The tokens, and the first and last token of each pair of brackets, in the order in which they close.

    Example:
        >>> parse_binary("( ( the dog ) barks )")
        (['the', 'dog', 'barks'], [(0, 1), (0, 2)])
    """
    tokens: list[str] = []
    spans: list[tuple[int, int]] = []
    # for each open bracket, its first token and the number of its children so far
    stack: list[list[int]] = [[0, 0]]
    # other white space can be part of a token
    for piece in filter(None, text.split(" ")):
        if piece == "(":
            stack.append([len(tokens), 0])
            continue
        if piece == ")":
            start, held = stack.pop()
            if not stack or held != 2:
                raise ValueError(f"text must be a binary tree: brackets hold {held}, not two; got {text!r}")
            spans.append((start, len(tokens) - 1))
        else:
            tokens.append(piece)
        stack[-1][1] += 1
    if len(stack) != 1 or stack[0][1] != 1:
        raise ValueError(f"text must be one binary tree, with every bracket closed; got {text!r}")
    return tokens, spans


def format_binary(tokens: Sequence[str], spans: Iterable[tuple[int, int]]) -> str:
    """The inverse of `parse_binary`.

    Example:
        >>> format_binary(["the", "dog", "barks"], [(0, 1), (0, 2)])
        '( ( the dog ) barks )'
    """
    opens, closes = [0] * len(tokens), [0] * len(tokens)
    for start, last in spans:
        opens[start] += 1
        closes[last] += 1
    pieces = (["("] * a + [token] + [")"] * b for a, token, b in zip(opens, tokens, closes))
    return " ".join(piece for group in pieces for piece in group)
