"""Memory that is used again: never while something still looks at it."""

import gc

import numpy as np
import pytest
import torch

from softsolve.compiled import buffers


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch):
    monkeypatch.setattr(buffers, "_free", {})


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array,
        lambda array: array[3:],
        lambda array: array.reshape(-1)[::2],
        lambda array: array.view(np.uint64),
        torch.from_numpy,
        lambda array: torch.from_numpy(array)[5:].view(-1),
    ],
)
def test_memory_is_not_used_again_while_there_are_views(view):
    array = buffers.empty((100, 300))
    array.fill(1)
    where = address(array)
    seen = view(array)
    del array
    gc.collect()
    other = buffers.empty((100, 300))
    other.fill(2)
    assert address(other) != where
    del seen
    gc.collect()
    assert address(buffers.empty((100, 300))) == where


def test_memory_of_the_same_size_is_used_again():
    array = buffers.empty((4, 10_000), np.float32)
    where = address(array)
    del array
    again = buffers.zeros((20_000,))
    assert address(again) == where
    assert not again.any()


def test_a_bounded_amount_is_kept(monkeypatch):
    monkeypatch.setattr(buffers, "KEPT", 3 << 20)
    arrays = [buffers.empty((1 << 17,)) for _ in range(5)]
    assert len({address(array) for array in arrays}) == 5
    arrays.clear()
    gc.collect()
    assert sum(size * len(each) for size, each in buffers._free.items()) == 3 << 20


def test_small_arrays_are_numpys():
    assert buffers.empty((10,)).base is None
    assert not buffers.zeros((10, 3)).any()
