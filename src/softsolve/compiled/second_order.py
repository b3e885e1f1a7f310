"""Fused passes for second derivatives; see :mod:`softsolve.compiled.passes`."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import numpy as np

from softsolve.compiled.native import borrowed, call_address, hold
from softsolve.compiled.passes import (
    SAMPLES,
    Pass,
    _inlined,
    _summing,
    add_solutions,
    add_to,
    block_samples,
    centred_dot,
    dot,
    mix,
)
from softsolve.compiled.random import row_key


@_summing
def curved_dot(curvature, s, z, v, e, w, f):
    """Return the inner product of w + f·z and the curvature times v + e·z."""
    total = s.dtype.type(0)
    for j in range(s.size):
        c = curvature[0] + s[j] * (curvature[1] + s[j] * curvature[2])
        total += c * (v[j] + e * z[j]) * (w[j] + f * z[j])
    return total


@_summing
def curved_moment(curvature, s, z, v, e):
    """Return the inner product of z and the curvature times v + e·z."""
    total = s.dtype.type(0)
    for j in range(s.size):
        c = curvature[0] + s[j] * (curvature[1] + s[j] * curvature[2])
        total += c * (v[j] + e * z[j]) * z[j]
    return total


@_inlined
def add_curved(sums, weight, along, curvature, s, z, v, e):
    """Add weight·(along·s - c·(v + e·z)), c the curvature, to the sums."""
    for j in range(s.size):
        c = curvature[0] + s[j] * (curvature[1] + s[j] * curvature[2])
        sums[j] += weight * (along * s[j] - c * (v[j] + e * z[j]))


def hvp_rows(
    fill,
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
    curvature,
    g,
    v,
    e,
    totals,
    sides,
    start,
    stop,
):
    r"""Sum the gradient of :math:`a_m Q_m(p, (v, e))` in the direction p."""
    codes = borrowed(codes)
    table = borrowed(table)
    keys = borrowed(keys)
    center = borrowed(center)
    curvature = borrowed(curvature)
    g = borrowed(g)
    v = borrowed(v)
    e = borrowed(e)
    totals = borrowed(totals)
    sides = borrowed(sides)
    num_samples = codes.shape[1]
    tangents, size = v.shape[1:]
    groups = (num_samples + group - 1) // group
    block = block_samples(size, group)
    z = np.empty((block, size), v.dtype)
    s = np.empty_like(z) if scored else z
    y = np.empty_like(z)
    zero = np.zeros(size, v.dtype)
    weights = np.empty((block, tangents))
    partial = np.empty((tangents, size))
    partial_sides = np.empty((1, tangents))
    held = (z, s, y, zero, weights, partial, partial_sides)
    z = borrowed(z)
    s = borrowed(s)
    y = borrowed(y)
    zero = borrowed(zero)
    weights = borrowed(weights)
    partial = borrowed(partial)
    partial_sides = borrowed(partial_sides)
    for item in range(start, stop):
        row = item // groups
        slot = item if split else row
        key = row_key(keys[row, 0], keys[row, 1])
        middle = center[row] if center.shape[0] else zero
        partial[:] = 0
        partial_sides[:] = 0
        first = (item - row * groups) * group
        last = min(first + group, num_samples)
        for begin in range(first, last, block):
            count = min(block, last - begin)
            call_address(fill, (key, begin, antithetic, z[:count], s[:count]))
            call_address(decode, (codes[row, begin : begin + count], table, y[:count]))
            for sample in range(count):
                for k in range(tangents):
                    weights[sample, k] = centred_dot(y[sample], middle, g[row, k])
            mix(weights, count, scale, mixing)
            for sample in range(count):
                noise, score = z[sample], s[sample]
                radial = dot(noise, score)
                for k in range(tangents):
                    weight, slope = weights[sample, k], e[row, k]
                    forward = dot(score, v[row, k])
                    along = forward + slope * (radial - size)
                    partial_sides[0, k] += weight * (
                        (radial - size) * along
                        - curved_moment(curvature, score, noise, v[row, k], slope)
                        - slope * radial
                        - (forward + slope * radial)
                        + size * slope
                    )
                    add_curved(
                        partial[k],
                        weight,
                        along - slope,
                        curvature,
                        score,
                        noise,
                        v[row, k],
                        slope,
                    )
        add_to(totals[slot], partial)
        add_to(sides[slot : slot + 1], partial_sides)
    hold(held)
    return 0


def jjvp_rows(
    fill,
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
    curvature,
    v,
    e,
    w,
    f,
    totals,
    start,
    stop,
):
    r"""Sum :math:`(y_m - b_m) Q_m((w, f), (v, e))`."""
    codes = borrowed(codes)
    table = borrowed(table)
    keys = borrowed(keys)
    center = borrowed(center)
    curvature = borrowed(curvature)
    v = borrowed(v)
    e = borrowed(e)
    w = borrowed(w)
    f = borrowed(f)
    totals = borrowed(totals)
    num_samples = codes.shape[1]
    tangents, size = v.shape[1:]
    groups = (num_samples + group - 1) // group
    block = block_samples(size, group)
    z = np.empty((block, size), v.dtype)
    s = np.empty_like(z) if scored else z
    y = np.empty_like(z)
    zero = np.zeros(size, v.dtype)
    weights = np.empty((block, tangents))
    partial = np.empty((tangents, size))
    held = (z, s, y, zero, weights, partial)
    z = borrowed(z)
    s = borrowed(s)
    y = borrowed(y)
    zero = borrowed(zero)
    weights = borrowed(weights)
    partial = borrowed(partial)
    for item in range(start, stop):
        row = item // groups
        slot = item if split else row
        key = row_key(keys[row, 0], keys[row, 1])
        middle = center[row] if center.shape[0] else zero
        partial[:] = 0
        first = (item - row * groups) * group
        last = min(first + group, num_samples)
        for begin in range(first, last, block):
            count = min(block, last - begin)
            call_address(fill, (key, begin, antithetic, z[:count], s[:count]))
            call_address(decode, (codes[row, begin : begin + count], table, y[:count]))
            for sample in range(count):
                noise, score = z[sample], s[sample]
                radial = dot(noise, score)
                for k in range(tangents):
                    slope, other_slope = e[row, k], f[row, k]
                    forward = dot(score, v[row, k]) + slope * radial
                    other = dot(score, w[row, k]) + other_slope * radial
                    weights[sample, k] = (
                        (forward - size * slope) * (other - size * other_slope)
                        - curved_dot(
                            curvature,
                            score,
                            noise,
                            v[row, k],
                            slope,
                            w[row, k],
                            other_slope,
                        )
                        - slope * other
                        - other_slope * forward
                        + size * slope * other_slope
                    )
            mix(weights, count, scale, mixing)
            add_solutions(y, middle, weights, count, partial)
        add_to(totals[slot], partial)
    hold(held)
    return 0


HVP_ROWS = Pass(hvp_rows, f"i i b {SAMPLES} t1 t3 t3 t2 f3 f2 i i")
JJVP_ROWS = Pass(jjvp_rows, f"i i b {SAMPLES} t1 t3 t2 t3 t2 f3 i i")
