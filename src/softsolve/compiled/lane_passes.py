r"""Fused passes with samples side by side, for block kernels.

As :mod:`softsolve.compiled.passes`, with blocks of :data:`LANES` samples in arrays
(d, lanes). With fewer samples a row than lanes, a block takes in samples of several
rows. A lane is reduced over its coordinates by itself, then the lanes in order, so
results do not depend on which samples share a block.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import numpy as np

from softsolve.compiled.kernel import OK
from softsolve.compiled.lane_arithmetic import (
    fmuladd,
    least,
    numbers,
    scaled,
    subtract,
    total,
)
from softsolve.compiled.lanes import (
    LANES,
    fill,
    lane_buffer,
    lane_rows,
    load,
    minimum,
    store,
    where_less,
)
from softsolve.compiled.native import borrowed, call_address, call_void, hold
from softsolve.compiled.passes import (
    GAP_MOMENT,
    LOSS,
    LOWEST,
    MOMENT,
    Pass,
    _inlined,
)
from softsolve.compiled.random import row_key


@_inlined
def gather(column, row_of, buffer):
    """Return lanes with each lane's entry of ``column``."""
    for lane in range(LANES):
        buffer[lane] = column[row_of[lane]]
    return load(buffer, 0)


def forward_lanes(
    fill_noise,
    block,
    encode,
    scored,
    theta,
    temperature,
    keys,
    ints,
    reals,
    context,
    antithetic,
    num_samples,
    leading,
    ending_at,
    together,
    group,
    split,
    codes,
    target,
    table,
    even,
    totals,
    slopes,
    scalars,
    status,
    start,
    stop,
):
    """Solve and reduce samples from ``leading`` to ``ending_at`` with a block kernel.

    Those of a group ``together``, in blocks of their own, or else blocks of the samples
    of one row after the other, without a gap.
    """
    theta = borrowed(theta)
    temperature = borrowed(temperature)
    keys = borrowed(keys)
    ints = borrowed(ints)
    reals = borrowed(reals)
    context = borrowed(context)
    codes = borrowed(codes)
    target = borrowed(target)
    table = borrowed(table)
    totals = borrowed(totals)
    slopes = borrowed(slopes)
    scalars = borrowed(scalars)
    status = borrowed(status)
    size = theta.shape[1]
    groups = (ending_at - leading + group - 1) // group
    z = lane_rows(size, theta.dtype)
    s = lane_rows(size, theta.dtype) if scored else z
    x = lane_rows(size, theta.dtype)
    y = lane_rows(size, np.uint8)
    zs, xs, ys = z.reshape(-1), x.reshape(-1), y.reshape(-1)
    codes_of = np.empty(LANES, np.int64)
    row_of = np.empty(LANES, np.int64)
    sample_of = np.empty(LANES, np.int64)
    key_of = np.empty(LANES, np.uint64)
    contexts = np.empty((LANES, context.shape[1]))
    buffer = np.empty(LANES, theta.dtype)
    moments = np.empty(LANES, theta.dtype)
    gaps = np.empty(LANES, theta.dtype)
    gap_moments = np.empty(LANES, theta.dtype)
    live = np.empty(LANES, theta.dtype)
    clipping = slopes.shape[0] > 0
    sums = lane_buffer(size * LANES, theta.dtype)
    slope_sums = lane_buffer(size * LANES if clipping else 0, theta.dtype)
    sums[:] = 0
    slope_sums[:] = 0
    group_sums = np.zeros(4)
    group_sums[LOWEST] = np.inf
    keep, targeted = codes.shape[0] > 0, target.shape[0] > 0
    scattered = ending_at - leading < num_samples
    scratch = np.empty((LANES, codes.shape[1]), np.uint8)
    zero, infinity = theta.dtype.type(0), theta.dtype.type(np.inf)
    offset = theta.dtype.type(table[0])
    slope = theta.dtype.type(table[1] - table[0])
    held = (
        z,
        s,
        x,
        y,
        zs,
        xs,
        ys,
        codes_of,
        row_of,
        sample_of,
        key_of,
        contexts,
        buffer,
        moments,
        gaps,
        gap_moments,
        live,
        sums,
        slope_sums,
        group_sums,
        scratch,
    )
    z = borrowed(z)
    s = borrowed(s)
    x = borrowed(x)
    y = borrowed(y)
    zs = borrowed(zs)
    xs = borrowed(xs)
    ys = borrowed(ys)
    codes_of = borrowed(codes_of)
    row_of = borrowed(row_of)
    sample_of = borrowed(sample_of)
    key_of = borrowed(key_of)
    contexts = borrowed(contexts)
    buffer = borrowed(buffer)
    moments = borrowed(moments)
    gaps = borrowed(gaps)
    gap_moments = borrowed(gap_moments)
    live = borrowed(live)
    sums = borrowed(sums)
    slope_sums = borrowed(slope_sums)
    group_sums = borrowed(group_sums)
    scratch = borrowed(scratch)
    item, sample, ending = start, leading, 0
    if together and start < stop:
        sample = leading + (start % groups) * group
        ending = min(sample + group, ending_at)
    previous = -1
    while item < stop:
        # Choose the lanes: the next samples of this group, or of the next rows.
        if together:
            row, count = item // groups, min(LANES, ending - sample)
            for lane in range(LANES):
                sample_of[lane] = sample + lane
            sample += count
            if row != previous:
                key_of[:] = row_key(keys[row, 0], keys[row, 1])
                row_of[:] = row
                for lane in range(LANES):
                    contexts[lane] = context[row]
                previous = row
        else:
            count = 0
            for lane in range(LANES):
                row_of[lane], sample_of[lane] = item, sample
                if item < stop:
                    count += 1
                    sample += 1
                    if sample == ending_at:
                        item, sample = item + 1, leading
                else:
                    row_of[lane] = stop - 1
                row = row_of[lane]
                key_of[lane] = row_key(keys[row, 0], keys[row, 1])
                contexts[lane] = context[row]
            row = row_of[0]
        for lane in range(LANES):
            live[lane] = 1 if lane < count else 0
        call_address(fill_noise, (key_of, sample_of, antithetic, z, s))
        if together:
            amplitude = fill(temperature[row])
        else:
            amplitude = gather(temperature, row_of, buffer)
        for j in range(size):
            at = j * LANES
            if together:
                middle = fill(theta[row, j])
            else:
                middle = gather(theta[:, j], row_of, buffer)
            store(xs, at, scaled(amplitude, load(zs, at), middle))
        call_void(block, (x, ints, reals, contexts, y, codes_of))
        alive = load(live, 0)
        moment, gap, gap_moment = fill(zero), fill(zero), fill(zero)
        for j in range(size):
            at = j * LANES
            if even:
                value = fmuladd(numbers(load(ys, at), zero), fill(slope), fill(offset))
            else:
                for lane in range(LANES):
                    buffer[lane] = table[y[j, lane]]
                value = load(buffer, 0)
            noise = load(zs, at)
            moment = fmuladd(value, noise, moment)
            if together:
                store(sums, at, fmuladd(value, alive, load(sums, at)))
            else:
                store(buffer, 0, value)
                for lane in range(count):
                    totals[row_of[lane], j] += buffer[lane]
            if targeted:
                if together:
                    goal = fill(target[row, j])
                else:
                    goal = gather(target[:, j], row_of, buffer)
                distance, score = subtract(value, goal), load(xs, at)
                if clipping:
                    none = fill(zero)
                    noise = where_less(score, none, noise, none)
                    slope_lanes = where_less(score, none, distance, none)
                    score = minimum(score, none)
                    if together:
                        added = fmuladd(slope_lanes, alive, load(slope_sums, at))
                        store(slope_sums, at, added)
                    else:
                        store(buffer, 0, slope_lanes)
                        for lane in range(count):
                            slopes[row_of[lane], j] += buffer[lane]
                gap = fmuladd(distance, score, gap)
                gap_moment = fmuladd(distance, noise, gap_moment)
        failed = 0
        for lane in range(LANES):
            failed |= codes_of[lane]
        if failed:
            for lane in range(count):
                slot = item if split else row_of[lane]
                if codes_of[lane] != OK and status[slot] == OK:
                    status[slot] = codes_of[lane]
        if keep and (together or not scattered):
            first = row * num_samples + sample_of[0]
            call_address(encode, (y, codes[first : first + count]))
        elif keep:
            call_address(encode, (y, scratch[:count]))
            for lane in range(count):
                codes[row_of[lane] * num_samples + sample_of[lane]] = scratch[lane]
        if together:
            group_sums[MOMENT] += total(fmuladd(moment, alive, fill(zero)))
            if targeted:
                group_sums[LOSS] += total(fmuladd(gap, alive, fill(zero)))
                group_sums[GAP_MOMENT] += total(fmuladd(gap_moment, alive, fill(zero)))
                lowest = least(where_less(fill(zero), alive, gap, fill(infinity)))
                group_sums[LOWEST] = min(group_sums[LOWEST], lowest)
            if sample == ending:
                slot = item if split else row
                for j in range(size):
                    totals[slot, j] += total(load(sums, j * LANES))
                    if clipping:
                        slopes[slot, j] += total(load(slope_sums, j * LANES))
                for column in (MOMENT, LOSS, GAP_MOMENT):
                    scalars[slot, column] += group_sums[column]
                    group_sums[column] = 0
                scalars[slot, LOWEST] = min(scalars[slot, LOWEST], group_sums[LOWEST])
                group_sums[LOWEST] = np.inf
                sums[:] = 0
                slope_sums[:] = 0
                item += 1
                sample = leading + (item % groups) * group
                ending = min(sample + group, ending_at)
            continue
        store(moments, 0, moment)
        store(gaps, 0, gap)
        store(gap_moments, 0, gap_moment)
        for lane in range(count):
            slot = row_of[lane]
            scalars[slot, MOMENT] += moments[lane]
            scalars[slot, LOSS] += gaps[lane]
            scalars[slot, GAP_MOMENT] += gap_moments[lane]
            if targeted:
                scalars[slot, LOWEST] = min(scalars[slot, LOWEST], gaps[lane])
    hold(held)
    return 0


FORWARD_LANES = Pass(
    forward_lanes, "i i i b t2 t1 k2 n1 f1 f2 b i i i b i b c2 t2 f1 b f2 f2 f2 n1 i i"
)
