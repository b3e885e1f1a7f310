r"""The best tour of few cities, by dynamic programming over sets of cities."""

import numba
import numpy as np

from softsolve.compiled.kernel import OK, kernel

# Of a set of cities, all ends are kept side by side: one vector in single precision.
WIDTH = 16
MOST_CITIES = WIDTH + 1


@numba.njit(nogil=True)
def _fill(score, count, best):  # type: ignore[no-untyped-def]
    # best[visited, j]: the best path from city 0 through the set to its member j. Each
    # set is pushed on to all cities at once. No branches, and loops of constant length:
    # all of a set's row is then kept in registers.
    reached = np.empty(WIDTH, best.dtype)
    never = best.dtype.type(-np.inf)
    for visited in range(1, (1 << count) - 1):
        for k in range(WIDTH):
            best[visited, k] = best[visited, k] if visited >> k & 1 else never
        for j in range(WIDTH):
            highest = never
            for k in range(WIDTH):
                value = best[visited, k] + score[k, j]
                highest = value if value > highest else highest
            reached[j] = highest
        for j in range(count):
            # What cannot be extended goes to the empty set, which nobody reads.
            target = 0 if visited >> j & 1 else visited | 1 << j
            best[target, j] = reached[j]


@kernel
def solve_tour(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Find the best tour by the recursion of Held and Karp; ``ints[0]`` is n."""
    n = ints[0]
    y[:] = 0
    if n == 1:
        return OK
    count = n - 1
    start = np.empty(count, theta.dtype)
    score = np.zeros((WIDTH, WIDTH), theta.dtype)
    for i in range(count):
        start[i] = theta[i + 1] + theta[(i + 1) * n]
        for j in range(count):
            score[i, j] = theta[(i + 1) * n + j + 1] + theta[(j + 1) * n + i + 1]
    best = np.empty((1 << count, WIDTH), theta.dtype)
    for j in range(count):
        best[1 << j, j] = start[j]
    _fill(score, count, best)

    # Read back from the end; a path of one city goes on to city 0.
    visited = (1 << count) - 1
    city = 0
    for _ in range(count):
        last = 0
        for k in range(1, count):
            to_last = start[last] if city == 0 else score[last, city - 1]
            to_k = start[k] if city == 0 else score[k, city - 1]
            if best[visited, k] + to_k > best[visited, last] + to_last:
                last = k
        y[city * n + last + 1] = y[(last + 1) * n + city] = 1
        visited ^= 1 << last
        city = last + 1
    y[city * n] = y[city] = 1
    return OK
