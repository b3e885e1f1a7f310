"""The fused forward pass for the k largest of many scores: solutions with few ones.

As :func:`softsolve.compiled.passes.forward_rows`, but a solution is no more than the
places of its ones: nothing but the noise and the scores is written for all entries.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import numpy as np

from softsolve.compiled.families import bound_of_maxima, insert_reaching
from softsolve.compiled.lane_arithmetic import scaled
from softsolve.compiled.lanes import LANES, fill, load, maximum, store
from softsolve.compiled.native import borrowed, call_address, hold
from softsolve.compiled.passes import (
    GAP_MOMENT,
    LOSS,
    LOWEST,
    MOMENT,
    Pass,
    _inlined,
    block_samples,
)
from softsolve.compiled.random import row_key


@_inlined
def perturb_and_bound(x, theta, epsilon, z, k):
    """Set x to θ + εz; return a number that at least k of its entries reach."""
    size = x.size
    whole = size - size % LANES
    amplitude, best = fill(epsilon), fill(x.dtype.type(-np.inf))
    for start in range(0, whole, LANES):
        score = scaled(amplitude, load(z, start), load(theta, start))
        store(x, start, score)
        best = maximum(best, score)
    for j in range(whole, size):
        x[j] = theta[j] + epsilon * z[j]
    return bound_of_maxima(best, x, k)


@_inlined
def find_ones(target, ones):
    """Write the places of the entries that are not 0; return how many there are."""
    count = 0
    for j in range(target.size):
        if target[j] != 0:
            ones[count] = j
            count += 1
    return count


def forward_top_rows(
    fill_noise,
    scored,
    theta,
    temperature,
    keys,
    k,
    antithetic,
    num_samples,
    group,
    split,
    codes,
    target,
    totals,
    scalars,
    start,
    stop,
):
    """Find the k largest of the perturbed scores of each sample, and reduce them."""
    theta = borrowed(theta)
    temperature = borrowed(temperature)
    keys = borrowed(keys)
    codes = borrowed(codes)
    target = borrowed(target)
    totals = borrowed(totals)
    scalars = borrowed(scalars)
    size = theta.shape[1]
    groups = (num_samples + group - 1) // group
    block = block_samples(size, group)
    z = np.empty((block, size), theta.dtype)
    s = np.empty_like(z) if scored else z
    x = np.empty(size, theta.dtype)
    best = np.empty(k, theta.dtype)
    places = np.empty(k, np.int32)
    goals = np.empty(size, np.int32)
    counts = np.empty(size, np.int64)
    kept = codes.view(np.int32)
    keep, targeted = codes.shape[1] > 0, target.shape[0] > 0
    held = (z, s, x, best, places, goals, counts)
    z = borrowed(z)
    s = borrowed(s)
    x = borrowed(x)
    best = borrowed(best)
    places = borrowed(places)
    goals = borrowed(goals)
    counts = borrowed(counts)
    for item in range(start, stop):
        row = item // groups
        slot = item if split else row
        key = row_key(keys[row, 0], keys[row, 1])
        epsilon = temperature[row]
        num_goals = find_ones(target[row], goals) if targeted else 0
        counts[:] = 0
        moment, loss, gap_moment, lowest = 0.0, 0.0, 0.0, np.inf
        first = (item - row * groups) * group
        last = min(first + group, num_samples)
        for begin in range(first, last, block):
            count = min(block, last - begin)
            call_address(fill_noise, (key, begin, antithetic, z[:count], s[:count]))
            for sample in range(count):
                noise = z[sample]
                bound = perturb_and_bound(x, theta[row], epsilon, noise, k)
                insert_reaching(x, bound, best, places)
                value, product = 0.0, 0.0
                for place in places:
                    counts[place] += 1
                    value += x[place]
                    product += noise[place]
                moment += product
                if keep:
                    for number in range(k):
                        kept[row, begin + sample, number] = places[number]
                if targeted:
                    for place in goals[:num_goals]:
                        value -= target[row, place] * np.float64(x[place])
                        product -= target[row, place] * np.float64(noise[place])
                    loss += value
                    gap_moment += product
                    lowest = min(lowest, value)
        for j in range(size):
            totals[slot, j] += counts[j]
        scalars[slot, MOMENT] += moment
        scalars[slot, LOSS] += loss
        scalars[slot, GAP_MOMENT] += gap_moment
        scalars[slot, LOWEST] = min(scalars[slot, LOWEST], lowest)
    hold(held)
    return 0


FORWARD_TOP_ROWS = Pass(forward_top_rows, "i b t2 t1 k2 i b i i b c3 t2 f2 f2 i i")
