"""Arrays whose memory is used again.

What is as large as the solutions of many samples comes straight from the operating
system and goes back there, and each of its pages is made anew for every pass: 2.7 ms
for 3 MB on a virtual machine, where the pass itself took 2.5 ms.
"""

import math
import weakref
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Numbers from which memory may come from the operating system, and bytes kept at most.
LARGE, KEPT = 1 << 14, 1 << 26

_free: dict[int, list[bytearray]] = {}


def empty(shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
    """Return an array of any content, in memory that a dead one left if there is some.

    Examples
    --------
    >>> from softsolve.compiled.buffers import empty
    >>> first = empty((100, 1000))
    >>> address = first.ctypes.data
    >>> del first
    >>> empty((1000, 100)).ctypes.data == address
    True
    """
    count = math.prod(shape)
    if count < LARGE:
        return np.empty(shape, dtype)
    kind = np.dtype(dtype)
    size = count * kind.itemsize
    try:
        memory = _free[size].pop()
    except (KeyError, IndexError):
        memory = bytearray(size)
    # Views of this array, and what is made of them, keep it alive, and not the memory.
    whole = np.frombuffer(memory, kind)
    weakref.finalize(whole, _give_back, memory).atexit = False
    return whole.reshape(shape)


def zeros(shape: tuple[int, ...]) -> Array:
    """Return an array of zeros, likewise."""
    if math.prod(shape) < LARGE:
        return np.zeros(shape)
    array = empty(shape)
    array.fill(0)
    return array


def _give_back(memory: bytearray) -> None:
    size = len(memory)
    if sum(size * len(each) for size, each in list(_free.items())) + size <= KEPT:
        _free.setdefault(size, []).append(memory)
