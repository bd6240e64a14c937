"""Rows of ops that add and multiply, and of the functions of one element."""

from __future__ import annotations

from precheck.ops.spec import Kind, OpSpec, Pole, each

_SUMS = (
    OpSpec("add", Kind.SUM, "a + b", linear="ab", bound="lower", alpha=(1,), accumulates="adds"),
    OpSpec("sub", Kind.SUM, "a + b", linear="ab", alpha=(1,), accumulates="adds"),
    OpSpec("rsub", Kind.SUM, "a + b", linear="ab", alpha=(0,), accumulates="adds"),
    OpSpec("lerp", Kind.BLEND, "a + b", linear="abc", accumulates="scales"),
)

_PRODUCTS = (
    OpSpec("mul", Kind.PRODUCT, "a*b", linear="ab", accumulates="scales"),
    OpSpec("multiply", Kind.PRODUCT, "a*b", linear="ab"),
    OpSpec("outer", Kind.PRODUCT, "a*b", linear="ab"),
    OpSpec("div", Kind.QUOTIENT, "a/b", linear="a", poles=(Pole("b", 0, "value"),), accumulates="scales"),
    *each("divide true_divide", OpSpec("", Kind.QUOTIENT, "a/b", linear="a", poles=(Pole("b", 0, "value"),))),
    OpSpec("addcmul", Kind.FUSED, "a + b*c", linear="abc", accumulates="adds"),
    OpSpec("addcdiv", Kind.FUSED, "a + b/c", linear="ab", poles=(Pole("c", 0, "value"),), accumulates="adds"),
    OpSpec("addr", Kind.FUSED, "a + b*c", linear="abc", alpha=(1, 2), accumulates="adds"),
)

_CONTRACTIONS = (
    OpSpec("mm", Kind.CONTRACTION, "a*b", linear="ab", factors=(0, 1), engine="matrix"),
    OpSpec("bmm", Kind.CONTRACTION, "a*b", linear="ab", factors=(0, 1), engine="batch"),
    OpSpec("addmm", Kind.CONTRACTION, "a + b*c", linear="abc", factors=(1, 2), engine="matrix", alpha=(1, 2), accumulates="adds"),
    *each("baddbmm addbmm", OpSpec("", Kind.CONTRACTION, "a + b*c", linear="abc", factors=(1, 2), engine="batch", alpha=(1, 2), accumulates="adds")),
    *each("mv dot vdot", OpSpec("", Kind.CONTRACTION, "a*b", linear="ab", factors=(0, 1), engine="vector")),
    OpSpec("addmv", Kind.CONTRACTION, "a + b*c", linear="abc", factors=(1, 2), engine="vector", alpha=(1, 2), accumulates="adds"),
    *each("convolution mkldnn_convolution", OpSpec("", Kind.CONTRACTION, "a*b + c", linear="abc", factors=(0, 1), engine="window")),
    OpSpec("convolution_backward", Kind.CONTRACTION, linear="abc", factors=(0, 1, 2), engine="window"),
    OpSpec("_trilinear", Kind.CONTRACTION, "a*b*c", linear="abc", factors=(0, 1, 2), engine="vector"),
)

_REDUCTIONS = (
    *each("sum mean nansum nanmean trace", OpSpec("", Kind.REDUCTION, "a", linear="a")),
    OpSpec("cumsum", Kind.RUNNING, "a", linear="a"),
    *each("norm linalg_vector_norm", OpSpec("", Kind.NORM, "a")),
    *each("std std_mean", OpSpec("", Kind.MOMENT, "a", subtracts=True)),
    OpSpec("var", Kind.MOMENT, "a^2", subtracts=True),
    OpSpec("var_mean", Kind.MOMENT, subtracts=True),
)
"""The product of all elements (`prod`) is not included: it adds nothing up, so nothing cancels."""

_LOGARITHMS = (
    *each("log log2 log10", OpSpec("", Kind.LOGARITHM, poles=(Pole("a", 0, "value"), Pole("a", 0, "edge")))),
    *each("logsumexp logaddexp logaddexp2", OpSpec("", Kind.LOG_SUM, steady=True)),
    OpSpec("log1p", Kind.LOGARITHM, poles=(Pole("a", -1, "value"), Pole("a", -1, "edge"))),
)

