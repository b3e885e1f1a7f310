"""Fused passes for the largest of the scores: solutions with a single 1.

As :mod:`softsolve.compiled.lane_passes`, with everything between the noise and the
sums in registers.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ARG001 (passes that take each other's place have one signature)

import numpy as np

from softsolve.compiled.lane_arithmetic import (
    add_where_equal,
    advance,
    count_equal,
    fmuladd,
    least,
    offsets,
    scaled,
    total,
    where_equal,
)
from softsolve.compiled.lanes import (
    LANES,
    fill,
    lane_buffer,
    lane_rows,
    load,
    maximum,
    store,
    where_less,
)
from softsolve.compiled.native import borrowed, call_address, hold
from softsolve.compiled.passes import (
    GAP_MOMENT,
    LOSS,
    LOWEST,
    MOMENT,
    Pass,
    _inlined,
    dot,
)
from softsolve.compiled.random import row_key

# Scores up to which it is quicker to go through all of them than from lane to lane.
FEW_SCORES = 32
# The place of a lane without a sample.
NOWHERE = np.uint32(0xFFFFFFFF)
# Numbers of a lane that are drawn at a time, where one sample has fewer: a call of the
# function that draws takes as long as drawing some ten numbers.
DRAWN_TOGETHER = 160


@_inlined
def blocks_together(size, group):
    """Return how many blocks of LANES samples to draw at a time."""
    return max(1, min(DRAWN_TOGETHER // size, (group + LANES - 1) // LANES))


@_inlined
def draw_blocks(fill_noise, key_of, sample_of, first, last, antithetic, z, s):
    """Draw the samples up to ``last``, or what there is room for; count the blocks."""
    room = key_of.shape[0] // LANES
    size = z.shape[0] // room
    blocks = min(room, (last - first + LANES - 1) // LANES)
    order = offsets(fill(np.uint64(0)))
    for block in range(blocks):
        store(sample_of, block * LANES, advance(order, first + block * LANES))
    lanes, rows = blocks * LANES, blocks * size
    lines = (key_of[:lanes], sample_of[:lanes], antithetic, z[:rows], s[:rows])
    call_address(fill_noise, lines)
    return blocks


@_inlined
def add_products(sums, at, weights, start, values, first, step, blocks):
    """Add the products of blocks of lanes to the lanes at a place in ``sums``."""
    total_of = load(sums, at)
    for block in range(blocks):
        weight = load(weights, start + block * LANES)
        total_of = fmuladd(weight, load(values, first + block * step), total_of)
    store(sums, at, total_of)


@_inlined
def add_where_won(sums, to, places, winner, values, size, blocks):
    """Add values, ``size`` rows a block, to a coordinate's sums where it won a lane."""
    place, step = np.uint32(winner), size * LANES
    whole = size - size % 8
    for j in range(0, whole, 8):
        at = j * LANES
        add_where_equal(sums, to + at, places, place, values, at, step, blocks, 8)
    at = whole * LANES
    if size & 4:
        add_where_equal(sums, to + at, places, place, values, at, step, blocks, 4)
        at += 4 * LANES
    if size & 2:
        add_where_equal(sums, to + at, places, place, values, at, step, blocks, 2)
        at += 2 * LANES
    if size & 1:
        add_where_equal(sums, to + at, places, place, values, at, step, blocks, 1)


