"""Projective trees under any smoothed maximum, on values in float64, for Numba.

A chart c is three flat squares: c[0] and c[1] hold R and L, symmetric, and c[2] I, [head, modifier]: then the choices
of all three maxima lie along rows. In the backward pass spans without a gradient are skipped, so the hard maximum
visits only its best tree.
"""

import numpy as np

from polymax.backend.numba_math import inline
from polymax.kernels.local_max.numba_max import smooth_max, weight_changes, weights
from polymax.kernels.span_tree.cpu_smooth import best, mean, push, push_change, shares


@inline
def inside(scores, m, first, s, c, a, omega):
    """Fill the chart c of positions first..m, with rows of s entries; return its value, and inf."""
    r, l, v = c[0], c[1], c[2]
    for j in range(first, m + 1):
        r[j * s + j] = l[j * s + j] = 0
        for i in range(j - 1, first - 1, -1):
            left, right = i * s + i, j * s + i
            gap = best(r, left, l, right + 1, j - i, a, omega)
            v[i * s + j] = gap + scores[i * s + j]
            r[i * s + j] = r[j * s + i] = best(v, left + 1, r, right + 1, j - i, a, omega)
            if i > 0:
                v[j * s + i] = gap + scores[j * s + i]
                l[i * s + j] = l[j * s + i] = best(l, left, v, right, j - i, a, omega)
    if first == 0:
        return r[m], np.inf
    _roots(scores, m, s, c, a)
    return smooth_max(a, m, omega), np.inf


@inline
def _roots(scores, m, s, c, a):
    """Write the total score of each token as the single root."""
    for k in range(m):
        a[k] = scores[k + 1] + (c[1, s + 1 + k] + c[0, m * s + 1 + k])


@inline
def forward(scores, d, m, first, s, c, shift, dc, rows, omega):
    """Fill dc with the derivative of the chart along d."""
    r, l, v = c[0], c[1], c[2]
    dr, dl, dv = dc[0], dc[1], dc[2]
    a, p = rows[0], rows[1]
    for j in range(first, m + 1):
        dr[j * s + j] = dl[j * s + j] = 0
        for i in range(j - 1, first - 1, -1):
            left, right = i * s + i, j * s + i
            shares(r, left, l, right + 1, j - i, a, p, omega)
            gap = mean(dr, left, dl, right + 1, j - i, p)
            dv[i * s + j] = gap + d[i * s + j]
            shares(v, left + 1, r, right + 1, j - i, a, p, omega)
            dr[i * s + j] = dr[j * s + i] = mean(dv, left + 1, dr, right + 1, j - i, p)
            if i > 0:
                dv[j * s + i] = gap + d[j * s + i]
                shares(l, left, v, right, j - i, a, p, omega)
                dl[i * s + j] = dl[j * s + i] = mean(dl, left, dv, right, j - i, p)


@inline
def outside(scores, m, first, s, c, shift, g, o, e, d, dc, do, de, rows, omega):
    """Fill e with g times the expected arcs; o is workspace.

    o has at [i, j] the gradient that span (i, j) receives as a left child, at [j, i] as a right child. Unless dc is
    None, fill de with the derivative of e along d, and return the derivative of the value.
    """
    r, l, v = c[0], c[1], c[2]
    to_r, to_l, to_v = o[0], o[1], o[2]
    a, p, da, dp = rows[0], rows[1], rows[2], rows[3]
    o[:, : (m + 1) * s] = 0
    dvalue = 0.0
    if dc is not None:
        dr, dl, dv = dc[0], dc[1], dc[2]
        dto_r, dto_l, dto_v = do[0], do[1], do[2]
        do[:, : (m + 1) * s] = 0
    if first == 0:
        to_r[m] = g if r[m] != -np.inf else 0.0
        if dc is not None:
            dvalue = dr[m] if r[m] != -np.inf else 0.0
    else:
        _roots(scores, m, s, c, a)
        weights(a, m, p, omega)
        push(to_l, s + 1, to_r, m * s + 1, m, g, p)
        for k in range(m):
            e[k + 1] = p[k] * g
        if dc is not None:
            _roots(d, m, s, dc, da)
            weight_changes(p, da, m, dp, omega)
            push(dto_l, s + 1, dto_r, m * s + 1, m, g, dp)
            for k in range(m):
                de[k + 1] = dp[k] * g
                dvalue += p[k] * da[k] if p[k] != 0 else 0.0
    for j in range(m, first - 1, -1):
        for i in range(first, j):
            left, right, arc, back = i * s + i, j * s + i, i * s + j, j * s + i
            here = to_r[arc] + to_r[back]
            dhere = dto_r[arc] + dto_r[back] if dc is not None else 0.0
            if here != 0 or dhere != 0:
                shares(v, left + 1, r, right + 1, j - i, a, p, omega)
                push(to_v, left + 1, to_r, right + 1, j - i, here, p)
                if dc is not None:
                    push_change(dv, left + 1, dr, right + 1, j - i, here, dhere, p, da, dp, dto_v, dto_r, omega)
            e[arc] = gap = to_v[arc]
            dgap = dto_v[arc] if dc is not None else 0.0
            if dc is not None:
                de[arc] = dgap
            if i > 0:
                here = to_l[arc] + to_l[back]
                dhere = dto_l[arc] + dto_l[back] if dc is not None else 0.0
                if here != 0 or dhere != 0:
                    shares(l, left, v, right, j - i, a, p, omega)
                    push(to_l, left, to_v, right, j - i, here, p)
                    if dc is not None:
                        push_change(dl, left, dv, right, j - i, here, dhere, p, da, dp, dto_l, dto_v, omega)
                e[back] = to_v[back]
                gap += to_v[back]
                if dc is not None:
                    de[back] = dto_v[back]
                    dgap += dto_v[back]
            if gap != 0 or dgap != 0:
                shares(r, left, l, right + 1, j - i, a, p, omega)
                push(to_r, left, to_l, right + 1, j - i, gap, p)
                if dc is not None:
                    push_change(dr, left, dl, right + 1, j - i, gap, dgap, p, da, dp, dto_r, dto_l, omega)
    return dvalue
