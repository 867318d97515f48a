"""The family's public names, for type checkers and editors; op_stubs.py writes them."""

from gtensor.engine.handle.tensor import Operand, Tensor
from gtensor.ops.elementwise.arithmetic import pow as pow
from gtensor.ops.elementwise.complex_parts import imag as imag
from gtensor.ops.elementwise.rounding import round as round
from gtensor.ops.elementwise.selection import clip as clip
from gtensor.ops.elementwise.selection import where as where

def abs(x: Operand, /) -> Tensor:
    """|x|, elementwise; the gradient at 0 is 0."""

def acos(x: Operand, /) -> Tensor:
    """Inverse cosine, elementwise: angles in [0, pi]."""

def acosh(x: Operand, /) -> Tensor:
    """Inverse hyperbolic cosine, elementwise."""

def add(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 + x2, elementwise with broadcasting."""

def asin(x: Operand, /) -> Tensor:
    """Inverse sine, elementwise: angles in [-pi / 2, pi / 2]."""

def asinh(x: Operand, /) -> Tensor:
    """Inverse hyperbolic sine, elementwise."""

def atan(x: Operand, /) -> Tensor:
    """Inverse tangent, elementwise: angles in [-pi / 2, pi / 2]."""

def atan2(x1: Operand, x2: Operand, /) -> Tensor:
    """The angle of the point (x2, x1), elementwise with broadcasting: in [-pi, pi]."""

def atanh(x: Operand, /) -> Tensor:
    """Inverse hyperbolic tangent, elementwise."""

def bitwise_and(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits set in x1 and in x2, elementwise with broadcasting."""

def bitwise_invert(x: Operand, /) -> Tensor:
    """The bits not set in x, elementwise."""

def bitwise_left_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 times 2 ** x2, for integers, elementwise with broadcasting."""

def bitwise_or(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits set in x1 or in x2, elementwise with broadcasting."""

def bitwise_right_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 divided by 2 ** x2 and rounded down, for integers, elementwise with broadcasting."""

def bitwise_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits in which x1 and x2 differ, elementwise with broadcasting."""

def ceil(x: Operand, /) -> Tensor:
    """The smallest whole number from x on; integers as they are. Its gradient is 0."""

def conj(x: Operand, /) -> Tensor:
    """The complex conjugate, elementwise; real values as they are."""

def copysign(x1: Operand, x2: Operand, /) -> Tensor:
    """|x1| with the sign of x2, elementwise with broadcasting."""

def cos(x: Operand, /) -> Tensor:
    """Cosine, elementwise."""

def cosh(x: Operand, /) -> Tensor:
    """Hyperbolic cosine, elementwise."""

def divide(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 / x2, elementwise with broadcasting; integers become the default dtype first."""

def equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 and x2 are equal; NaN equals nothing, elementwise with broadcasting."""

def exp(x: Operand, /) -> Tensor:
    """e ** x, elementwise."""

def expm1(x: Operand, /) -> Tensor:
    """e ** x - 1, elementwise, exact for small x."""

def floor(x: Operand, /) -> Tensor:
    """The largest whole number up to x; integers as they are. Its gradient is 0."""

def floor_divide(x1: Operand, x2: Operand, /) -> Tensor:
    """The largest whole number up to x1 / x2, elementwise with broadcasting. Its gradient is 0."""

def greater(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 > x2, elementwise with broadcasting."""

def greater_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 >= x2, elementwise with broadcasting."""

def hypot(x1: Operand, x2: Operand, /) -> Tensor:
    """sqrt(x1 ** 2 + x2 ** 2), elementwise with broadcasting, without overflow."""

def isfinite(x: Operand, /) -> Tensor:
    """Whether x is neither infinite nor NaN, elementwise."""

def isinf(x: Operand, /) -> Tensor:
    """Whether x is infinite, also in one part of a complex x, elementwise."""

def isnan(x: Operand, /) -> Tensor:
    """Whether x is NaN, also in one part of a complex x, elementwise."""

def less(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 < x2, elementwise with broadcasting."""

def less_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 <= x2, elementwise with broadcasting."""

def log(x: Operand, /) -> Tensor:
    """Natural logarithm, elementwise."""

def log10(x: Operand, /) -> Tensor:
    """Logarithm to base 10, elementwise."""

def log1p(x: Operand, /) -> Tensor:
    """The natural logarithm of 1 + x, elementwise, exact for small x."""

def log2(x: Operand, /) -> Tensor:
    """Logarithm to base 2, elementwise."""

def logaddexp(x1: Operand, x2: Operand, /) -> Tensor:
    """log(exp(x1) + exp(x2)), elementwise with broadcasting, without overflow."""

def logical_and(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 and x2 are true, elementwise with broadcasting."""

def logical_not(x: Operand, /) -> Tensor:
    """Whether x is false, elementwise."""

def logical_or(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 or x2 is true, elementwise with broadcasting."""

def logical_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether one of x1 and x2 is true, and not both, elementwise with broadcasting."""

def maximum(x1: Operand, x2: Operand, /) -> Tensor:
    """The larger of x1 and x2, elementwise; NaN if either is."""

def minimum(x1: Operand, x2: Operand, /) -> Tensor:
    """The smaller of x1 and x2, elementwise; NaN if either is."""

def multiply(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 * x2, elementwise with broadcasting."""

def negative(x: Operand, /) -> Tensor:
    """-x, elementwise."""

def nextafter(x1: Operand, x2: Operand, /) -> Tensor:
    """The number next to x1 towards x2. Has no derivative, elementwise with broadcasting."""

def not_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 and x2 differ; NaN differs from everything, elementwise with broadcasting."""

def positive(x: Operand, /) -> Tensor:
    """+x, elementwise: a copy."""

def real(x: Operand, /) -> Tensor:
    """The real part, elementwise: a view of x; of a real x, x itself."""

def reciprocal(x: Operand, /) -> Tensor:
    """1 / x, elementwise."""

def remainder(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 - x2 * floor(x1 / x2), elementwise with broadcasting: it has the sign of x2."""

def sign(x: Operand, /) -> Tensor:
    """-1, 0 or 1 by the sign of x; x / |x| of a complex x; NaN of NaN. Its gradient is 0."""

def signbit(x: Operand, /) -> Tensor:
    """Whether the sign of x is negative, that of -0.0 and of a NaN included, elementwise."""

def sin(x: Operand, /) -> Tensor:
    """Sine, elementwise."""

def sinh(x: Operand, /) -> Tensor:
    """Hyperbolic sine, elementwise."""

def sqrt(x: Operand, /) -> Tensor:
    """Square root, elementwise."""

def square(x: Operand, /) -> Tensor:
    """x * x, elementwise."""

def subtract(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 - x2, elementwise with broadcasting."""

def tan(x: Operand, /) -> Tensor:
    """Tangent, elementwise."""

def tanh(x: Operand, /) -> Tensor:
    """Hyperbolic tangent, elementwise."""

def trunc(x: Operand, /) -> Tensor:
    """x without its fraction; integers as they are. Its gradient is 0."""
