"""The SparseMAP loop in Numba, instance by instance: find a structure, weigh it, until no structure improves the
objective.

Shapes:
    settings = the largest number of iterations, the tolerance, True if structures shall span the face, and the absolute
        score from which on an instance is not solved (NaN: no limit)
    problems = table (any,), own (B, any), scores (B, any), others (B or fewer, any), the shapes of a search's memory,
        and `choices` of numba_search.py; instances may share the others
    d, the number of parts of the first tensor
    held, system, mu, work and mark, as in numba_weights.py; vertex (parts,), order (k,), nudge (2, d)
    seeds, seed_scores, seed_weights: structures to start from, (B, s, parts), (B, s, 2), (B, s); or None
    out = places (B, k, parts), probs (B, k) and overlaps (B, k, k), of which the found structures are written; means
    (B, all
        parts); numbers (2, B): value and gap; counts (3, B): iterations, status at the end, and number of structures
"""

import numpy as np

from polymax.backend.numba_math import add, inline, kernel, row_dot
from polymax.backend.numba_memory import array_at, give_back, lean_kernel, taken_as_is
from polymax.kernels.active_set.numba_face import span_face
from polymax.kernels.active_set.numba_factor import dot, grow
from polymax.kernels.active_set.numba_search import ask
from polymax.kernels.active_set.numba_steps import shift
from polymax.kernels.active_set.numba_weights import admit, compare, exact_weights, hold, mean, remove, resume

GOING, CONVERGED, FULL, INFEASIBLE, LARGE = 0, 1, 2, 3, 4


