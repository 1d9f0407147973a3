"""The value of every dynamic program as a plain loop: `maximum` is applied along the last dimension, in its order.

No kernel of ours is used here, and autograd differentiates it.
"""

import torch


def chain(maximum, unary, transition):
    n, s = unary.shape[-2:]
    steps = transition.expand(*unary.shape[:-2], max(n - 1, 0), s, s)
    v = unary[..., 0, :]
    for t in range(1, n):
        v = unary[..., t, :] + maximum((v.unsqueeze(-1) + steps[..., t - 1, :, :]).transpose(-1, -2))
    return maximum(v)


def counted(k, state, runs):
    """A chain in which `state` is entered, or with `runs` begun, at most k times."""

    def value(maximum, unary, transition):
        n, s = unary.shape[-2:]
        if n == 0:
            return unary.new_zeros(unary.shape[:-2])
        steps = transition.expand(*unary.shape[:-2], max(n - 1, 0), s, s)
        v = {(j, int(j == state)): unary[..., 0, j] for j in range(s) if int(j == state) <= k}
        for t in range(1, n):
            ways = {}
            for j in range(s):
                for c in range(min(k, n) + 1):
                    for i in range(s):
                        before = c - int(j == state and not (runs and i == state))
                        if (i, before) in v:
                            ways.setdefault((j, c), []).append(v[i, before] + steps[..., t - 1, i, j])
            v = {
                (j, c): unary[..., t, j] + (maximum(torch.stack(w, -1)) if len(w) > 1 else w[0])
                for (j, c), w in ways.items()
            }
        return maximum(torch.stack([v[key] for key in sorted(v)], -1))

    return value


def segments(maximum, segments, transition):
    n, widths, s = segments.shape[-3:]
    steps = transition.expand(*segments.shape[:-3], max(n - 1, 0), s, s)
    ended, started = {}, {0: torch.zeros_like(segments[..., 0, 0, :])}
    for t in range(1, n + 1):
        # the table of hyperedges lists the widest segment first
        ways = [started[t - w] + segments[..., t - w, w - 1, :] for w in range(min(widths, t), 0, -1)]
        ended[t] = maximum(torch.stack(ways, -1))
        if t < n:
            started[t] = maximum((ended[t].unsqueeze(-1) + steps[..., t - 1, :, :]).transpose(-1, -2))
    return maximum(ended[n])


def alignment(maximum, scores):
    n, m = scores.shape[-2:]
    v = {}
    for i in range(n):
        for j in range(m):
            before = [v[c] for c in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if c in v]
            v[i, j] = scores[..., i, j] + (maximum(torch.stack(before, -1)) if before else 0)
    return v[n - 1, m - 1]


def subsequence(maximum, scores):
    n, m = scores.shape[-2:]
    v = {}
    for i in range(n):
        for j in range(m):
            begin = [torch.zeros_like(scores[..., 0, 0])] if i == 0 else []
            before = begin + [v[c] for c in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if c in v]
            v[i, j] = scores[..., i, j] + maximum(torch.stack(before, -1))
    return maximum(torch.stack([v[n - 1, j] for j in range(m)], -1))


def monotonic(maximum, scores):
    n, m = scores.shape[-2:]
    v = {}
    for t in range(n):
        for j in range(min(t + 1, m)):
            before = [v[c] for c in ((t - 1, j), (t - 1, j - 1)) if c in v]
            v[t, j] = scores[..., t, j] + (maximum(torch.stack(before, -1)) if before else 0)
    return v[n - 1, m - 1]


def ctc(labels):
    """Labels of the states, blanks and targets in turn."""

    def recursion(maximum, scores):
        v = {(0, j): scores[..., 0, labels[j]] for j in range(min(2, len(labels)))}
        for t in range(1, scores.shape[-2]):
            for j, label in enumerate(labels):
                skip = [(t - 1, j - 2)] if j >= 2 and labels[j] != labels[j - 2] else []
                before = [v[c] for c in [(t - 1, j), (t - 1, j - 1), *skip] if c in v]
                if before:
                    v[t, j] = scores[..., t, label] + maximum(torch.stack(before, -1))
        ends = [(scores.shape[-2] - 1, len(labels) - 1), (scores.shape[-2] - 1, len(labels) - 2)]
        return maximum(torch.stack([v[c] for c in ends if c in v], -1))

    return recursion


