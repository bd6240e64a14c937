"""What is known of torch's ops, once for all of precheck: rows of facts, and the questions that are asked of them.

Each name below is the set of the ops of which one thing is true, or a table by their names. They are computed once from the rows of the
registry. An op goes by its base name, `base_name`. Nothing here imports torch.
"""

from __future__ import annotations

from precheck.ops.registry import REGISTRY, where
from precheck.ops.spec import Kind, OpSpec, Pole, base_name, names_of, terms

_SUMMED = (Kind.SUM, Kind.BLEND, Kind.REDUCTION, Kind.RUNNING, Kind.JOIN)
_MULTIPLIED = (Kind.PRODUCT, Kind.FUSED, Kind.CONTRACTION)

# across ranks
REDUCED = where(lambda op: op.across == "sums")
"""Collectives that combine the ranks' numbers."""
GATHERED = where(lambda op: op.across == "copies")
"""Collectives that pass the ranks' numbers on."""
CARRIED = REDUCED | GATHERED
"""Collectives whose results every rank has."""

# sums and products
ADDITIONS = where(lambda op: op.kind is Kind.SUM)
"""Sums and differences of two operands."""
SUMS = ADDITIONS | REDUCED
"""Ops whose few terms may cancel, and bring their absolute errors into the sum: sums of two operands, and sums over ranks."""
PRODUCTS = where(lambda op: op.kind is Kind.CONTRACTION)
"""Sums of products: matrix products, inner products, convolutions."""
SCALING = where(lambda op: op.kind in (Kind.PRODUCT, Kind.QUOTIENT))
"""Products and quotients by elements, which cancel nothing."""
MULTIPLYING = PRODUCTS | SCALING
"""Ops whose result is a multiple of an operand."""
REDUCTIONS = where(lambda op: op.kind in (Kind.CONTRACTION, Kind.REDUCTION, Kind.RUNNING, Kind.NORM))
"""Ops that add up many terms, whose errors are independent. What subtracts a mean first, as `var` does, is none: it may cancel."""
AVERAGES = where(lambda op: op.kind in (Kind.REDUCTION, Kind.LOSS))
"""Ops that make one number of many."""
AVERAGING = AVERAGES & where(lambda op: bool(op.linear))
"""Of these, those that add elements up and no more: of independent errors a root is left of their number."""
ADDITIVE = where(lambda op: op.kind in _SUMMED and bool(op.linear)) | REDUCED
"""Ops into whose result an operand brings its absolute error, since all operands are of one scale in it. Others bring their relative one."""
STEADY = where(lambda op: op.steady)
"""Ops that no error grows in: what an operand is off by absolutely, the result is off by at most twice."""
POLYNOMIAL = SUMS | where(lambda op: op.kind in (*_SUMMED, *_MULTIPLIED, Kind.MOVE) and bool(op.linear) and not op.poles)
"""Ops that make neither Inf nor NaN of a zero and finite numbers."""
ACCUMULATING = where(lambda op: op.accumulates in ("adds", "scales", "scatters", "statistics"))
"""Ops that in place change what they are given by an addition or a factor: sums, moving averages, running statistics."""
ELEMENTWISE = where(lambda op: op.accumulates in ("adds", "scales") and op.kind is not Kind.CONTRACTION)
"""Those of them that give each element of the sum something of its own."""
SCATTERING = where(lambda op: op.accumulates in ("scatters", "may scatter"))
"""Ops that add many elements into one; some only if their argument `accumulate` says so."""
DIFFERENCES = where(lambda op: op.kind is Kind.LOSS and op.subtracts)
"""Losses that subtract within."""

