"""A binary heap of (key, item) pairs in two arrays, smallest first.

Equal keys come out by item, so that the order never depends on the order of insertion.
"""

from numba import njit


@njit(error_model="numpy")
def push(keys, items, size, key, item):  # type: ignore[no-untyped-def]
    """Add a pair to a heap of ``size`` pairs; return the new size."""
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        above = keys[parent]
        if above < key or (above == key and items[parent] < item):
            break
        keys[place] = above
        items[place] = items[parent]
        place = parent
    keys[place] = key
    items[place] = item
    return size + 1


@njit(error_model="numpy")
def drop(keys, items, size):  # type: ignore[no-untyped-def]
    """Remove the smallest pair, at position 0; return the new size."""
    size -= 1
    key, item = keys[size], items[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            keys[right] < keys[child]
            or (keys[right] == keys[child] and items[right] < items[child])
        ):
            child = right
        if key < keys[child] or (key == keys[child] and item < items[child]):
            break
        keys[place] = keys[child]
        items[place] = items[child]
        place = child
    keys[place] = key
    items[place] = item
    return size
