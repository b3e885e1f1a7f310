"""Instance and block kernels of the solvers that are written in the array API.

A solver with a ``family`` runs on the fused route by these: the largest of d scores,
the k largest, and the ranking by a reference vector.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ARG001 (kernels have one signature)

import numba
import numpy as np

from softsolve.compiled.kernel import OK, block_kernel, kernel
from softsolve.compiled.lane_arithmetic import (
    compare,
    equal,
    lowest_bit,
    mark_above,
    marks_above,
    not_below,
)
from softsolve.compiled.lanes import (
    LANES,
    fill,
    lane_buffer,
    load,
    maximum,
    store,
    where_less,
)

# Up to so many scores ranks are counted; beyond, scores are sorted.
COUNTED = 64
# Up to so many of the largest are kept sorted; beyond, a place is selected.
KEPT_SORTED = 64
DIGIT = 11


@kernel
def largest(theta, ints, reals, context, state, y):
    """Mark the largest score, the first of equals."""
    best = 0
    for j in range(theta.size):
        y[j] = 0
        if theta[j] > theta[best]:
            best = j
    y[best] = 1
    return OK


@block_kernel(LANES)
def largest_lanes(theta, ints, reals, context, y, status):
    """Mark the largest score of each lane, the first of equals."""
    best, place = load(theta, 0), fill(np.uint32(0))
    for j in range(1, theta.shape[0]):
        score = load(theta, j * LANES)
        place = where_less(best, score, fill(np.uint32(j)), place)
        best = maximum(best, score)
    for j in range(theta.shape[0]):
        store(y, j * LANES, equal(place, fill(np.uint32(j))))
    status[:] = OK


@numba.njit(nogil=True, error_model="numpy")
def bound_of_maxima(best, theta, k):
    """Return a score that at least k reach: the k-th largest of the lanes' maxima.

    ``best`` holds these maxima, taken over the whole blocks of ``theta``.
    """
    if k > LANES // 2 or theta.size < 2 * LANES:
        return theta.dtype.type(-np.inf)
    maxima = np.empty(LANES, theta.dtype)
    store(maxima, 0, best)
    bound = theta.dtype.type(np.inf)
    for lane in range(LANES):
        if marks_above(maxima, 0, maxima[lane]) < k:
            bound = min(bound, maxima[lane])
    return bound


@numba.njit(nogil=True, error_model="numpy")
def _lower_bound(theta, k):
    """Return a score that at least k reach, or else -∞."""
    best = fill(theta.dtype.type(-np.inf))
    for start in range(0, theta.size - LANES + 1, LANES):
        best = maximum(best, load(theta, start))
    return bound_of_maxima(best, theta, k)


@numba.njit(nogil=True, error_model="numpy")
def _selected(scores, place):
    """Return the score at a place in ascending order; reorders the scores."""
    low, high = 0, scores.size - 1
    while low < high:
        pivot = scores[(low + high) // 2]
        left, right = low, high
        while left <= right:
            while scores[left] < pivot:
                left += 1
            while scores[right] > pivot:
                right -= 1
            if left <= right:
                scores[left], scores[right] = scores[right], scores[left]
                left += 1
                right -= 1
        if place <= right:
            high = right
        elif place >= left:
            low = left
        else:
            break
    return scores[place]


@numba.njit(nogil=True, error_model="numpy")
def insert_reaching(theta, bound, best, places):
    """Write the largest scores, in order, and their places, the first of equals.

    At least as many scores as there is room for must reach ``bound``.
    """
    k, size = best.size, theta.size
    best[:] = -np.inf
    whole = size - size % LANES
    for start in range(0, size, LANES):
        mask = (1 << (size - whole)) - 1
        if start < whole:
            mask = not_below(theta, start, bound)
        while mask:
            here = start + lowest_bit(mask)
            mask &= mask - 1
            score = theta[here]
            if score > best[k - 1]:
                at = k - 1
                while at > 0 and best[at - 1] < score:
                    best[at], places[at] = best[at - 1], places[at - 1]
                    at -= 1
                best[at], places[at] = score, here
                bound = max(bound, best[k - 1])


@numba.njit(nogil=True, error_model="numpy")
def kth_largest(theta, k):
    """Return the k-th largest score."""
    size = theta.size
    if k > KEPT_SORTED:
        return _selected(theta.copy(), size - k)
    best, places = np.empty(k, theta.dtype), np.empty(k, np.int32)
    insert_reaching(theta, _lower_bound(theta, k), best, places)
    return best[k - 1]


@kernel
def k_largest(theta, ints, reals, context, state, y):
    """Mark the k = ints[0] largest scores, the first of equals."""
    k, size = ints[0], theta.size
    if k == 0:
        y[:] = 0
        return OK
    bound = kth_largest(theta, k)
    whole = size - size % LANES
    count = 0
    for start in range(0, whole, LANES):
        count += mark_above(theta, y, start, bound)
    for j in range(whole, size):
        mark = theta[j] > bound
        y[j] = mark
        count += mark
    for j in range(size):
        if count == k:
            break
        if theta[j] == bound:
            y[j] = 1
            count += 1
    return OK


@numba.njit(nogil=True, error_model="numpy")
def ascending_order(theta):
    """Return the order from the least score to the largest, later of equals first."""
    size = theta.size
    # Adding zero makes one of the two zeros; then the bits of floats, with those of
    # negative ones inverted, are in the order of the numbers.
    shifted = theta + theta.dtype.type(0)
    keys = np.empty(size, np.uint64)
    if theta.itemsize == 4:
        bits = 32
        words = shifted.view(np.uint32)
        for j in range(size):
            word = np.uint64(words[size - 1 - j])
            if word >> np.uint64(31):
                keys[j] = word ^ np.uint64(0xFFFFFFFF)
            else:
                keys[j] = word | np.uint64(0x80000000)
    else:
        bits = 64
        long_words = shifted.view(np.uint64)
        for j in range(size):
            word = long_words[size - 1 - j]
            if word >> np.uint64(63):
                keys[j] = ~word
            else:
                keys[j] = word | np.uint64(1 << 63)
    order = np.arange(size - 1, -1, -1)
    other_keys, other_order = np.empty_like(keys), np.empty_like(order)
    starts = np.empty((1 << DIGIT) + 1, np.int64)
    mask = np.uint64((1 << DIGIT) - 1)
    for shift in range(0, bits, DIGIT):
        starts[:] = 0
        for j in range(size):
            starts[np.int64((keys[j] >> np.uint64(shift)) & mask) + 1] += 1
        for digit in range(1 << DIGIT):
            starts[digit + 1] += starts[digit]
        for j in range(size):
            place = np.int64((keys[j] >> np.uint64(shift)) & mask)
            other_keys[starts[place]] = keys[j]
            other_order[starts[place]] = order[j]
            starts[place] += 1
        keys, other_keys = other_keys, keys
        order, other_order = other_order, order
    return order


@kernel
def ranking(theta, ints, reals, context, state, y):
    """Put the reference vector ``reals``, ascending, in the order of the scores."""
    size = theta.size
    if size <= COUNTED:
        for i in range(size):
            rank = 0
            for j in range(i):
                rank += theta[j] < theta[i]
            for j in range(i + 1, size):
                rank += theta[j] <= theta[i]
            y[i] = reals[rank]
        return OK
    order = ascending_order(theta)
    for rank in range(size):
        y[order[rank]] = reals[rank]
    return OK


@block_kernel(LANES)
def ranking_lanes(theta, ints, reals, context, y, status):
    """Count for each score how many of its lane are smaller: at most 255 fit.

    Of a pair i < j, either j counts for i (when not larger) or i for j. So a score
    starts with rank i, the number of those before it, gains one for each later score
    that is not larger and loses one for each earlier one that is not smaller.
    """
    size = theta.shape[0]
    ranks = lane_buffer(size * LANES, np.int32)
    for i in range(size):
        store(ranks, i * LANES, fill(np.int32(i)))
    tiled = size - size % 4
    for i in range(0, tiled, 4):
        at = i * LANES
        a, b = load(theta, at), load(theta, at + LANES)
        c, d = load(theta, at + 2 * LANES), load(theta, at + 3 * LANES)
        a_rank, b_rank = load(ranks, at), load(ranks, at + LANES)
        c_rank, d_rank = load(ranks, at + 2 * LANES), load(ranks, at + 3 * LANES)
        a_rank, b_rank = compare(a, b, a_rank, b_rank)
        a_rank, c_rank = compare(a, c, a_rank, c_rank)
        a_rank, d_rank = compare(a, d, a_rank, d_rank)
        b_rank, c_rank = compare(b, c, b_rank, c_rank)
        b_rank, d_rank = compare(b, d, b_rank, d_rank)
        c_rank, d_rank = compare(c, d, c_rank, d_rank)
        for j in range(i + 4, size):
            score, rank = load(theta, j * LANES), load(ranks, j * LANES)
            a_rank, rank = compare(a, score, a_rank, rank)
            b_rank, rank = compare(b, score, b_rank, rank)
            c_rank, rank = compare(c, score, c_rank, rank)
            d_rank, rank = compare(d, score, d_rank, rank)
            store(ranks, j * LANES, rank)
        store(y, at, a_rank)
        store(y, at + LANES, b_rank)
        store(y, at + 2 * LANES, c_rank)
        store(y, at + 3 * LANES, d_rank)
    for i in range(tiled, size):
        own, own_rank = load(theta, i * LANES), load(ranks, i * LANES)
        for j in range(i + 1, size):
            score, rank = load(theta, j * LANES), load(ranks, j * LANES)
            own_rank, rank = compare(own, score, own_rank, rank)
            store(ranks, j * LANES, rank)
        store(y, i * LANES, own_rank)
    status[:] = OK