# numbers moved, and numbers laid down
CASTS = where(lambda op: op.casts)
"""Copies that may change the dtype."""
WHOLE_COPIES = where(lambda op: op.whole)
"""Ops whose result is their input, whole, in another dtype or layout."""
MOVING = GATHERED | where(lambda op: op.kind in (Kind.MOVE, Kind.JOIN) and op.exact)
"""Ops whose result holds elements of what they are given, in other places, dtypes or signs, whatever these elements are."""
CONSTANTS = MOVING - GATHERED | where(lambda op: bool(op.constant))
"""Ops that lay a constant down, or carry it about: what a mask is made of."""
UNROUNDED = where(lambda op: (op.exact and not op.casts) or (op.kind is Kind.FACTORY and op.constant != "range")) | {"copy"}
"""Ops whose result is as exact as what they are given. A copy into another tensor is taken to be of one dtype; a cast is there to round."""
REPLACING = where(lambda op: op.replaces)
"""Ops that in place leave nothing of what they are given, and give it a number or another tensor's content."""
FRESH = where(lambda op: op.form)
"""Ops that take the form of a tensor and none of its content."""
DRAWN = where(lambda op: op.kind is Kind.DRAW and op.real)
"""Draws of real numbers."""
UNIFORM = where(lambda op: op.uniform)
"""Draws of numbers that are as frequent everywhere in an interval."""
POSITIVE = where(lambda op: op.positive)
"""Draws of numbers above zero: a zero is a smaller number that was rounded."""
OVERWRITING = REPLACING | where(lambda op: op.kind is Kind.DRAW and not op.form)
"""Ops that in place read nothing of what they write over."""

# functions with poles, and what guards them
POLES = where(lambda op: bool(op.poles) and op.kind not in (Kind.ROUNDING, Kind.REMAINDER))
"""Functions that leave the finite numbers at some argument, or end there. Which one, and at which calls: `OpSpec.poles`."""
SINGULAR = where(lambda op: any(pole.operand == "a" and pole.what == "value" and not pole.when for pole in op.poles))
"""Functions of one operand that grow beyond all bounds at some argument: what they make of a uniform draw has a tail."""
LOGARITHMS = where(lambda op: op.kind is Kind.LOGARITHM)
EXPONENTIALS = where(lambda op: op.kind is Kind.EXPONENTIAL)
GUARDS = where(lambda op: bool(op.bound))
"""Sums and bounds that may keep a number off a pole."""
BOUNDS_BELOW = where(lambda op: op.kind is Kind.BOUND and op.bound in ("lower", "both"))
"""Bounds that hold numbers above something."""
GUARDS_BELOW = where(lambda op: op.bound in ("lower", "both"))
"""Guards that make a small number larger: where an epsilon stands."""
RECIPROCALS = where(lambda op: op.law in ("a/b", "a^-1"))
"""Ops whose result overflows where their last operand is too small."""

# decisions
STEPS = where(lambda op: op.kind in (Kind.ROUNDING, Kind.JUMP))
"""Ops whose floating result jumps."""
COUNTS = where(lambda op: op.kind is Kind.COUNT)
"""Ops whose bins are a decision, and whose counts are not."""
CUTS = where(lambda op: op.kind in (Kind.ROUNDING, Kind.REMAINDER))
"""Ops that cut numbers at multiples of something, and leave them what they are: coordinates, times, phases."""
WHOLE = (CUTS & STEPS) - {"floor_divide"}
"""Ops that make a whole number of each element."""
ORDERINGS = where(lambda op: op.kind in (Kind.ORDER, Kind.BOUND))
"""Ops that ask which of two is larger, which means something only where both have one scale."""
COMPARED = where(lambda op: op.kind in (Kind.ORDER, Kind.EQUALITY, Kind.TEST, Kind.LOGICAL))
"""Ops that give a yes or no for each element."""
FILLING = where(lambda op: op.name in ("masked_fill", "index_fill"))
"""Ops that put a number into some places of a tensor."""
CHOOSING_OR_FILLING = COMPARED | where(lambda op: op.name in ("where", "masked_fill") or op.name.startswith("nan"))
"""Ops that ask for NaN, or leave it out, or put something else in its place."""
ASKING = where(lambda op: op.kind in (Kind.ORDER, Kind.EQUALITY, Kind.QUESTION))
"""Questions about numbers, on whose answers a program may branch."""
DECIDING_IN_PLACE = where(lambda op: op.kind in (Kind.ORDER, Kind.EQUALITY, Kind.LOGICAL))
"""Comparisons that can be written over a floating operand, and are a step of it then."""
PLACES = where(lambda op: bool(op.chooses) and not op.values)
"""Choices that give places alone."""
CHOOSERS = where(lambda op: bool(op.chooses) and op.values)
"""Choices along a dimension that give elements, and then their places."""
ORDERED = where(lambda op: op.ordered)
"""Of these, those whose elements come in their order. Who takes the difference of two neighbours knows its sign, so a run that follows another's
places keeps its own elements in their own order. They are off by no more than what is sorted; by the places of another run they are not sorted.
(A shadow is laid beside the run element by element, and has the run's places.)"""
EXTREMES = where(lambda op: op.chooses == "extreme")
"""Choices of the largest or smallest elements, by what tells these from the others."""
SIDES = {name: row.side for name, row in REGISTRY.items() if row.side is not None}
"""Derivatives that ask on which side of a threshold the forward was, and the place of the argument that tells."""
THRESHOLDS = {name: row.thresholds for name, row in REGISTRY.items() if row.thresholds}
"""Of these, those that depend on the argument within a side too, and where the sides meet."""
MASKED_SIDES = {name: place for name, place in SIDES.items() if REGISTRY[name].masks}
"""Of these, those that are zero on one side."""