def gapped(local):
    """M pairs, X deletes a row, Y inserts a column, P is any of these, at i rows and j columns."""

    def recursion(maximum, pairs, *gaps):
        n, m = pairs.shape[-2:]
        opens, extends = (g.expand(pairs.shape) for g in (gaps[0], gaps[-1]))
        zero = torch.zeros_like(pairs[..., 0, 0])
        v = {}
        for i in range(n + 1):
            for j in range(m + 1):
                if i and j:
                    v["M", i, j] = pairs[..., i - 1, j - 1] + v["P", i - 1, j - 1]
                start = [] if local or i + j != 1 else [("P", 0, 0)]
                up, left = (..., i - 1, max(j - 1, 0)), (..., max(i - 1, 0), j - 1)
                for kind, at, cell, step in (("X", i, up, (i - 1, j)), ("Y", j, left, (i, j - 1))):
                    opened = [("M", *step), *start, *([("X", *step)] if kind == "Y" else [])]
                    ways = [v[kind, *step] + extends[cell]] if at and (kind, *step) in v else []
                    ways += [v[node] + opens[cell] for node in opened if at and node in v]
                    if ways:
                        v[kind, i, j] = maximum(torch.stack(ways, -1))
                ways = [zero] if local or i + j == 0 else []
                v["P", i, j] = maximum(torch.stack(ways + [v[k, i, j] for k in "MXY" if (k, i, j) in v], -1))
        if not local:
            return v["P", n, m]
        cells = [v["M", i, j] for i in range(1, n + 1) for j in range(1, m + 1)]
        return maximum(torch.stack([zero, *cells], -1))

    return recursion


def edit_path(affine):
    """The best path to a point that ends with a pair, a deletion or an insertion; scores of steps (n + 1, m + 1, k)."""

    def recursion(maximum, x):
        n, m = x.shape[-3] - 1, x.shape[-2] - 1
        v = {(0, 0): torch.zeros_like(x[..., 0, 0, 0])}
        ends = {}
        for i in range(n + 1):
            for j in range(m + 1):
                for kind, a, b in (("pair", i - 1, j - 1), ("deletion", i - 1, j), ("insertion", i, j - 1)):
                    if min(a, b) < 0:
                        continue
                    k = ("pair", "deletion", "insertion").index(kind)
                    if kind == "pair" or not affine:
                        ends[kind, i, j] = v[a, b] + x[..., i, j, k]
                        continue
                    opened = [ends[other, a, b] for other in ("pair", "deletion", "insertion") if other != kind
                              and (other, a, b) in ends] + ([v[0, 0]] if a + b == 0 else [])  # fmt: skip
                    ways = [ends[kind, a, b] + x[..., i, j, 2 * k]] if (kind, a, b) in ends else []
                    ways += [w + x[..., i, j, 2 * k - 1] for w in opened]
                    ends[kind, i, j] = maximum(torch.stack(ways, -1))
                if i + j:
                    every = [ends[k, i, j] for k in ("pair", "deletion", "insertion") if (k, i, j) in ends]
                    v[i, j] = maximum(torch.stack(every, -1))
        return v[n, m]

    return recursion


def transducer(maximum, blank, label):
    n, states = blank.shape[-2:]
    v = {(0, 0): torch.zeros_like(blank[..., 0, 0])}
    for t in range(n):
        for u in range(states):
            ways = [v[t - 1, u] + blank[..., t - 1, u]] if t else []
            ways += [v[t, u - 1] + label[..., t, u - 1]] if u else []
            if ways:
                v[t, u] = maximum(torch.stack(ways, -1))
    return v[n - 1, states - 1] + blank[..., n - 1, states - 1]


def spans(maximum, scores):
    n = scores.shape[1] if scores.dim() == 3 else scores.shape[-2]
    labelled = scores if scores.shape[-3:-1] == (n, n) and scores.dim() > 3 else scores.unsqueeze(-1)
    tree = {}
    for width in range(n):
        for i in range(n - width):
            j = i + width
            splits = [tree[i, k] + tree[k + 1, j] for k in range(i, j)]
            below = maximum(torch.stack(splits, -1)) if splits else 0
            tree[i, j] = maximum(labelled[..., i, j, :]) + below
    return tree[0, n - 1]


