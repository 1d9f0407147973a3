"""Pairs of sequences that evolved from each other, with the alignment that this makes."""

import random
from collections.abc import Iterator

import torch

# letters of amino acids and their frequencies in proteins, per thousand
FREQUENCIES = {
    "A": 78, "C": 19, "D": 54, "E": 63, "F": 39, "G": 74, "H": 22, "I": 52, "K": 57, "L": 91,
    "M": 22, "N": 45, "P": 52, "Q": 43, "R": 51, "S": 71, "T": 58, "V": 64, "W": 13, "Y": 32,
}  # fmt: skip
# groups of similar letters, and the factor of the rate of substitutions within a group
GROUPS, WITHIN = ("AGPST", "C", "DENQ", "FWY", "HKR", "ILMV"), 8.0
# probability that a gap is one letter longer
LONGER = 0.6


def substitution_probabilities(distance: float) -> torch.Tensor:
    """P[a, b], the probability that letter a has become b, (20, 20), after `distance` changes of a letter on average.

        P = exp(distance Q)    Q_ab = rate_ab frequency_b / scale for a != b    rate_ab = 8 within a group, else 1

    The rows of Q sum to 0 and its scale makes one change for each letter in a unit of distance; the process is
    reversible. See: Yang 2006, Computational molecular evolution, chapter 2.

    Example:
        >>> substitution_probabilities(0.0).equal(torch.eye(20, dtype=torch.float64))
        True
    """
    frequency = torch.tensor(list(FREQUENCIES.values()), dtype=torch.float64) / sum(FREQUENCIES.values())
    group = torch.tensor([next(k for k, own in enumerate(GROUPS) if letter in own) for letter in FREQUENCIES])
    q = torch.where(group[:, None] == group, WITHIN, 1.0) * frequency
    q.fill_diagonal_(0)
    q = q - torch.diag(q.sum(1))
    return torch.matrix_exp(distance * q / -(frequency @ q.diag()))


def evolved(count: int, seed: int, distance: float, gaps: float) -> Iterator[tuple[str, str]]:
    """Aligned rows of an ancestor, of 40 to 120 letters, and of its descendant.

    Letters of the ancestor are drawn by their frequencies. Before each of them, and at the end, a gap begins with
    probability `gaps`: as often an insertion as a deletion, both of geometric length with mean 2.5. All other letters
    are substituted by `substitution_probabilities`.

    Example:
        >>> rows = list(evolved(2, 0, 1.0, 0.05))
        >>> len(rows), all(len(first) == len(second) for first, second in rows)
        (2, True)
    """
    draw = random.Random(seed)
    letters, weights = "".join(FREQUENCIES), list(FREQUENCIES.values())
    table = dict(zip(letters, substitution_probabilities(distance).clamp(min=0).tolist()))

    def length() -> int:
        found = 1
        while draw.random() < LONGER:
            found += 1
        return found

    for _ in range(count):
        ancestor = draw.choices(letters, weights, k=draw.randint(40, 120))
        columns: list[tuple[str, str]] = []
        deleted = 0
        for letter in [*ancestor, ""]:
            if not deleted and draw.random() < gaps:
                if draw.random() < 0.5:
                    columns += [("-", new) for new in draw.choices(letters, weights, k=length())]
                else:
                    deleted = length()
            if letter:
                columns.append((letter, "-" if deleted else draw.choices(letters, table[letter])[0]))
                deleted = max(0, deleted - 1)
        first, second = ("".join(row) for row in zip(*columns))
        # a sequence without a letter has nothing to align
        if second.strip("-"):
            yield first, second