# kernels
CENTRED = where(lambda op: op.kind in (Kind.MOMENT, Kind.NORMALIZATION))
"""Ops that take a mean off within, in float32 whatever they are given."""
SOFTMAXES = where(lambda op: op.kind is Kind.SOFTMAX)
DECOMPOSED = where(lambda op: op.kind is Kind.DECOMPOSITION)
"""Ops all results of which are results, and none a statistic for a derivative."""
VECTORS = {(name, place): dim for name, row in REGISTRY.items() for place, dim in row.vectors}
"""Results that hold vectors, which have no sign of their own, and the dimension along which each lies."""
FORMS = where(lambda op: op.kind is Kind.FORM)
"""Views that their schemas do not confess to, and questions about a tensor's form."""
EMPTY = where(lambda op: op.kind is Kind.FACTORY and not op.constant)
"""Factories whose result has no content of its own."""
HIDDEN_WRITES = {name: row.hidden_writes for name, row in REGISTRY.items() if row.hidden_writes}
"""Arguments that kernels write although their schemas do not say so: running statistics."""
PAYLOADS = where(lambda op: op.workspace == "payload")
"""Kernels that hand bytes to their own derivative."""
PACKED = where(lambda op: op.workspace == "packed")
"""The same, with weights packed in an order of their own as well."""
MATRIX_PRODUCTS = {name: row.factors for name, row in REGISTRY.items() if row.engine in ("matrix", "batch")}
"""Products of matrices, alone or in pairs, and the places of the two."""
DENSE_PRODUCTS = {name: row.factors for name, row in REGISTRY.items() if row.engine == "matrix"}
"""Products of two matrices: those of a linear layer, whose operands fp8 recipes quantise."""
TILED_PRODUCTS = {name: row.factors for name, row in REGISTRY.items() if row.engine not in ("", "vector")}
"""Products that tensor cores compute, whose operands tf32 rounds. Products with a vector are not among them."""

MULTIPLIED = where(lambda op: bool(op.engine))
"""Products, attention and recurrent kernels: what autocast runs in the low format."""

# how a scale passes
SCALED_PRODUCTS = where(lambda op: op.law.startswith("a*b"))
"""Ops whose result has the product of its operands' scales."""
SCALED_QUOTIENTS = where(lambda op: op.law == "a/b")
SCALED_SUMS = where(lambda op: op.law == "a + b")
FUSED_SUMS = {name: int(terms(row.law)[1]["c"]) for name, row in REGISTRY.items() if row.law in ("a + b*c", "a + b/c")}
"""Ops a + b·c and a + b/c, by the exponent of c."""
POWERS = {name: terms(row.law)[0]["a"] for name, row in REGISTRY.items() if row.law.startswith("a^")}
"""Ops whose result has a power of their operand's scale, by its exponent."""
KEPT = where(lambda op: op.law == "a")
"""Ops whose result has the scale of their first operand."""
JOINED = where(lambda op: op.kind is Kind.JOIN and bool(op.law))
"""Ops whose result has the scale that all its operands share."""

__all__ = [
    "REGISTRY", "Kind", "OpSpec", "Pole", "base_name", "names_of", "terms",
    *(name for name in dir() if name.isupper() and not name.startswith("_")),
]  # fmt: skip