def forward_position_lanes(
    fill_noise,
    scored,
    theta,
    temperature,
    keys,
    antithetic,
    num_samples,
    group,
    split,
    codes,
    target,
    totals,
    scalars,
    winners,
    start,
    stop,
):
    """Find the largest of the perturbed scores; at least LANES samples a row.

    With ``winners`` (slots, d, d), entry k also gets the sum of the noise's scores over
    the samples that coordinate k wins.
    """
    theta = borrowed(theta)
    temperature = borrowed(temperature)
    keys = borrowed(keys)
    codes = borrowed(codes)
    target = borrowed(target)
    totals = borrowed(totals)
    scalars = borrowed(scalars)
    size = theta.shape[1]
    groups = (num_samples + group - 1) // group
    together = blocks_together(size, group)
    z = lane_rows(together * size, theta.dtype)
    s = lane_rows(together * size, theta.dtype) if scored else z
    zs = z.reshape(-1)
    sample_of = np.empty(together * LANES, np.int64)
    key_of = np.empty(together * LANES, np.uint64)
    live = np.empty(LANES, theta.dtype)
    places = lane_buffer(together * LANES, np.uint32)
    counts = np.empty(size, np.int64)
    summing = winners.shape[0] > 0
    lane_sums = lane_buffer(size * size * LANES if summing else 0, theta.dtype)
    kept = codes.view(np.uint32)
    whole = kept.reshape(-1)
    keep, targeted = codes.shape[1] > 0, target.shape[0] > 0
    zero, one = theta.dtype.type(0), theta.dtype.type(1)
    infinity = theta.dtype.type(np.inf)
    none = fill(zero)
    ss = s.reshape(-1)
    held = (z, s, zs, ss, sample_of, key_of, live, places, counts, lane_sums)
    z = borrowed(z)
    s = borrowed(s)
    zs = borrowed(zs)
    ss = borrowed(ss)
    sample_of = borrowed(sample_of)
    key_of = borrowed(key_of)
    live = borrowed(live)
    places = borrowed(places)
    counts = borrowed(counts)
    lane_sums = borrowed(lane_sums)
    winners = borrowed(winners)
    for item in range(start, stop):
        row = item // groups
        slot = item if split else row
        key_of[:] = row_key(keys[row, 0], keys[row, 1])
        amplitude = fill(temperature[row])
        counts[:] = 0
        lane_sums[:] = 0
        moment, loss, gap_moment, lowest = 0.0, 0.0, 0.0, np.inf
        first = (item - row * groups) * group
        last = min(first + group, num_samples)
        for chunk in range(first, last, together * LANES):
            blocks = draw_blocks(
                fill_noise, key_of, sample_of, chunk, last, antithetic, z, s
            )
            for block in range(blocks):
                begin, at = chunk + block * LANES, block * size * LANES
                count = min(LANES, last - begin)
                alive = fill(one)
                if count < LANES:
                    for lane in range(LANES):
                        live[lane] = 1 if lane < count else 0
                    alive = load(live, 0)
                best_noise, place = load(zs, at), fill(np.uint32(0))
                best = scaled(amplitude, best_noise, fill(theta[row, 0]))
                for j in range(1, size):
                    noise = load(zs, at + j * LANES)
                    score = scaled(amplitude, noise, fill(theta[row, j]))
                    place = where_less(best, score, fill(np.uint32(j)), place)
                    best_noise = where_less(best, score, noise, best_noise)
                    best = maximum(best, score)
                there = block * LANES
                store(places, there, place)
                if size <= FEW_SCORES:
                    mask = (1 << count) - 1
                    for j in range(size):
                        counts[j] += count_equal(place, fill(np.uint32(j)), mask)
                else:
                    for lane in range(there, there + count):
                        counts[places[lane]] += 1
                if keep and count == LANES:
                    store(whole, row * num_samples + begin, place)
                elif keep:
                    for lane in range(count):
                        kept[row, begin + lane, 0] = places[there + lane]
                for lane in range(count, LANES):
                    places[there + lane] = NOWHERE
                moment += total(fmuladd(best_noise, alive, none))
                if targeted:
                    for j in range(size):
                        noise, goal = load(zs, at + j * LANES), fill(-target[row, j])
                        score = scaled(amplitude, noise, fill(theta[row, j]))
                        best = fmuladd(goal, score, best)
                        best_noise = fmuladd(goal, noise, best_noise)
                    loss += total(fmuladd(best, alive, none))
                    gap_moment += total(fmuladd(best_noise, alive, none))
                    least_gap = least(where_less(none, alive, best, fill(infinity)))
                    lowest = min(lowest, least_gap)
            if summing:
                for k in range(size):
                    to = k * size * LANES
                    add_where_won(lane_sums, to, places, k, ss, size, blocks)
        for j in range(size):
            totals[slot, j] += counts[j]
        if summing:
            for k in range(size):
                for j in range(size):
                    at = (k * size + j) * LANES
                    winners[slot, k, j] += total(load(lane_sums, at))
        scalars[slot, MOMENT] += moment
        scalars[slot, LOSS] += loss
        scalars[slot, GAP_MOMENT] += gap_moment
        scalars[slot, LOWEST] = min(scalars[slot, LOWEST], lowest)
    hold(held)
    return 0


FORWARD_POSITION_LANES = Pass(
    forward_position_lanes, "i b t2 t1 k2 b i i b c3 t2 f2 f2 f3 i i"
)


