"""Logarithm, sine and cosine of random words, on vectors.

Compilers do not vectorise calls of a mathematics library; these are polynomials. Every
step rounds in the same way wherever it is inlined, so that the same draw has the same
bits in every pass. Errors are within two units in the last place.
"""

import math
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from softsolve.compiled.hashing import constant

# Polynomials of Cephes (single precision) and FreeBSD's msun (double precision), the
# highest power first. That of the logarithm in single precision is our own, of least
# relative error (3e-8) from √½ to √2: two powers fewer.
_LOG_SINGLE = (
    *(0.08700430393218994, -0.14267486333847046, 0.14914768934249878),
    *(-0.1657758504152298, 0.19963063299655914, -0.2500133812427521),
    0.3333390951156616,
)
_LOG_DOUBLE = (
    *(1.479819860511658591e-1, 1.531383769920937332e-1, 1.818357216161805012e-1),
    *(2.222219843214978396e-1, 2.857142874366239149e-1, 3.999999999940941908e-1),
    6.666666666666735130e-1,
)
_SINE_SINGLE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_SINE_DOUBLE = (
    *(1.58969099521155010221e-10, -2.50507602534068634195e-8),
    *(2.75573137070700676789e-6, -1.98412698298579493134e-4),
    *(8.33333333332248946124e-3, -1.66666666666666324348e-1),
)
_COSINE_SINGLE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_COSINE_DOUBLE = (
    *(-1.13596475577881948265e-11, 2.08757232129817482790e-9),
    *(-2.75573143513906633035e-7, 2.48015872894767294178e-5),
    *(-1.38888888888741095749e-3, 4.16666666666666019037e-2),
)


LOG_2_SINGLE = 0.693147182464599609375


