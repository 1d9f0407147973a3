"""Projective trees under Shannon entropy as sums of products in float64, for Numba.

A chart c is three flat squares: c[0] and c[1] hold exp(R - shift) and exp(L - shift), symmetric, and c[2] holds
exp(I - shift), [head, modifier]: then all three sums are dot products along rows. A tree has as many arcs as
modifiers, so a shift for each arc cancels. It follows the values while the chart grows; scores that spread too far for
that are reported, and left to the recursion on values. Spans are visited as in span_tree/cpu_linear.py, and read to
multiples of four too.
"""

import numpy as np

from polymax.kernels.numba_math import inline, kernel
from polymax.kernels.span_tree.cpu_linear import HUGE, TINY, dot, dual_dot, dual_push, lost, product, push

# where the shift is moved, long before the range ends
_LOW, _HIGH = 1e-30, 1e30
# below this the sum over roots may have lost terms that count
_LEAST = 1e-270
# trees over w tokens: about (27 / 4)^w
_GROWTH = np.log(27 / 4)


@kernel
def inside(scores, m, first, s, c):
    """Fill the chart c of positions first..m, with rows of s entries. Its value, the shift of arcs, success."""
    r, l, v = c[0], c[1], c[2]
    c[:, : (m + 1) * s] = 0
    shift = _centre(scores, m, first, s)
    fine = True
    for j in range(first, m + 1):
        r[j * s + j] = l[j * s + j] = 1
        for i in range(j - 1, first - 1, -1):
            gap = dot(r, i * s + i, l, j * s + i + 1, j - i)
            weight = np.exp(scores[i * s + j] - shift)
            fine &= not lost(gap, weight, scores[i * s + j])
            v[i * s + j] = gap * weight
            total = dot(v, i * s + i + 1, r, j * s + i + 1, j - i)
            r[i * s + j] = r[j * s + i] = total
            fine &= _in_range(total)
            if i > 0:
                weight = np.exp(scores[j * s + i] - shift)
                fine &= not lost(gap, weight, scores[j * s + i])
                v[j * s + i] = gap * weight
                total = dot(l, i * s + i, v, j * s + i, j - i)
                l[i * s + j] = l[j * s + i] = total
                fine &= _in_range(total)
        top = max(r[first * s + j], l[first * s + j])
        if fine and top > 0 and not _LOW < top < _HIGH:
            step = np.log(top) / (j - first)
            shift += step
            fine = _move(c, m, s, step)
        if not fine:
            break
    if first == 0:
        return np.log(r[m]) + m * shift, shift, fine
    top = _best_root(scores, m)
    total = 0.0
    rooted = False
    for k in range(1, m + 1):
        whole = l[s + k] * r[m * s + k]
        total += whole * np.exp(scores[k] - top)
        rooted |= whole > 0 and scores[k] > -np.inf
    fine &= total < np.inf and (total > _LEAST or not rooted)
    return np.log(total) + top + (m - 1) * shift, shift, fine


@inline
def _centre(scores, m, first, s):
    total = 0.0
    count = 0
    for i in range(first, m + 1):
        for j in range(1, m + 1):
            if i != j and scores[i * s + j] != -np.inf:
                total += scores[i * s + j]
                count += 1
    return total / max(count, 1) + _GROWTH


@inline
def _in_range(x):
    return x <= HUGE and (x >= TINY or x == 0)


@inline
def _move(c, m, s, step):
    """Take `step` for each arc off the shifted values of the chart; whether all stay in range."""
    fine = True
    for i in range(m + 1):
        for j in range(m + 1):
            factor = np.exp(-step * abs(i - j))
            for q in range(3):
                old = c[q, i * s + j]
                c[q, i * s + j] *= factor
                fine &= c[q, i * s + j] <= HUGE and (c[q, i * s + j] >= TINY or old == 0)
    return fine


@inline
def _best_root(scores, m):
    top = -np.inf
    for k in range(1, m + 1):
        top = max(top, scores[k])
    return top if top > -np.inf else 0.0


@kernel
def outside(scores, m, first, s, c, shift, g, o, e):
    """Fill e with g times the expected arcs; o is work space.

    o has derivatives by c; what a span (i, j) hears as the left of two is at [i, j], as the right at [j, i].
    """
    r, l, v = c[0], c[1], c[2]
    to_r, to_l, to_v = o[0], o[1], o[2]
    o[:, : (m + 1) * s] = 0
    if first == 0:
        to_r[m] = g / r[m] if r[m] > 0 else 0.0
    else:
        top = _best_root(scores, m)
        total = 0.0
        for k in range(1, m + 1):
            e[k] = l[s + k] * r[m * s + k] * np.exp(scores[k] - top)
            total += e[k]
        scale = g / total if total > 0 else 0.0
        for k in range(1, m + 1):
            e[k] *= scale
            weight = scale * np.exp(scores[k] - top)
            to_l[s + k] = weight * r[m * s + k]
            to_r[m * s + k] = weight * l[s + k]
    for j in range(m, first - 1, -1):
        for i in range(first, j):
            # what is added past the end of a row goes to spans that are done
            here = to_r[i * s + j] + to_r[j * s + i]
            push(v, i * s + i + 1, r, j * s + i + 1, j - i, here, to_v, to_r)
            gap = to_v[i * s + j] * np.exp(scores[i * s + j] - shift)
            e[i * s + j] = to_v[i * s + j] * v[i * s + j]
            if i > 0:
                here = to_l[i * s + j] + to_l[j * s + i]
                push(l, i * s + i, v, j * s + i, j - i, here, to_l, to_v)
                gap += to_v[j * s + i] * np.exp(scores[j * s + i] - shift)
                e[j * s + i] = to_v[j * s + i] * v[j * s + i]
            push(r, i * s + i, l, j * s + i + 1, j - i, gap, to_r, to_l)


