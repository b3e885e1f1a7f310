"""Sorting scores in time that grows with their number alone."""

import numpy as np
from numba import njit

_SIGN = np.uint64(1 << 63)
_DIGIT = np.uint64(255)


@njit(error_model="numpy")
def descending(scores):  # type: ignore[no-untyped-def]
    """Return the indices of ``scores`` from the largest to the smallest, ties in order.

    A radix sort on the bits of the scores as doubles, a byte at a time from the last.
    """
    size = scores.size
    values = np.empty(size, dtype=np.float64)
    for i in range(size):
        values[i] = scores[i] + 0.0  # which makes one zero of both
    bits = values.view(np.uint64)
    counts = np.empty((8, 256), dtype=np.int64)
    for digit in range(8):
        for byte in range(256):
            counts[digit, byte] = 0
    order = np.empty(size, dtype=np.int64)
    following = np.empty(size, dtype=np.int64)
    for i in range(size):
        # Larger scores get smaller unsigned integers.
        bits[i] = bits[i] if bits[i] & _SIGN else ~(bits[i] | _SIGN)
        order[i] = i
        for digit in range(8):
            counts[digit, (bits[i] >> np.uint64(8 * digit)) & _DIGIT] += 1
    for digit in range(8):
        shift = np.uint64(8 * digit)
        if size and counts[digit, (bits[0] >> shift) & _DIGIT] == size:
            continue  # as for the last bytes of what was a single
        start = 0
        for byte in range(256):
            count = counts[digit, byte]
            counts[digit, byte] = start
            start += count
        for i in range(size):
            byte = (bits[order[i]] >> shift) & _DIGIT
            following[counts[digit, byte]] = order[i]
            counts[digit, byte] += 1
        order, following = following, order
    return order
