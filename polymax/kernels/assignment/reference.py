"""Linear assignment by shortest augmenting paths, row after row, in plain Python: the specification.

See: Kuhn 1955; Jonker and Volgenant 1987.
"""

import math

import torch
from torch import Tensor

from polymax.kernels.assignment import outputs


def assignment(scores: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    match, u, v = outputs(scores)
    match.fill_(-1)
    u.zero_()
    v.zero_()
    for b, (n, m) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        x = scores[b, :n, :m].detach().double().cpu()
        if not bool((x < math.inf).all()):
            u[b, :n] = v[b, :m] = math.nan
            continue
        found = _match_rows((x if n <= m else x.T).tolist(), min(n, m), max(n, m))
        if found is None:
            u[b, :n] = -math.inf
            continue
        own, row_duals, column_duals = found
        if n > m:
            row_duals, column_duals = column_duals, row_duals
        for short, long in enumerate(own):
            i, j = (short, long) if n <= m else (long, short)
            match[b, i] = j
        u[b, :n] = torch.tensor(row_duals, dtype=torch.float64, device="cpu")
        v[b, :m] = torch.tensor(column_duals, dtype=torch.float64, device="cpu")
    return match, u, v


def _match_rows(scores: list[list[float]], n: int, m: int) -> tuple[list[int], list[float], list[float]] | None:
    """Return the column of each row, for n <= m, and the duals of rows and columns; None if there is no assignment."""
    match, owner = [-1] * n, [-1] * m
    u, v = [max(row) for row in scores], [0.0] * m
    if -math.inf in u:
        return None
    for start in range(n):
        # Dijkstra in the slacks: the distance of each column, and the row before it
        distance, previous = [math.inf] * m, [-1] * m
        reached = {start: 0.0}
        done: dict[int, float] = {}
        i = start
        while True:
            for j in range(m):
                through = reached[i] + (u[i] + v[j] - scores[i][j])
                if j not in done and through < distance[j]:
                    distance[j], previous[j] = through, i
            j = min((j for j in range(m) if j not in done), key=distance.__getitem__, default=-1)
            if j < 0 or distance[j] == math.inf:
                return None
            if owner[j] < 0:
                break
            i = owner[j]
            done[j] = reached[i] = distance[j]
        for i, near in reached.items():
            u[i] -= distance[j] - near
        for k, near in done.items():
            v[k] += distance[j] - near
        while j >= 0:
            i = previous[j]
            owner[j] = i
            match[i], j = j, match[i]
    low = min(v) if n == m and n else 0.0
    return match, [x + low for x in u], [x - low for x in v]