def half_trees(maximum, scores, start):
    """R[i, j], headed at i, and L[i, j], headed at j."""
    size = scores.shape[-1]
    zero = torch.zeros_like(scores[..., 0, 0])
    right = {(i, i): zero for i in range(size)}
    left = dict(right)
    to_right, to_left = {}, {}
    for width in range(1, size):
        for i in range(start, size - width):
            j = i + width
            joined = maximum(torch.stack([right[i, k] + left[k + 1, j] for k in range(i, j)], -1))
            to_right[i, j], to_left[i, j] = joined + scores[..., i, j], joined + scores[..., j, i]
            right[i, j] = maximum(torch.stack([to_right[i, k] + right[k, j] for k in range(i + 1, j + 1)], -1))
            if i:
                left[i, j] = maximum(torch.stack([left[i, k] + to_left[k, j] for k in range(i, j)], -1))
    return right, left


def arcs(maximum, scores):
    n = scores.shape[-1] - 1
    right, left = half_trees(maximum, scores, 1)
    return maximum(torch.stack([scores[..., 0, r] + left[1, r] + right[r, n] for r in range(1, n + 1)], -1))


def arcs_from_many_roots(maximum, scores):
    return half_trees(maximum, scores, 0)[0][0, scores.shape[-1] - 1]


def sibling_half_trees(maximum, scores, pairs):
    """R[i, j], headed at i, and L[i, j], headed at j, modifiers taken from the inside to the outside."""
    size = scores.shape[-1]
    zero = torch.zeros_like(scores[..., 0, 0])
    right = {(i, i): zero for i in range(size)}
    left = dict(right)
    to_right, to_left, between = {}, {}, {}
    for width in range(1, size):
        for i in range(1, size - width):
            j = i + width
            between[i, j] = maximum(torch.stack([right[i, k] + left[k + 1, j] for k in range(i, j)], -1))
            ways = [left[i + 1, j] + pairs[..., i, i, j]]
            ways += [to_right[i, k] + between[k, j] + pairs[..., i, k, j] for k in range(i + 1, j)]
            to_right[i, j] = maximum(torch.stack(ways, -1)) + scores[..., i, j]
            right[i, j] = maximum(torch.stack([to_right[i, k] + right[k, j] for k in range(i + 1, j + 1)], -1))
            ways = [right[i, j - 1] + pairs[..., j, j, i]]
            ways += [between[i, k] + to_left[k, j] + pairs[..., j, k, i] for k in range(i + 1, j)]
            to_left[i, j] = maximum(torch.stack(ways, -1)) + scores[..., j, i]
            left[i, j] = maximum(torch.stack([left[i, k] + to_left[k, j] for k in range(i, j)], -1))
    return right, left


def siblings(maximum, scores, pairs):
    n = scores.shape[-1] - 1
    right, left = sibling_half_trees(maximum, scores, pairs)
    ways = [scores[..., 0, r] + pairs[..., 0, 0, r] + left[1, r] + right[r, n] for r in range(1, n + 1)]
    return maximum(torch.stack(ways, -1))


def grandparents(maximum, scores, pairs):
    """Half trees with the head g of their head."""
    n = scores.shape[-1] - 1
    zero = torch.zeros_like(scores[..., 0, 0])
    right = {(g, i, i): zero for g in range(n + 1) for i in range(n + 1)}
    left, to_right, to_left = dict(right), {}, {}
    for width in range(1, n + 1):
        for i in range(1, n + 1 - width):
            j = i + width
            for g in [g for g in range(n + 1) if not i <= g <= j]:
                ways = [right[g, i, k] + left[i, k + 1, j] for k in range(i, j)]
                to_right[g, i, j] = maximum(torch.stack(ways, -1)) + scores[..., i, j] + pairs[..., g, i, j]
                ways = [right[j, i, k] + left[g, k + 1, j] for k in range(i, j)]
                to_left[g, i, j] = maximum(torch.stack(ways, -1)) + scores[..., j, i] + pairs[..., g, j, i]
                ways = [to_right[g, i, k] + right[i, k, j] for k in range(i + 1, j + 1)]
                right[g, i, j] = maximum(torch.stack(ways, -1))
                ways = [left[j, i, k] + to_left[g, k, j] for k in range(i, j)]
                left[g, i, j] = maximum(torch.stack(ways, -1))
    return maximum(torch.stack([scores[..., 0, r] + left[0, 1, r] + right[0, r, n] for r in range(1, n + 1)], -1))


