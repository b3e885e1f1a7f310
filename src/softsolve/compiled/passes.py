r"""Fused passes: noise, solve, reduce, one block of samples at a time.

A row's samples are cut into groups whose size depends on their number alone; each
group is reduced in float64 and the groups are added in order, whether one thread does
all of a row or several share it. So results have the same bits for any number of
threads and any split of the rows.

The passes below draw samples as rows (samples, d). With z the noise, s its score and
c its curvature at z, θ + εz the perturbed scores and y their solution:

.. math::

    D_m(v, e) &= \langle s_m, v \rangle + (\langle z_m, s_m \rangle - d)\, e \\
    Q_m(p, q) &= D_p D_q - \langle u_p, c\, u_q \rangle - e_q \langle s, u_p \rangle
                 - e_p \langle s, u_q \rangle + d\, e_p e_q,
    \qquad u = v + e z

are ε and ε² times what turns the log-density of θ + εz into its first and second
derivatives along directions of (θ, ε).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from typing import Any

import numba
import numpy as np
from numba import types

from softsolve.compiled.kernel import OK, Kernel
from softsolve.compiled.native import borrowed, call_address, hold
from softsolve.compiled.random import row_key

# Numbers in a block of samples: small enough for the first-level cache.
BLOCK_NUMBERS = 2048

# Columns of the scalars that a forward pass reduces.
MOMENT, LOSS, GAP_MOMENT, LOWEST = range(4)

_inlined = numba.njit(nogil=True, error_model="numpy")
# Sums of many terms: the order is the compiler's, and the same on every call.
_summing = numba.njit(
    nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"}
)


@_summing
def dot(a, b):
    """Return the inner product of two rows."""
    total = a.dtype.type(0)
    for j in range(a.size):
        total += a[j] * b[j]
    return total


@_summing
def centred_dot(y, center, g):
    """Return the inner product of y - center and g."""
    total = y.dtype.type(0)
    for j in range(y.size):
        total += (y[j] - center[j]) * g[j]
    return total


# Loops over the coordinates are functions of their own: in the midst of a pass the
# compiler does not see that the arrays are different ones.
@_inlined
def perturb(x, theta, epsilon, z):
    """Set x to θ + εz."""
    for j in range(x.size):
        x[j] = theta[j] + epsilon * z[j]


@_inlined
def clip(x, z, clipped):
    """Set x to min(x, 0), and ``clipped`` to z where that keeps x as it is, else 0."""
    for j in range(x.size):
        below = x[j] < 0
        clipped[j] = z[j] if below else 0
        x[j] = x[j] if below else 0


@_inlined
def add_slopes(sums, y, target, x):
    """Add y - target to the sums where x is negative."""
    for j in range(x.size):
        sums[j] += y[j] - target[j] if x[j] < 0 else 0


@_inlined
def add_weighted(sums, weight, values):
    """Add weighted values to sums in float64."""
    for j in range(values.size):
        sums[j] += weight * values[j]


@_inlined
def add_to(total, partial):
    """Add a group's sums to a row's."""
    for k in range(partial.shape[0]):
        for j in range(partial.shape[1]):
            total[k, j] += partial[k, j]


@_inlined
def block_samples(size, group):
    """Return how many samples make a block: an even number, at most a group."""
    return max(2, min(group, BLOCK_NUMBERS // max(size, 1)) & ~1)


@_inlined
def mix(weights, count, scale, mixing):
    """Turn weights on y - center into weights on y - baseline, in place.

    With ``mixing`` μ, a sample's baseline is center - μ·(y + y' - 2·center), where y'
    is its mirror image: for the mean as center and μ = 1/(2(P - 1)) the mean of the
    P - 1 other pairs.
    """
    for k in range(weights.shape[1]):
        if mixing != 0:
            for sample in range(0, count, 2):
                both = mixing * (weights[sample, k] + weights[sample + 1, k])
                weights[sample, k] += both
                weights[sample + 1, k] += both
        for sample in range(count):
            weights[sample, k] *= scale


def forward_rows(
    fill,
    kernel,
    encode,
    scored,
    theta,
    temperature,
    keys,
    ints,
    reals,
    context,
    state_size,
    antithetic,
    num_samples,
    group,
    split,
    codes,
    target,
    table,
    totals,
    slopes,
    scalars,
    status,
    start,
    stop,
):
    """Solve and reduce groups of samples with an instance kernel."""
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
    groups = (num_samples + group - 1) // group
    block = block_samples(size, group)
    z = np.empty((block, size), theta.dtype)
    s = np.empty_like(z) if scored else z
    y = np.empty_like(z)
    x = np.empty(size, theta.dtype)
    partial = np.empty((1, size))
    partial_slopes = np.empty((1, size))
    state = np.zeros(state_size)
    keep, targeted = codes.shape[1] > 0, target.shape[0] > 0
    clipping = slopes.shape[0] > 0
    clipped = np.empty_like(x)
    primed = -1
    held = (z, s, y, x, partial, partial_slopes, state, clipped)
    z = borrowed(z)
    s = borrowed(s)
    y = borrowed(y)
    x = borrowed(x)
    partial = borrowed(partial)
    partial_slopes = borrowed(partial_slopes)
    state = borrowed(state)
    clipped = borrowed(clipped)
    for item in range(start, stop):
        row = item // groups
        slot = item if split else row
        key = row_key(keys[row, 0], keys[row, 1])
        epsilon = temperature[row]
        if state_size and primed != row:
            state[:] = 0
            call_address(kernel, (theta[row], ints, reals, context[row], state, y[0]))
            primed = row
        partial[:] = 0
        partial_slopes[:] = 0
        moment, loss, gap_moment, lowest = 0.0, 0.0, 0.0, np.inf
        first = (item - row * groups) * group
        last = min(first + group, num_samples)
        for begin in range(first, last, block):
            count = min(block, last - begin)
            call_address(fill, (key, begin, antithetic, z[:count], s[:count]))
            for sample in range(count):
                noise, solution = z[sample], y[sample]
                perturb(x, theta[row], epsilon, noise)
                code = call_address(
                    kernel, (x, ints, reals, context[row], state, solution)
                )
                if code != OK and status[slot] == OK:
                    status[slot] = code
                add_weighted(partial[0], 1.0, solution)
                moment += dot(solution, noise)
                if clipping:
                    clip(x, noise, clipped)
                    add_slopes(partial_slopes[0], solution, target[row], x)
                    noise = clipped
                if targeted:
                    gap = centred_dot(solution, target[row], x)
                    loss += gap
                    lowest = min(lowest, gap)
                    gap_moment += centred_dot(solution, target[row], noise)
            if keep:
                kept = codes[row, begin : begin + count]
                call_address(encode, (y[:count], table, kept))
        add_to(totals[slot : slot + 1], partial)
        if clipping:
            add_to(slopes[slot : slot + 1], partial_slopes)
        scalars[slot, MOMENT] += moment
        scalars[slot, LOSS] += loss
        scalars[slot, GAP_MOMENT] += gap_moment
        scalars[slot, LOWEST] = min(scalars[slot, LOWEST], lowest)
    hold(held)
    return 0


def vjp_rows(
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
    g,
    totals,
    sides,
    start,
    stop,
):
    r"""Sum :math:`a_m s_m` and :math:`a_m (\langle z_m, s_m \rangle - d)`.

    The second only if ``sides`` has rows.
    """
    codes = borrowed(codes)
    table = borrowed(table)
    keys = borrowed(keys)
    center = borrowed(center)
    g = borrowed(g)
    totals = borrowed(totals)
    sides = borrowed(sides)
    num_samples = codes.shape[1]
    cotangents, size = g.shape[1:]
    groups = (num_samples + group - 1) // group
    block = block_samples(size, group)
    z = np.empty((block, size), g.dtype)
    s = np.empty_like(z) if scored else z
    y = np.empty_like(z)
    zero = np.zeros(size, g.dtype)
    weights = np.empty((block, cotangents))
    partial = np.empty((cotangents, size))
    partial_sides = np.empty((1, cotangents))
    siding = sides.shape[0] > 0
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
                for k in range(cotangents):
                    weights[sample, k] = centred_dot(y[sample], middle, g[row, k])
            mix(weights, count, scale, mixing)
            for sample in range(count):
                score = s[sample]
                side = dot(z[sample], score) - size if siding else 0.0
                for k in range(cotangents):
                    weight = weights[sample, k]
                    partial_sides[0, k] += weight * side
                    add_weighted(partial[k], weight, score)
        add_to(totals[slot], partial)
        if siding:
            add_to(sides[slot : slot + 1], partial_sides)
    hold(held)
    return 0


def jvp_rows(
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
    v,
    e,
    totals,
    start,
    stop,
):
    r"""Sum :math:`(y_m - b_m) D_m(v, e)`."""
    codes = borrowed(codes)
    table = borrowed(table)
    keys = borrowed(keys)
    center = borrowed(center)
    v = borrowed(v)
    e = borrowed(e)
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
                side = dot(z[sample], s[sample]) - size
                for k in range(tangents):
                    weights[sample, k] = dot(s[sample], v[row, k]) + side * e[row, k]
            mix(weights, count, scale, mixing)
            add_solutions(y, middle, weights, count, partial)
        add_to(totals[slot], partial)
    hold(held)
    return 0


@_inlined
def add_solutions(y, middle, weights, count, partial):
    """Add the weighted solutions of a block, less the center, to its sums."""
    for sample in range(count):
        solution = y[sample]
        for k in range(weights.shape[1]):
            weight, sums = weights[sample, k], partial[k]
            for j in range(solution.size):
                sums[j] += weight * (solution[j] - middle[j])


def _layout(spec: str) -> Any:
    """Return a signature from letters: b, i, r for bool, int64, float64; arrays of
    bytes (c), int32 (k), int64 (n), float64 (f) and the scores' type (t) with their
    number of axes.
    """  # noqa: D205

    def signature(dtype: np.dtype[Any]) -> Any:
        scalars = {"b": types.boolean, "i": types.int64, "r": types.float64}
        numbers = {
            "c": types.uint8,
            "k": types.int32,
            "n": types.int64,
            "f": types.float64,
            "t": numba.from_dtype(np.dtype(dtype)),
        }
        arguments = [
            scalars[word]
            if word in scalars
            else types.Array(numbers[word[0]], int(word[1]), "C")
            for word in spec.split()
        ]
        return types.int64(*arguments)

    return signature


class Pass(Kernel):
    """A compiled pass with its own signature."""

    def __init__(self, function: Any, spec: str) -> None:
        super().__init__(function)
        self.signature = _layout(spec)


SAMPLES = "c3 f1 k2 b i b t2 r r"

FORWARD_ROWS = Pass(
    forward_rows, "i i i b t2 t1 k2 n1 f1 f2 i b i i b c3 t2 f1 f2 f2 f2 n1 i i"
)
VJP_ROWS = Pass(vjp_rows, f"i i b {SAMPLES} t3 f3 f2 i i")
JVP_ROWS = Pass(jvp_rows, f"i i b {SAMPLES} t3 t2 f3 i i")