class Emitter:
    """Emits arithmetic on vectors of words and of floats of their size.

    Parameters
    ----------
    builder
        LLVM's, at the place where code is to go.
    word
        The LLVM type of a vector of words, of 32 or 64 bits.
    """

    def __init__(self, builder: Any, word: Any) -> None:
        self.builder = builder
        self.word = word
        self.width = word.element.width
        self.single = self.width == 32
        element = ir.FloatType() if self.single else ir.DoubleType()
        self.kind = ir.VectorType(element, word.count)

    def real(self, value: float) -> Any:
        """Return a float constant."""
        return constant(self.kind, value)

    def whole(self, value: int) -> Any:
        """Return a word constant."""
        return constant(self.word, value)

    def _call(self, name: str, arguments: list[Any]) -> Any:
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            self.builder.module,
            ir.FunctionType(self.kind, [self.kind] * len(arguments)),
            f"llvm.{name}.v{self.word.count}f{self.width}",
        )
        return self.builder.call(function, arguments)

    def fmuladd(self, a: Any, b: Any, c: Any) -> Any:
        """Return a·b + c in one rounding where the CPU can."""
        return self._call("fmuladd", [a, b, c])

    def square_root(self, x: Any) -> Any:
        """Return the square root."""
        return self._call("sqrt", [x])

    def polynomial(self, x: Any, coefficients: tuple[float, ...]) -> Any:
        """Return a polynomial by Horner's scheme."""
        value = self.real(coefficients[0])
        for coefficient in coefficients[1:]:
            value = self.fmuladd(value, x, self.real(coefficient))
        return value

    def unit(self, word: Any) -> Any:
        """Return u = (word + ½)·2⁻ᵇ, below 1 but where rounding takes it there."""
        scale = 2.0**-self.width
        x = self.builder.uitofp(word, self.kind)
        return self.fmuladd(x, self.real(scale), self.real(scale / 2))

    def split(self, x: Any) -> tuple[Any, Any]:
        """Split x = m·2^e > 0, m from √½ to √2, into e as a whole number and m."""
        low, width = (0x3F3504F3, 23) if self.single else (0x3FE6A09E667F3BCD, 52)
        builder, shift = self.builder, self.whole(width)
        bits = builder.bitcast(x, self.word)
        exponent = builder.ashr(builder.sub(bits, self.whole(low)), shift)
        mantissa = builder.sub(bits, builder.shl(exponent, shift))
        return exponent, builder.bitcast(mantissa, self.kind)

    def log(self, exponent: Any, f: Any) -> Any:
        """Return log((1 + f)·2^exponent)."""
        builder = self.builder
        e = builder.sitofp(exponent, self.kind)
        square = builder.fmul(f, f)
        if self.single:
            tail = self.polynomial(f, _LOG_SINGLE)
            tail = builder.fmul(builder.fmul(tail, f), square)
            tail = self.fmuladd(square, self.real(-0.5), tail)
            # Rounded to single precision, log 2 is right to 8 digits: one term will do.
            return self.fmuladd(e, self.real(LOG_2_SINGLE), builder.fadd(f, tail))
        half_square = builder.fmul(square, self.real(0.5))
        s = builder.fdiv(f, builder.fadd(f, self.real(2.0)))
        z = builder.fmul(s, s)
        series = self.fmuladd(z, self.polynomial(z, _LOG_DOUBLE), half_square)
        low = builder.fmul(e, self.real(1.90821492927058770002e-10))
        tail = builder.fsub(half_square, self.fmuladd(s, series, low))
        high = self.real(6.93147180369123816490e-1)
        return self.fmuladd(e, high, builder.fsub(f, tail))

    def negative_log_unit(self, word: Any) -> Any:
        """Return -log u of :meth:`unit`, relatively precise at both ends."""
        builder = self.builder
        exponent, mantissa = self.split(self.unit(word))
        # Near 1 the digits are in the distance from 1: take it from the word.
        from_one = builder.fneg(self.unit(builder.not_(word)))
        near_one = builder.icmp_signed("==", exponent, self.whole(0))
        beyond = builder.fsub(mantissa, self.real(1.0))
        f = builder.select(near_one, from_one, beyond)
        return builder.fneg(self.log(exponent, f))

    def negative_log(self, x: Any) -> Any:
        """Return -log x for normal positive numbers."""
        exponent, mantissa = self.split(x)
        f = self.builder.fsub(mantissa, self.real(1.0))
        return self.builder.fneg(self.log(exponent, f))

    def point_on_circle(self, word: Any) -> tuple[Any, Any]:
        """Return a point on the unit circle: random words give it uniformly.

        Two bits of the word choose a quarter of the circle, the others the angle from
        -π/4 to π/4 within it.
        """
        builder, width = self.builder, self.width
        x = builder.sitofp(builder.shl(word, self.whole(2)), self.kind)
        x = builder.fmul(x, self.real(math.pi / 2 * 2.0**-width))
        z = builder.fmul(x, x)
        sine = self.polynomial(z, _SINE_SINGLE if self.single else _SINE_DOUBLE)
        sine = self.fmuladd(builder.fmul(sine, z), x, x)
        cosine = self.polynomial(z, _COSINE_SINGLE if self.single else _COSINE_DOUBLE)
        cosine = self.fmuladd(builder.fmul(cosine, z), z, self.real(1.0))
        cosine = self.fmuladd(z, self.real(-0.5), cosine)
        chosen = builder.and_(word, self.whole(1 << (width - 2)))
        swapped = builder.icmp_unsigned("!=", chosen, self.whole(0))
        return (
            self.with_sign_of(builder.select(swapped, sine, cosine), word),
            self.with_sign_of(builder.select(swapped, cosine, sine), word),
        )

    def with_sign_of(self, x: Any, word: Any) -> Any:
        """Return -x where the top bit of the word is set, else x."""
        builder = self.builder
        sign = builder.and_(word, self.whole(1 << (self.width - 1)))
        bits = builder.xor(builder.bitcast(x, self.word), sign)
        return builder.bitcast(bits, self.kind)