def vjp_position_lanes(
    fill_noise,
    decode,
    scored,
    codes,
    table,
    keys,
    antithetic,
    group,
    split,
    center,
    scale,
    mixing,
    g,
    totals,
    sides,
    start,
    stop,
):
    """Do what ``vjp_rows`` does, for solutions with a single 1, kept by position."""
    siding = sides.shape[0] > 0
    codes = borrowed(codes)
    keys = borrowed(keys)
    center = borrowed(center)
    g = borrowed(g)
    totals = borrowed(totals)
    sides = borrowed(sides)
    num_samples = codes.shape[1]
    cotangents, size = g.shape[1:]
    groups = (num_samples + group - 1) // group
    together = blocks_together(size, group)
    z = lane_rows(together * size, g.dtype)
    s = lane_rows(together * size, g.dtype) if scored else z
    zs, ss = z.reshape(-1), s.reshape(-1)
    sample_of = np.empty(together * LANES, np.int64)
    key_of = np.empty(together * LANES, np.uint64)
    width = together * LANES
    weights = lane_buffer(cotangents * width, g.dtype).reshape((-1, width))
    radials = np.empty(width, g.dtype)
    flat = weights.reshape(-1)
    gains = np.empty((cotangents, size), g.dtype)
    kept = codes.view(np.uint32)
    places = kept.reshape(-1)
    sums = lane_buffer(cotangents * size * LANES, g.dtype)
    side_sums = np.empty(cotangents * LANES, g.dtype)
    zero = g.dtype.type(0)
    held = (z, s, zs, ss, sample_of, key_of, weights, flat, gains, sums, side_sums)
    more = (radials,)
    z = borrowed(z)
    s = borrowed(s)
    zs = borrowed(zs)
    ss = borrowed(ss)
    sample_of = borrowed(sample_of)
    key_of = borrowed(key_of)
    weights = borrowed(weights)
    flat = borrowed(flat)
    gains = borrowed(gains)
    sums = borrowed(sums)
    side_sums = borrowed(side_sums)
    radials = borrowed(radials)
    for item in range(start, stop):
        row = item // groups
        slot = item if split else row
        key_of[:] = row_key(keys[row, 0], keys[row, 1])
        for k in range(cotangents):
            middle = zero
            if center.shape[0]:
                middle = dot(center[row], g[row, k])
            for j in range(size):
                gains[k, j] = g[row, k, j] - middle
        sums[:] = 0
        side_sums[:] = 0
        first = (item - row * groups) * group
        last = min(first + group, num_samples)
        for chunk in range(first, last, width):
            blocks = draw_blocks(
                fill_noise, key_of, sample_of, chunk, last, antithetic, z, s
            )
            if siding:
                for block in range(blocks):
                    radial = fill(-g.dtype.type(size))
                    for j in range(size):
                        at = (block * size + j) * LANES
                        radial = fmuladd(load(zs, at), load(ss, at), radial)
                    store(radials, block * LANES, radial)
            count = min(width, last - chunk)
            for k in range(cotangents):
                for lane in range(count, blocks * LANES):
                    weights[k, lane] = 0
                whole = count - count % LANES if size <= FEW_SCORES else 0
                for start_lane in range(0, whole, LANES):
                    place = load(places, row * num_samples + chunk + start_lane)
                    weight = fill(zero)
                    for j in range(size):
                        gain = fill(gains[k, j])
                        weight = where_equal(place, fill(np.uint32(j)), gain, weight)
                    store(flat, k * width + start_lane, weight)
                for lane in range(whole, count):
                    weights[k, lane] = gains[k, kept[row, chunk + lane, 0]]
                if mixing != 0:
                    for lane in range(0, count, 2):
                        both = mixing * (weights[k, lane] + weights[k, lane + 1])
                        weights[k, lane] += both
                        weights[k, lane + 1] += both
                to, of_k, step = k * LANES, k * width, size * LANES
                if siding:
                    add_products(side_sums, to, flat, of_k, radials, 0, LANES, blocks)
                for j in range(size):
                    to = (k * size + j) * LANES
                    add_products(sums, to, flat, of_k, ss, j * LANES, step, blocks)
        for k in range(cotangents):
            if siding:
                sides[slot, k] += scale * total(load(side_sums, k * LANES))
            for j in range(size):
                at = (k * size + j) * LANES
                totals[slot, k, j] += scale * total(load(sums, at))
    hold((held, more))
    return 0


VJP_POSITION_LANES = Pass(
    vjp_position_lanes, "i i b c3 f1 k2 b i b t2 r r t3 f3 f2 i i"
)


def vjp_winners(winners, center, factors, g, pulled):
    """Set ``pulled`` to the products of g - ⟨center, g⟩ with the sums of winners."""
    for row in range(g.shape[0]):
        for k in range(g.shape[1]):
            middle = dot(center[row], g[row, k]) if center.shape[0] else 0.0
            for j in range(g.shape[2]):
                total = 0.0
                for winner in range(g.shape[2]):
                    gain = g[row, k, winner] - middle
                    total += gain * winners[row, winner, j]
                pulled[row, k, j] = factors[row] * total
    return 0


VJP_WINNERS = Pass(vjp_winners, "f3 t2 f1 t3 t3")