@kernel
def tangent(scores, d, m, first, s, c, shift, g, dc, o, do, e, de):
    """The passes above on dual numbers: fill e and de, and give the derivative of the value along d."""
    r, l, v = c[0], c[1], c[2]
    dr, dl, dv = dc[0], dc[1], dc[2]
    dc[:, : (m + 1) * s] = 0
    for j in range(first, m + 1):
        for i in range(j - 1, first - 1, -1):
            left, right = i * s + i, j * s + i
            gap = dual_dot(r, dr, left, l, dl, right + 1, j - i)
            weight = np.exp(scores[i * s + j] - shift)
            dv[i * s + j] = gap * weight + product(v[i * s + j], d[i * s + j])
            total = dual_dot(v, dv, left + 1, r, dr, right + 1, j - i)
            dr[i * s + j] = dr[j * s + i] = total
            if i > 0:
                weight = np.exp(scores[j * s + i] - shift)
                dv[j * s + i] = gap * weight + product(v[j * s + i], d[j * s + i])
                total = dual_dot(l, dl, left, v, dv, right, j - i)
                dl[i * s + j] = dl[j * s + i] = total
    to_r, to_l, to_v = o[0], o[1], o[2]
    dto_r, dto_l, dto_v = do[0], do[1], do[2]
    o[:, : (m + 1) * s] = 0
    do[:, : (m + 1) * s] = 0
    dvalue = 0.0
    if first == 0:
        if r[m] > 0:
            dvalue = dr[m] / r[m]
            to_r[m] = g / r[m]
            dto_r[m] = -to_r[m] * dvalue
    else:
        dvalue = _tangent_of_roots(scores, d, m, s, c, g, dc, o, do, e, de)
    for j in range(m, first - 1, -1):
        for i in range(first, j):
            left, right = i * s + i, j * s + i
            here, dhere = to_r[i * s + j] + to_r[j * s + i], dto_r[i * s + j] + dto_r[j * s + i]
            push(v, left + 1, r, right + 1, j - i, here, to_v, to_r)
            dual_push(v, dv, left + 1, r, dr, right + 1, j - i, here, dhere, dto_v, dto_r)
            here, dhere = to_v[i * s + j], dto_v[i * s + j]
            e[i * s + j] = here * v[i * s + j]
            de[i * s + j] = dhere * v[i * s + j] + here * dv[i * s + j]
            weight = np.exp(scores[i * s + j] - shift)
            gap, dgap = here * weight, dhere * weight + here * product(weight, d[i * s + j])
            if i > 0:
                here, dhere = to_l[i * s + j] + to_l[j * s + i], dto_l[i * s + j] + dto_l[j * s + i]
                push(l, left, v, right, j - i, here, to_l, to_v)
                dual_push(l, dl, left, v, dv, right, j - i, here, dhere, dto_l, dto_v)
                here, dhere = to_v[j * s + i], dto_v[j * s + i]
                e[j * s + i] = here * v[j * s + i]
                de[j * s + i] = dhere * v[j * s + i] + here * dv[j * s + i]
                weight = np.exp(scores[j * s + i] - shift)
                gap += here * weight
                dgap += dhere * weight + here * product(weight, d[j * s + i])
            push(r, left, l, right + 1, j - i, gap, to_r, to_l)
            dual_push(r, dr, left, l, dl, right + 1, j - i, gap, dgap, dto_r, dto_l)
    return dvalue


@inline
def _tangent_of_roots(scores, d, m, s, c, g, dc, o, do, e, de):
    r, l = c[0], c[1]
    dr, dl = dc[0], dc[1]
    top = _best_root(scores, m)
    total = dtotal = 0.0
    for k in range(1, m + 1):
        weight = np.exp(scores[k] - top)
        left, right = l[s + k], r[m * s + k]
        e[k] = left * right * weight
        de[k] = (dl[s + k] * right + left * dr[m * s + k]) * weight + product(e[k], d[k])
        total += e[k]
        dtotal += de[k]
    scale = g / total if total > 0 else 0.0
    dvalue = dtotal / total if total > 0 else 0.0
    for k in range(1, m + 1):
        e[k], de[k] = scale * e[k], scale * (de[k] - dvalue * e[k])
        weight = scale * np.exp(scores[k] - top)
        dweight = product(weight, d[k] - dvalue)
        left, right = l[s + k], r[m * s + k]
        o[1, s + k], do[1, s + k] = weight * right, dweight * right + weight * dr[m * s + k]
        o[0, m * s + k], do[0, m * s + k] = weight * left, dweight * left + weight * dl[s + k]
    return dvalue