@lean_kernel
def solve(
    start, stop, best, rule, settings, problems, d, seeds, seed_scores, seed_weights, out
):  # fmt: skip
    """Solve the instances from `start` to `stop`, by exact weights or, with a `rule`, by Frank-Wolfe steps.

    Scores are differences to the score of the best structure: for structures that have weight they are small, and so is
    the rounding of their sums.
    """
    table, own, scores, others, grid_shape, line_size, marks_shape, choices = problems
    max_iter, tol, whole, limit = settings
    places, probs, overlaps, means, numbers, counts = out
    room, parts = places.shape[1:]
    high, wide = grid_shape
    lines, marked = marks_shape
    reals = high * wide + line_size + 2 * room * room + 9 * room + 3 * d
    memory = taken_as_is(8 * (reals + lines * marked + room) + 4 * (room + 1) * parts + d)
    grid, line = array_at(memory, grid_shape, 0.0), array_at(memory + 8 * high * wide, (line_size,), 0.0)
    rest = memory + 8 * (high * wide + line_size)
    gram, factor = array_at(rest, (room, room), 0.0), array_at(rest + 8 * room * room, (room, room), 0.0)
    rest += 16 * room * room
    half, system_rows = array_at(rest, (3, room), 0.0), array_at(rest + 24 * room, (2, room), 0.0)
    work, b = array_at(rest + 40 * room, (2, room), 0.0), array_at(rest + 56 * room, (room,), 0.0)
    p = array_at(rest + 64 * room, (room,), 0.0)
    rest += 72 * room
    mu, nudge = array_at(rest, (d,), 0.0), array_at(rest + 8 * d, (2, d), 0.0)
    rest += 24 * d
    marks, order = array_at(rest, marks_shape, np.int64(0)), array_at(rest + 8 * lines * marked, (room,), np.int64(0))
    rest += 8 * (lines * marked + room)
    used, vertex = array_at(rest, (room, parts), np.int32(0)), array_at(rest + 4 * room * parts, (parts,), np.int32(0))
    mark = array_at(rest + 4 * (room + 1) * parts, (0 if choices else d,), False)
    for u in range(mark.size):
        mark[u] = False
    held, system = (used, gram, b, p), (factor, half, system_rows)
    shared = max(own.shape[0] // max(others.shape[0], 1), 1)
    for i in range(start, stop):
        problem = table, own[i], scores[i], others[i // shared], grid, line, marks
        if _large(scores[i], limit) or _large(others[i // shared], limit):
            counts[1, i] = LARGE
            continue
        marks[0, 0], line[0] = 0, 0.0
        for u in range(mu.size):
            mu[u] = 0.0
        top, count, status, gap = ask(best, problem, mu, vertex), np.int64(0), GOING, 0.0
        base = line[0]
        if top == -np.inf:
            status = INFEASIBLE
        else:
            if seeds is not None:
                count = resume(
                    seeds[i], seed_scores[i], seed_weights[i], base, top, held, mu, system, work, mark, choices
                )
            if count == 0:
                count = _begin(vertex, marks[0, 1], held, mu, system, choices)
        asked = 0
        while status == GOING and asked < max_iter:
            counts[0, i] = asked
            score = ask(best, problem, mu, vertex) - top
            count, gap, status = _improve(
                rule, tol, top + base, count, vertex, marks[0, 1], score, held, mu, system, work, mark, choices
            )
            asked += 1
        if whole and rule is None and status == CONVERGED:
            found = span_face(best, problem, top, count, held, mu, system, work, mark, vertex, nudge)
            count, status = (count, FULL) if found < 0 else (found, CONVERGED)
        _finish(count, held, order, places[i], probs[i], overlaps[i], means[i])
        numbers[0, i] = (dot(held[3], held[2], count) - row_dot(mu, mu) / 2) + top + base
        if status == INFEASIBLE:
            numbers[0, i] = -np.inf
        elif np.isnan(numbers[0, i]):
            # MAP skips NaN, unless all scores left are NaN
            for k in range(count):
                probs[i, k] = np.nan
                for u in range(vertex.size):
                    if places[i, k, u] >= 0:
                        means[i, places[i, k, u]] = np.nan
        # a gap below 0 is rounding
        numbers[1, i], counts[1, i], counts[2, i] = 0.0 if gap < 0 else gap, status, count
    give_back(memory)


@inline
def _large(x, limit):
    """Return True if a number is larger than the limit, or NaN; always False if the limit is NaN."""
    within = 0
    for u in range(x.size):
        within += abs(x[u]) <= limit
    return within < x.size and limit == limit


@inline
def _begin(vertex, size, held, mu, system, choices):
    """Give all weight to the best structure, whose score is subtracted from all scores."""
    # constants of one type: Numba compiles again for each literal
    none, one = np.int64(0), np.int64(1)
    hold(none, vertex, size, 0.0, mu, held)
    held[3][0] = 1.0
    grow(none, held[1], held[2], system[0], system[1])
    mean(one, held, mu, choices)
    return one


@inline
def _improve(rule, tol, total, count, vertex, size, score, held, mu, system, work, mark, choices):
    """Take a structure in; return how many have weight after it, the duality gap before it, and the status.

    It is given by its list of parts, the number of them in the first tensor, and its score less `total`, which is
    subtracted from all scores.
    """
    used, gram, b, p = held
    current = dot(p, b, count) - row_dot(mu, mu)
    reach = 0.0
    for u in range(size):
        reach = add(reach, mu[np.uint32(vertex[u])])
    gap = score - reach - current
    # the tolerance depends neither on the score that all structures share nor on the total that is subtracted
    if not gap > tol * (1 + min(abs(current), abs(current + total))):
        return count, gap, CONVERGED
    place = compare(vertex, size, count, used, gram, work[0], mark)
    if place >= 0 and rule is None:
        # a structure that has weight cannot improve on the exact weights, but for rounding
        return count, gap, CONVERGED
    if place < 0:
        if count == b.size:
            return count, gap, FULL
        place = count
        hold(place, vertex, size, score, work[0], held)
        count += 1
    status = GOING
    if rule is None:
        count = exact_weights(admit(count, held, system, work), held, system, work)
        if count == place and _differ(used[place - 1], vertex):
            # the last structure was removed at once: the set is unchanged, and the next iteration would repeat this one
            status = CONVERGED
    else:
        shift(rule, place, count, gram, b, p, work)
        for i in range(count - 1, -1, -1):
            if p[i] == 0:
                remove(i, count, held)
                count -= 1
    mean(count, held, mu, choices)
    return count, gap, status


@inline
def _differ(parts, others):
    """Return True if two lists of parts differ."""
    count = 0
    for u in range(parts.size):
        count += parts[u] != others[u]
    return count > 0


@inline
def _finish(count, held, order, places, probs, overlaps, means):
    """Write the structures, heaviest first: their parts, weights and overlaps; and the mean of all parts."""
    used, gram, p = held[0], held[1], held[3]
    for i in range(count):
        r = i
        while r > 0 and p[order[r - 1]] < p[i]:
            order[r] = order[r - 1]
            r -= 1
        order[r] = i
    for u in range(means.size):
        means[u] = 0.0
    for r in range(count):
        probs[r] = p[order[r]]
        for u in range(places.shape[1]):
            part = used[order[r], u]
            places[r, u] = part
            if part >= 0:
                means[part] += probs[r]
        for c in range(count):
            overlaps[r, c] = gram[order[r], order[c]]


@kernel
def summary(counts):
    """Return the most structures of an instance, then if any instance has large scores, if any is full, if all
    converged.
    """
    most, large, full, done = np.int64(0), False, False, True
    for i in range(counts.shape[1]):
        most = max(most, counts[2, i])
        large |= counts[1, i] == LARGE
        full |= counts[1, i] == FULL
        done &= counts[1, i] > GOING
    return most, large, full, done


@kernel
def gather(counts, found, gathered):
    """Copy the structures of each instance, their weights and overlaps, to arrays with room for the largest number."""
    (places, probs, overlaps), (to_places, to_probs, to_overlaps) = found, gathered
    for i in range(counts.size):
        for r in range(to_probs.shape[1]):
            held = r < counts[i]
            to_probs[i, r] = probs[i, r] if held else 0.0
            for u in range(places.shape[2]):
                to_places[i, r, u] = places[i, r, u] if held else -1
            for c in range(to_probs.shape[1]):
                to_overlaps[i, r, c] = overlaps[i, r, c] if held and c < counts[i] else 0
