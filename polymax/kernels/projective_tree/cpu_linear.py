"""Projective trees under Shannon entropy as sums of products in float64, for Numba.

A chart c is three flat squares: c[0] and c[1] hold exp(R - shift) and exp(L - shift), symmetric, and c[2] holds exp(I -
shift), [head, modifier]: then all three sums are dot products along rows. A tree has as many arcs as modifiers, so a
shift for each arc cancels. It follows the values while the chart grows. Instances whose scores spread too far for that
are reported, and computed by the recursion on values. Spans are visited as in span_tree/cpu_linear.py, and read to
multiples of four too.
"""

import numpy as np

from polymax.backend.numba_math import inline
from polymax.kernels.span_tree.cpu_linear import HUGE, TINY, dot, dual_dot, dual_push, lost, product, push

# limits at which the shift is moved, long before the range ends
_LOW, _HIGH = 1e-30, 1e30
# below this the sum over roots may have lost terms that count
_LEAST = 1e-270
# growth of the number of trees over w tokens, about (27 / 4)^w
_GROWTH = np.log(27 / 4)


@inline
def inside(scores, m, first, s, c, a, omega):
    """Fill the chart c of positions first..m, with rows of s entries; return its value, and the shift of arcs, or
    inf.
    """
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
        return np.log(r[m]) + m * shift, shift if fine else np.inf
    top = _best_root(scores, m)
    total = 0.0
    rooted = False
    for k in range(1, m + 1):
        whole = l[s + k] * r[m * s + k]
        total += whole * np.exp(scores[k] - top)
        rooted |= whole > 0 and scores[k] > -np.inf
    fine &= total < np.inf and (total > _LEAST or not rooted)
    return np.log(total) + top + (m - 1) * shift, shift if fine else np.inf


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
    """Subtract `step` for each arc from the shifted values of the chart; return True if all stay in range."""
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


@inline
def forward(scores, d, m, first, s, c, shift, dc, rows, omega):
    """Fill dc with the derivative of the chart along d."""
    r, l, v = c[0], c[1], c[2]
    dr, dl, dv = dc[0], dc[1], dc[2]
    dc[:, : (m + 1) * s] = 0
    for j in range(first, m + 1):
        for i in range(j - 1, first - 1, -1):
            left, right = i * s + i, j * s + i
            gap = dual_dot(r, dr, left, l, dl, right + 1, j - i)
            weight = np.exp(scores[i * s + j] - shift)
            dv[i * s + j] = gap * weight + product(v[i * s + j], d[i * s + j])
            dr[i * s + j] = dr[j * s + i] = dual_dot(v, dv, left + 1, r, dr, right + 1, j - i)
            if i > 0:
                weight = np.exp(scores[j * s + i] - shift)
                dv[j * s + i] = gap * weight + product(v[j * s + i], d[j * s + i])
                dl[i * s + j] = dl[j * s + i] = dual_dot(l, dl, left, v, dv, right, j - i)


@inline
def outside(scores, m, first, s, c, shift, g, o, e, d, dc, do, de, rows, omega):
    """Fill e with g times the expected arcs; o is workspace.

    o has derivatives by c: at [i, j] the gradient that span (i, j) receives as a left child, at [j, i] as a right
    child. Unless dc is None, also fill de by dual numbers, and return the derivative of the value along d.
    """
    r, l, v = c[0], c[1], c[2]
    to_r, to_l, to_v = o[0], o[1], o[2]
    o[:, : (m + 1) * s] = 0
    dvalue = 0.0
    if dc is not None:
        dr, dl, dv = dc[0], dc[1], dc[2]
        dto_r, dto_l, dto_v = do[0], do[1], do[2]
        do[:, : (m + 1) * s] = 0
    if first == 1:
        dvalue = _outside_of_roots(scores, m, s, c, g, o, e, d, dc, do, de)
    elif r[m] > 0:
        to_r[m] = g / r[m]
        if dc is not None:
            dvalue = dr[m] / r[m]
            dto_r[m] = -to_r[m] * dvalue
    for j in range(m, first - 1, -1):
        for i in range(first, j):
            # values added past the end of a row go to spans that are finished
            left, right, arc, back = i * s + i, j * s + i, i * s + j, j * s + i
            here = to_r[arc] + to_r[back]
            push(v, left + 1, r, right + 1, j - i, here, to_v, to_r)
            weight = np.exp(scores[arc] - shift)
            gap = to_v[arc] * weight
            e[arc] = to_v[arc] * v[arc]
            if dc is not None:
                dhere = dto_r[arc] + dto_r[back]
                dual_push(v, dv, left + 1, r, dr, right + 1, j - i, here, dhere, dto_v, dto_r)
                de[arc] = dto_v[arc] * v[arc] + to_v[arc] * dv[arc]
                dgap = dto_v[arc] * weight + to_v[arc] * product(weight, d[arc])
            if i > 0:
                here = to_l[arc] + to_l[back]
                push(l, left, v, right, j - i, here, to_l, to_v)
                weight = np.exp(scores[back] - shift)
                gap += to_v[back] * weight
                e[back] = to_v[back] * v[back]
                if dc is not None:
                    dhere = dto_l[arc] + dto_l[back]
                    dual_push(l, dl, left, v, dv, right, j - i, here, dhere, dto_l, dto_v)
                    de[back] = dto_v[back] * v[back] + to_v[back] * dv[back]
                    dgap += dto_v[back] * weight + to_v[back] * product(weight, d[back])
            push(r, left, l, right + 1, j - i, gap, to_r, to_l)
            if dc is not None:
                dual_push(r, dr, left, l, dl, right + 1, j - i, gap, dgap, dto_r, dto_l)
    return dvalue


@inline
def _outside_of_roots(scores, m, s, c, g, o, e, d, dc, do, de):
    """Begin with the gradients of the single root's choices; return the derivative of the value."""
    r, l = c[0], c[1]
    top = _best_root(scores, m)
    total = dtotal = 0.0
    for k in range(1, m + 1):
        weight = np.exp(scores[k] - top)
        left, right = l[s + k], r[m * s + k]
        e[k] = left * right * weight
        total += e[k]
        if dc is not None:
            de[k] = (dc[1, s + k] * right + left * dc[0, m * s + k]) * weight + product(e[k], d[k])
            dtotal += de[k]
    scale = g / total if total > 0 else 0.0
    dvalue = dtotal / total if total > 0 else 0.0
    for k in range(1, m + 1):
        weight = scale * np.exp(scores[k] - top)
        left, right = l[s + k], r[m * s + k]
        o[1, s + k], o[0, m * s + k] = weight * right, weight * left
        if dc is not None:
            de[k] = scale * (de[k] - dvalue * e[k])
            dweight = product(weight, d[k] - dvalue)
            do[1, s + k] = dweight * right + weight * dc[0, m * s + k]
            do[0, m * s + k] = dweight * left + weight * dc[1, s + k]
        e[k] *= scale
    return dvalue