_POWERS = (
    OpSpec("sqrt", Kind.POWER, "a^0.5", poles=(Pole("a", 0, "edge"), Pole("a", 0, "slope"))),
    OpSpec("rsqrt", Kind.POWER, "a^-0.5", poles=(Pole("a", 0, "value"), Pole("a", 0, "edge"))),
    OpSpec("reciprocal", Kind.POWER, "a^-1", poles=(Pole("a", 0, "value"),)),
    OpSpec("square", Kind.POWER, "a^2"),
    OpSpec("pow", Kind.FUNCTION, poles=(Pole("a", 0, "value", "negative exponent"), Pole("a", 0, "edge", "fractional exponent"))),
)

_FUNCTIONS = (
    *each("sigmoid log_sigmoid_forward tanh erf softplus gelu silu mish elu hardsigmoid hardswish", OpSpec("", Kind.FUNCTION, bends=True)),
    *each("exp exp2 expm1", OpSpec("", Kind.EXPONENTIAL)),
    *each("acos asin", OpSpec("", Kind.FUNCTION, poles=tuple(Pole("a", at, what) for at in (-1, 1) for what in ("edge", "slope")))),
    *each("atanh erfinv", OpSpec("", Kind.FUNCTION, poles=tuple(Pole("a", at, what) for at in (-1, 1) for what in ("value", "edge")))),
    OpSpec("acosh", Kind.FUNCTION, poles=(Pole("a", 1, "edge"), Pole("a", 1, "slope"))),
    *each("logit special_ndtri", OpSpec("", Kind.FUNCTION, poles=tuple(Pole("a", at, what) for at in (0, 1) for what in ("value", "edge")))),
    OpSpec("tan", Kind.FUNCTION, poles=(Pole("a", 1.5707963267948966, "value"), Pole("a", -1.5707963267948966, "value"))),
    *each("lgamma digamma", OpSpec("", Kind.FUNCTION, poles=tuple(Pole("a", at, "value") for at in (-1, 0)))),
    OpSpec("polygamma", Kind.FUNCTION, poles=(Pole("a", 0, "value"),)),
    OpSpec("polar", Kind.FUNCTION, "a", linear="a"),
    OpSpec("special_entr", Kind.FUNCTION, poles=(Pole("a", 0, "slope"),)),
    OpSpec("xlogy", Kind.FUNCTION, linear="a", poles=(Pole("b", 0, "value"), Pole("b", 0, "edge"))),
    OpSpec("special_xlog1py", Kind.FUNCTION, linear="a", poles=(Pole("b", -1, "value"), Pole("b", -1, "edge"))),
)

_PIECEWISE = (
    OpSpec("relu", Kind.PIECEWISE, "a", exact=True),
    OpSpec("nan_to_num", Kind.PIECEWISE, "a", linear="a", exact=True),
    OpSpec("leaky_relu", Kind.PIECEWISE, "a"),
    OpSpec("_prelu_kernel", Kind.PIECEWISE, linear="b"),
    OpSpec("frexp", Kind.PIECEWISE, values=True),
    *each("hardtanh threshold hardshrink", OpSpec("", Kind.PIECEWISE, exact=True)),
    OpSpec("clamp", Kind.BOUND, "a + ...", exact=True, bound="both"),
    *each("clamp_min maximum fmax", OpSpec("", Kind.BOUND, "a + ...", exact=True, bound="lower")),
    *each("clamp_max minimum fmin", OpSpec("", Kind.BOUND, "a + ...", exact=True, bound="upper")),
)

_STEPS = (
    *each("round floor ceil trunc", OpSpec("", Kind.ROUNDING)),
    OpSpec("floor_divide", Kind.ROUNDING, poles=(Pole("b", 0, "value"),)),
    OpSpec("frac", Kind.REMAINDER),
    *each("remainder fmod", OpSpec("", Kind.REMAINDER, "a + ...", poles=(Pole("b", 0, "value"),))),
    *each("sign sgn heaviside", OpSpec("", Kind.JUMP)),
    OpSpec("histc", Kind.COUNT),
)

ROWS = (*_SUMS, *_PRODUCTS, *_CONTRACTIONS, *_REDUCTIONS, *_LOGARITHMS, *_POWERS, *_FUNCTIONS, *_PIECEWISE, *_STEPS)
