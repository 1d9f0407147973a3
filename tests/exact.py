"""SparseMAP in fractions: the weights of enumerated structures, without any rounding."""

from fractions import Fraction


def exact_weights(structures, scores):
    """The p of  max over p in the simplex of <scores, p> - 1/2 ||sum_k p_k structures_k||^2,  as {k: weight}.

    Wolfe's method; structures are lists of fractions, one for each penalised part.
    """
    overlaps = {}

    def overlap(i, j):
        key = min(i, j), max(i, j)
        if key not in overlaps:
            overlaps[key] = _inner(structures[i], structures[j])
        return overlaps[key] + 1

    best = max(range(len(scores)), key=scores.__getitem__)
    p = {best: ONE}
    while True:
        mu = mean(structures, p)
        gains = [b - _inner(s, mu) for s, b in zip(structures, scores, strict=True)]
        new = max(range(len(scores)), key=gains.__getitem__)
        if gains[new] <= sum(p[k] * gains[k] for k in p):
            return p
        active = list(p)
        matrix = [[overlap(i, j) for j in active] for i in active]
        mix = [row[0] for row in _solved(matrix, [[overlap(i, new)] for i in active])]
        p[new] = ZERO
        if overlap(new, new) == sum(c * overlap(i, new) for c, i in zip(mix, active, strict=True)):
            # an affine mix of the others takes the place of one of them
            p[new], gone = min((p[i] / c, i) for c, i in zip(mix, active, strict=True) if c > 0)
            for c, i in zip(mix, active, strict=True):
                p[i] -= p[new] * c
            del p[gone]
        p = _best_weights(p, overlap, scores)


def mean(structures, p):
    """The mean of structures with weights {k: weight}."""
    return [
        sum((w * structures[k][u] for k, w in p.items() if structures[k][u]), ZERO) for u in range(len(structures[0]))
    ]


ZERO, ONE = Fraction(0), Fraction(1)


def _inner(x, y):
    return sum((a * b for a, b in zip(x, y, strict=True) if a and b), ZERO)


def _best_weights(p, overlap, scores):
    while True:
        active = list(p)
        both = _solved([[overlap(i, j) for j in active] for i in active], [[scores[i], ONE] for i in active])
        share = (1 - sum(x for x, _ in both)) / sum(y for _, y in both)
        target = {i: x + share * y for i, (x, y) in zip(active, both, strict=True)}
        falling = [i for i in active if target[i] <= 0]
        if not falling:
            return target
        length, gone = min((p[i] / (p[i] - target[i]) if p[i] > target[i] else ZERO, i) for i in falling)
        p = {i: p[i] + length * (target[i] - p[i]) for i in active if i != gone}


def _solved(matrix, right):
    """Gauss and Jordan."""
    rows = [[*a, *b] for a, b in zip(matrix, right, strict=True)]
    n = len(rows)
    for c in range(n):
        pivot = next(r for r in range(c, n) if rows[r][c] != 0)
        rows[c], rows[pivot] = rows[pivot], rows[c]
        rows[c] = [x / rows[c][c] for x in rows[c]]
        for r in range(n):
            if r != c and rows[r][c] != 0:
                rows[r] = [x - rows[r][c] * y for x, y in zip(rows[r], rows[c], strict=True)]
    return [row[n:] for row in rows]
