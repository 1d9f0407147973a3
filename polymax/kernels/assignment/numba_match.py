"""The best assignment of one matrix for Numba: bids for columns, then shortest augmenting paths (Jonker-Volgenant).

Columns have prices v, and every row is matched to a column of its best value

    u_i = max over j of scores[i, j] - v_j

Rows first bid: a row takes its best column and raises its price by the difference to the value of the second best; the
former owner of the column bids again. That leaves few rows without a column. For each of them a shortest path in the
slacks u_i + v_j - scores[i, j] to a free column gives the rows on it their next columns. The prices of columns nearer
than the free one rise by the difference of the distances. Prices of free columns stay 0. In a square no column stays
free: prices are unique up to a constant, and start at the highest score of each column.

All arithmetic is in float64: sums of float32 scores are then exact, or nearly, and ties are ties.

See: Jonker and Volgenant 1987, A shortest augmenting path algorithm for dense and sparse linear assignment problems.
"""

import numpy as np
from numba.extending import intrinsic

from polymax.backend.numba_math import inline, kernel

MATCHED, IMPOSSIBLE, UNDEFINED = 1, 0, -1


@inline
def workspace(n, m, dtype=np.float64):
    """Return workspace for matrices of at most n rows and m columns: reals, indices, and room for a transpose."""
    wide = max(n, m) + 1
    return np.empty((5, wide)), np.empty((4, wide), np.int64), np.empty((m, n), dtype)


@kernel
def best_match(scores, n, m, match, u, v, space, warm):
    """Write the best assignment of scores[:n, :m]: the column of each row, or -1, and duals in float64.

    If `warm` and n = m, the finite prices in v, from a similar problem, are tried first. Returns MATCHED; IMPOSSIBLE if
    -inf leaves no assignment; or UNDEFINED if there are NaN or +inf. Except for MATCHED, match, u and v are
    meaningless.

    Shapes: scores (>= n, >= m); match, u (>= n,); v (>= m,); space = workspace(>= n, >= m, scores.dtype).
    """
    reals, indices, room = space
    for i in range(n):
        if _any_undefined(scores[i, :m]):
            return UNDEFINED
    owner = indices[0]
    if n > m:
        for i in range(n):
            for j in range(m):
                room[j, i] = scores[i, j]
        scores, n, m, match, owner, u, v = room, m, n, owner, match, v, u
    # called at one place only, since each inlined call is compiled again
    return _match_rows(scores, n, m, match, owner, u, v, reals, indices, warm)


@inline
def _match_rows(scores, n, m, match, owner, u, v, reals, indices, warm):
    """Write the best assignment for n <= m: every row gets a column; owner is the row of each column, or -1."""
    # inf at columns that have an owner, else 0
    taken, waiting = reals[0], indices[1]
    for i in range(n):
        match[i] = -1
    for j in range(m):
        owner[j], taken[j] = -1, 0
    if n < m:
        for j in range(m):
            v[j] = 0
    elif not warm:
        _highest_scores(scores, n, v)
        for j in range(n):
            if v[j] == -np.inf:
                return IMPOSSIBLE
        _settle(scores, n, match, owner, taken, v, reals[1])
    count = 0
    for i in range(n):
        if match[i] < 0:
            waiting[count] = i
            count += 1
    count = _bid(scores, n, m, match, owner, taken, v, waiting, count, reals[1])
    if count < 0:
        return IMPOSSIBLE
    for k in range(count):
        if not _augment(scores, m, waiting[k], match, owner, taken, v, reals, indices):
            return IMPOSSIBLE
    if n == m:
        low = np.inf
        for j in range(m):
            low = min(low, v[j])
        for j in range(m):
            v[j] -= low
    for i in range(n):
        u[i] = scores[i, match[i]] - v[match[i]]
    return MATCHED


@inline
def _settle(scores, n, match, owner, taken, v, value):
    """Match rows with columns whose highest score, the price, they attain."""
    for i in range(n):
        best = _values(scores[i], v, n, value)
        if best == 0:
            j = _where(value, best, n)
            if owner[j] < 0:
                match[i], owner[j], taken[j] = j, i, np.inf
                value[j] = -np.inf
                second = _highest(value, n)
                # lower the price until the second-best column is as good
                if second > -np.inf:
                    v[j] -= second


