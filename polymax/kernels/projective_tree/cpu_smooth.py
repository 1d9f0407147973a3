"""Projective trees under any smoothed maximum, on values in float64, for Numba.

A chart c is three flat squares: c[0] and c[1] hold R and L, symmetric, and c[2] I, [head, modifier]: then the choices
of all three maxima lie along rows. Backwards, a span that is not reached costs nothing, so the hard maximum follows
its one best tree.
"""

import numpy as np

from polymax.kernels.numba_math import inline, kernel
from polymax.kernels.numba_smooth import tangent_of_weights
from polymax.kernels.span_tree.cpu_smooth import best, mean, push, push_tangent, smooth


@kernel
def inside(scores, m, first, s, c, alpha):
    """Fill the chart c of positions first..m, with rows of s entries; its value."""
    r, l, v = c[0], c[1], c[2]
    a, p = np.empty(m), np.empty(m)
    for j in range(first, m + 1):
        r[j * s + j] = l[j * s + j] = 0
        for i in range(j - 1, first - 1, -1):
            left, right = i * s + i, j * s + i
            gap = best(r, left, l, right + 1, j - i, alpha, a, p)
            v[i * s + j] = gap + scores[i * s + j]
            r[i * s + j] = r[j * s + i] = best(v, left + 1, r, right + 1, j - i, alpha, a, p)
            if i > 0:
                v[j * s + i] = gap + scores[j * s + i]
                l[i * s + j] = l[j * s + i] = best(l, left, v, right, j - i, alpha, a, p)
    return r[m] if first == 0 else _roots(scores, m, s, c, alpha, a, p)


@inline
def _roots(scores, m, s, c, alpha, a, p):
    for k in range(m):
        a[k] = scores[k + 1] + (c[1, s + 1 + k] + c[0, m * s + 1 + k])
    return smooth(a, m, alpha, p)


@kernel
def outside(scores, m, first, s, c, g, alpha, o, e):
    """Fill e with g times the expected arcs; o is work space.

    What a span (i, j) hears as the left of two is at [i, j], as the right at [j, i].
    """
    r, l, v = c[0], c[1], c[2]
    to_r, to_l, to_v = o[0], o[1], o[2]
    a, p = np.empty(m), np.empty(m)
    o[:, : (m + 1) * s] = 0
    if first == 0:
        to_r[m] = g if r[m] != -np.inf else 0.0
    else:
        _roots(scores, m, s, c, alpha, a, p)
        push(to_l, s + 1, to_r, m * s + 1, m, g, p)
        for k in range(m):
            e[k + 1] = p[k] * g
    for j in range(m, first - 1, -1):
        for i in range(first, j):
            left, right = i * s + i, j * s + i
            here = to_r[i * s + j] + to_r[j * s + i]
            if here != 0:
                best(v, left + 1, r, right + 1, j - i, alpha, a, p)
                push(to_v, left + 1, to_r, right + 1, j - i, here, p)
            e[i * s + j] = gap = to_v[i * s + j]
            if i > 0:
                here = to_l[i * s + j] + to_l[j * s + i]
                if here != 0:
                    best(l, left, v, right, j - i, alpha, a, p)
                    push(to_l, left, to_v, right, j - i, here, p)
                e[j * s + i] = to_v[j * s + i]
                gap += to_v[j * s + i]
            if gap != 0:
                best(r, left, l, right + 1, j - i, alpha, a, p)
                push(to_r, left, to_l, right + 1, j - i, gap, p)


@kernel
def tangent(scores, d, m, first, s, c, g, alpha, dc, o, do, e, de):
    """Fill e, and de with its derivative along d; the derivative of the value."""
    r, l, v = c[0], c[1], c[2]
    dr, dl, dv = dc[0], dc[1], dc[2]
    a, p, da, dp = np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    for j in range(first, m + 1):
        dr[j * s + j] = dl[j * s + j] = 0
        for i in range(j - 1, first - 1, -1):
            left, right = i * s + i, j * s + i
            best(r, left, l, right + 1, j - i, alpha, a, p)
            gap = mean(dr, left, dl, right + 1, j - i, p)
            dv[i * s + j] = gap + d[i * s + j]
            best(v, left + 1, r, right + 1, j - i, alpha, a, p)
            dr[i * s + j] = dr[j * s + i] = mean(dv, left + 1, dr, right + 1, j - i, p)
            if i > 0:
                dv[j * s + i] = gap + d[j * s + i]
                best(l, left, v, right, j - i, alpha, a, p)
                dl[i * s + j] = dl[j * s + i] = mean(dl, left, dv, right, j - i, p)
    to_r, to_l, to_v = o[0], o[1], o[2]
    dto_r, dto_l, dto_v = do[0], do[1], do[2]
    o[:, : (m + 1) * s] = 0
    do[:, : (m + 1) * s] = 0
    if first == 0:
        reached = r[m] != -np.inf
        to_r[m] = g if reached else 0.0
        dvalue = dr[m] if reached else 0.0
    else:
        _roots(scores, m, s, c, alpha, a, p)
        push(to_l, s + 1, to_r, m * s + 1, m, g, p)
        dvalue = 0.0
        for k in range(m):
            e[k + 1] = p[k] * g
            da[k] = d[k + 1] + (dl[s + 1 + k] + dr[m * s + 1 + k])
            if p[k] != 0:
                dvalue += p[k] * da[k]
        tangent_of_weights(p, da, m, alpha, dp)
        push(dto_l, s + 1, dto_r, m * s + 1, m, g, dp)
        for k in range(m):
            de[k + 1] = dp[k] * g
    for j in range(m, first - 1, -1):
        for i in range(first, j):
            left, right = i * s + i, j * s + i
            here, dhere = to_r[i * s + j] + to_r[j * s + i], dto_r[i * s + j] + dto_r[j * s + i]
            if here != 0 or dhere != 0:
                best(v, left + 1, r, right + 1, j - i, alpha, a, p)
                push(to_v, left + 1, to_r, right + 1, j - i, here, p)
                push_tangent(dv, left + 1, dr, right + 1, j - i, alpha, here, dhere, p, da, dp, dto_v, dto_r)
            gap, dgap = to_v[i * s + j], dto_v[i * s + j]
            e[i * s + j], de[i * s + j] = gap, dgap
            if i > 0:
                here, dhere = to_l[i * s + j] + to_l[j * s + i], dto_l[i * s + j] + dto_l[j * s + i]
                if here != 0 or dhere != 0:
                    best(l, left, v, right, j - i, alpha, a, p)
                    push(to_l, left, to_v, right, j - i, here, p)
                    push_tangent(dl, left, dv, right, j - i, alpha, here, dhere, p, da, dp, dto_l, dto_v)
                e[j * s + i], de[j * s + i] = to_v[j * s + i], dto_v[j * s + i]
                gap += to_v[j * s + i]
                dgap += dto_v[j * s + i]
            if gap != 0 or dgap != 0:
                best(r, left, l, right + 1, j - i, alpha, a, p)
                push(to_r, left, to_l, right + 1, j - i, gap, p)
                push_tangent(dr, left, dl, right + 1, j - i, alpha, gap, dgap, p, da, dp, dto_r, dto_l)
    return dvalue