def siblings_and_grandparents(maximum, scores, siblings, grandparents):
    """Half trees with the head g of their head, which take modifiers from the inside to the outside."""
    n = scores.shape[-1] - 1
    zero = torch.zeros_like(scores[..., 0, 0])
    right = {(g, i, i): zero for g in range(n + 1) for i in range(n + 1)}
    left, to_right, to_left, gap = dict(right), {}, {}, {}
    for width in range(1, n + 1):
        for i in range(1, n + 1 - width):
            j = i + width
            for g in [g for g in range(n + 1) if not i <= g <= j]:
                gap[g, i, j] = maximum(torch.stack([right[g, i, k] + left[g, k + 1, j] for k in range(i, j)], -1))
                first, inner = siblings[..., i, i, j] + left[i, i + 1, j], range(i + 1, j)
                more = [siblings[..., i, k, j] + to_right[g, i, k] + gap[i, k, j] for k in inner]
                below = maximum(torch.stack([first, *more], -1))
                to_right[g, i, j] = below + scores[..., i, j] + grandparents[..., g, i, j]
                first = siblings[..., j, j, i] + right[j, i, j - 1]
                more = [siblings[..., j, k, i] + gap[j, i, k] + to_left[g, k, j] for k in inner]
                below = maximum(torch.stack([first, *more], -1))
                to_left[g, i, j] = below + scores[..., j, i] + grandparents[..., g, j, i]
                ways = [to_right[g, i, k] + right[i, k, j] for k in range(i + 1, j + 1)]
                right[g, i, j] = maximum(torch.stack(ways, -1))
                ways = [left[j, i, k] + to_left[g, k, j] for k in range(i, j)]
                left[g, i, j] = maximum(torch.stack(ways, -1))
    ways = [scores[..., 0, r] + siblings[..., 0, 0, r] + left[0, 1, r] + right[0, r, n] for r in range(1, n + 1)]
    return maximum(torch.stack(ways, -1))


def paths(edges):
    def value(maximum, scores):
        v = {0: torch.zeros_like(scores[..., 0])}
        for node in range(1, 1 + max(b for _, b in edges)):
            ways = [v[a] + scores[..., e] for e, (a, b) in enumerate(edges) if b == node]
            v[node] = maximum(torch.stack(ways, -1)) if len(ways) > 1 else ways[0]
        return v[node]

    return value


def trees(heads, tails):
    def value(maximum, scores):
        v = {}
        for node in range(1 + max(heads)):
            ways = [scores[..., e] + sum(v[t] for t in tails[e]) for e, head in enumerate(heads) if head == node] or [
                torch.zeros_like(scores[..., 0])
            ]
            v[node] = maximum(torch.stack(ways, -1)) if len(ways) > 1 else ways[0]
        return v[node]

    return value


def subsets(k, at_most):
    def value(maximum, x):
        n = x.shape[-1]
        v = {(0, 0): torch.zeros_like(x[..., 0])}
        for i in range(1, n + 1):
            for j in range(min(k, i, n) + 1):
                ways = [v[i - 1, j]] if (i - 1, j) in v else []
                ways += [v[i - 1, j - 1] + x[..., i - 1]] if (i - 1, j - 1) in v else []
                v[i, j] = maximum(torch.stack(ways, -1)) if len(ways) > 1 else ways[0]
        if not at_most:
            return v[n, k]
        ends = [v[n, j] for j in range(min(k, n) + 1)]
        return maximum(torch.stack(ends, -1)) if len(ends) > 1 else ends[0]

    return value


def cuts(k):
    def value(maximum, x):
        n = x.shape[-1]
        v = {(0, 0): torch.zeros_like(x[..., 0, 0])}
        for j in range(k):
            for end in range(j + 1, n + 1):
                ways = [v[j, t] + x[..., t, end - 1] for t in range(end) if (j, t) in v]
                v[j + 1, end] = maximum(torch.stack(ways, -1)) if len(ways) > 1 else ways[0]
        return v[k, n]

    return value


def hops(maximum, x):
    n = x.shape[-2]
    v = [torch.zeros(x.shape[:-2]).to(x)]
    for t in range(n):
        ways = [v[t + 1 - steps] + x[..., t, steps - 1] for steps in (1, 2) if steps <= t + 1]
        v.append(maximum(torch.stack(ways, -1)) if len(ways) > 1 else ways[0])
    return maximum(torch.stack([v[n], v[n - 1]], -1)) if n > 1 else v[n]