@inline
def _bid(scores, n, m, match, owner, taken, v, waiting, count, value):
    """Run the bids of the waiting rows; return how many wait afterwards, or -1 if a row has no column at all."""
    k, left = 0, 0
    # bidding between rows over few columns converges slowly: finish with augmenting paths
    patience = n + count
    while k < count:
        i = waiting[k]
        k += 1
        best = _values(scores[i], v, m, value)
        if best == -np.inf:
            return -1
        j = _where(value, best, m)
        value[j] = -np.inf
        second = _highest(value, m)
        patience -= 1
        if second == -np.inf or patience < 0:
            # the price is not determined
            waiting[left] = i
            left += 1
            continue
        price = v[j] + (best - second)
        raised = price > v[j]
        v[j] = price
        if not raised and owner[j] >= 0:
            j = _where(value, second, m)
        loser = owner[j]
        match[i], owner[j], taken[j] = j, i, np.inf
        if loser >= 0:
            match[loser] = -1
            if raised:
                # the loser bids at once, in the place of the winner
                k -= 1
                waiting[k] = loser
            else:
                waiting[left] = loser
                left += 1
    return left


@inline
def _augment(scores, m, start, match, owner, taken, v, reals, indices):
    """Give the row `start` a column, along a shortest path to a free column; return False if there is none."""
    reach, price, base, near = reals[1], reals[2], reals[3], reals[4]
    row, through = indices[2], indices[3]
    for j in range(m):
        reach[j] = np.inf
        price[j] = v[j]
    # the rows in the order of their distance, and the column before each
    row[0], base[0], count = start, 0.0, 1
    while True:
        distance, to_free = _relax(scores[row[count - 1]], price, taken, m, base[count - 1], reach)
        if to_free == distance and distance < np.inf:
            break
        j = _where(reach, distance, m)
        if j < 0 or distance == np.inf:
            return False
        i = owner[j]
        row[count], through[count], near[count] = i, j, distance
        base[count] = distance - (v[j] - scores[i, j])
        count += 1
        # infinite price: no path visits this column again
        reach[j] = np.inf
        price[j] = np.inf
    j = _where_sum(reach, taken, distance, m)
    taken[j] = np.inf
    k, length = count, distance
    while k > 0:
        # the last row that gives the column its distance precedes it on the path
        k -= 1
        while k > 0 and base[k] + (v[j] - scores[row[k], j]) != length:
            k -= 1
        match[row[k]], owner[j] = j, row[k]
        j, length = through[k], near[k]
    for k in range(1, count):
        v[through[k]] += distance - near[k]
    return True


@inline
def _any_undefined(row):
    count = 0
    for j in range(row.size):
        count += not (row[j] < np.inf)
    return count > 0


@inline
def _highest_scores(scores, n, v):
    """Write the highest score of each column to v."""
    v[:n] = -np.inf
    for i in range(n):
        row = scores[i]
        for j in range(n):
            v[j] = _higher(v[j], np.float64(row[j]))


@inline
def _values(row, v, m, value):
    """Write the values of the columns for a row, scores less prices, and return the highest."""
    best = -np.inf
    for j in range(m):
        value[j] = row[j] - v[j]
        best = _higher(best, value[j])
    return best


@inline
def _highest(value, m):
    best = -np.inf
    for j in range(m):
        best = _higher(best, value[j])
    return best


@inline
def _relax(row, price, taken, m, base, reach):
    """Shorten paths to all columns by paths through a row; return the shortest length, and that to a free column."""
    distance = to_free = np.inf
    for j in range(m):
        reached = _lower(reach[j], base + (price[j] - row[j]))
        reach[j] = reached
        distance = _lower(distance, reached)
        to_free = _lower(to_free, reached + taken[j])
    return distance, to_free


@inline
def _where(x, value, m):
    """Return the last index of a value."""
    place = -1
    for j in range(m):
        place = j if x[j] == value else place
    return place


@inline
def _where_sum(x, y, value, m):
    place = -1
    for j in range(m):
        place = j if x[j] + y[j] == value else place
    return place


def _extreme(order):
    @intrinsic
    def pick(typing_context, a, b):
        def codegen(context, builder, signature, args):
            # no NaN and no signed zeros: with these flags LLVM compares in vector lanes
            flags = ("nnan", "nsz")
            return builder.select(builder.fcmp_ordered(order, *args, flags=flags), *args, flags=flags)

        return a(a, a), codegen

    return pick


_higher, _lower = _extreme(">"), _extreme("<")
