"""Facts about torch's ops: a row for each op, and sets of ops that share a property.

Each name below is a set of the ops with one property, or a table by their names. They are computed once from the rows of the registry.
An op is listed by its base name (`base_name`). Nothing here imports torch.
"""

from __future__ import annotations

from precheck.ops.registry import REGISTRY, where
from precheck.ops.spec import Kind, OpSpec, Pole, base_name, names_of, terms

_SUMMED = (Kind.SUM, Kind.BLEND, Kind.REDUCTION, Kind.RUNNING, Kind.JOIN)
_MULTIPLIED = (Kind.PRODUCT, Kind.FUSED, Kind.CONTRACTION)

# collectives
REDUCED = where(lambda op: op.across == "sums")
"""Collectives that combine numbers of all ranks."""
GATHERED = where(lambda op: op.across == "copies")
"""Collectives that pass on numbers of ranks unchanged."""
CARRIED = REDUCED | GATHERED
"""Collectives whose results all ranks receive."""

# sums and products
ADDITIONS = where(lambda op: op.kind is Kind.SUM)
"""Sums and differences of two operands."""
MEETING = ADDITIONS | where(lambda op: op.kind is Kind.BOUND)
"""Ops in which two operands meet as equals, so that the smaller one, or the larger, may be lost. In a product neither is."""
SUMS = ADDITIONS | REDUCED
"""Sums of few terms, which may cancel, and whose absolute errors add up: sums of two operands, and sums over ranks."""
LINEAR_IN = {name: frozenset(ord(letter) - ord("a") for letter in row.linear) for name, row in REGISTRY.items() if row.linear not in ("", "...")}
"""The places of the operands in which an op is linear: their relative errors are passed on as they are, or averaged."""
PRODUCTS = where(lambda op: op.kind is Kind.CONTRACTION)
"""Sums of products: matrix products, inner products, convolutions."""
SCALING = where(lambda op: op.kind in (Kind.PRODUCT, Kind.QUOTIENT))
"""Elementwise products and quotients, in which nothing cancels."""
SEPARATE = where(
    lambda op: op.kind in (Kind.PRODUCT, Kind.QUOTIENT, Kind.LOGARITHM, Kind.EXPONENTIAL, Kind.POWER, Kind.FUNCTION, Kind.PIECEWISE, Kind.BOUND)
)
"""Ops that compute each element by itself and add nothing up, so that nothing cancels."""
BLENDS = where(lambda op: op.kind is Kind.BLEND)
"""Weighted means of two operands: `lerp`."""
ROOTS = where(lambda op: op.law in ("a^0.5", "a^-0.5"))
"""Ops that halve the relative error of their operand."""
MULTIPLYING = PRODUCTS | SCALING
"""Ops whose result is a multiple of an operand."""
REDUCTIONS = where(lambda op: op.kind in (Kind.CONTRACTION, Kind.REDUCTION, Kind.RUNNING, Kind.NORM))
"""Ops that add up many terms, whose errors are independent. Ops that subtract a mean first, such as `var`, are not included: they may cancel."""
AVERAGES = where(lambda op: op.kind in (Kind.REDUCTION, Kind.LOSS))
"""Ops that reduce many numbers to one."""
WIDENED = where(lambda op: op.kind in (Kind.REDUCTION, Kind.RUNNING, Kind.SOFTMAX, Kind.NORM)) - {"trace", "_safe_softmax"}
"""Ops whose functions in torch take `dtype=`, the format in which they compute."""
AVERAGING = AVERAGES & where(lambda op: bool(op.linear))
"""Those of `AVERAGES` that only add elements up. Independent errors then grow with the root of the number of elements only."""
ADDITIVE = where(lambda op: op.kind in _SUMMED and bool(op.linear)) | REDUCED
"""Ops whose result has the absolute errors of its operands, since these have one scale. In other ops relative errors are passed on."""
STEADY = where(lambda op: op.steady)
"""Ops that do not amplify errors: the absolute error of the result is at most twice that of the operand."""
POLYNOMIAL = SUMS | where(lambda op: op.kind in (*_SUMMED, *_MULTIPLIED, Kind.MOVE) and bool(op.linear) and not op.poles)
"""Ops that give neither Inf nor NaN for zeros and finite numbers, unless they overflow."""
ACCUMULATING = where(lambda op: op.accumulates in ("adds", "scales", "scatters", "statistics"))
"""Ops that in place change a tensor by an addition or a factor: sums, moving averages, running statistics."""
ELEMENTWISE = where(lambda op: op.accumulates in ("adds", "scales") and op.kind is not Kind.CONTRACTION)
"""Those of `ACCUMULATING` that work element by element."""
SCATTERING = where(lambda op: op.accumulates in ("scatters", "may scatter"))
"""Ops that add several elements into one, some of them only if their argument `accumulate` is true."""
ADDED_INTO = where(lambda op: op.accumulates == "scatters")
"""Ops that always add elements into places of a tensor: sums of two operands, of which one is spread out first."""
UNEVEN = SCATTERING | {"embedding_dense_backward"}
"""Ops that may add up more numbers for one element of their result than for another."""
ADDING_INSIDE = ("norm", "attention", "_fft_", "linalg")
"""Parts of names of ops that add up many terms: a transform may be a product, and a factorisation has a sum for each number."""
ELIMINATING = ("solve", "linalg_lu", "linalg_inv", "linalg_det", "cholesky")
"""Parts of names of ops that eliminate one unknown after the other."""
DIFFERENCES = where(lambda op: op.kind is Kind.LOSS and op.subtracts)
"""Losses that subtract one operand from the other."""

# moved numbers and constants
CASTS = where(lambda op: op.casts)
"""Copies that may change the dtype."""
WHOLE_COPIES = where(lambda op: op.whole)
"""Ops whose result is the whole input, in another dtype or layout."""
MOVING = GATHERED | where(lambda op: op.kind in (Kind.MOVE, Kind.JOIN) and op.exact)
"""Ops whose result holds elements of their inputs, in other places, dtypes or signs, for all values of these elements."""
CONSTANTS = MOVING - GATHERED | where(lambda op: bool(op.constant))
"""Ops that make constants or move elements. Masks are made by these."""
UNROUNDED = where(lambda op: (op.exact and not op.casts) or (op.kind is Kind.FACTORY and op.constant != "range")) | {"copy"}
"""Ops whose result is as exact as their inputs. A copy into another tensor is assumed not to change the dtype. Casts are not included."""
CUTTING = where(lambda op: op.kind is Kind.PIECEWISE and op.exact)
"""Ops that give each element as it is, or a constant in its place."""
REPLACING = where(lambda op: op.replaces)
"""Ops that overwrite a tensor in place with a number or with another tensor's content."""
FRESH = where(lambda op: op.form)
"""Ops that use the shape and dtype of a tensor and not its content."""
DRAWN = where(lambda op: op.kind is Kind.DRAW and op.real)
"""Draws of real numbers."""
UNIFORM = where(lambda op: op.uniform)
"""Draws from a uniform distribution."""
POSITIVE = where(lambda op: op.positive)
"""Draws of positive numbers. A zero is a rounded smaller number."""
OVERWRITING = REPLACING | where(lambda op: op.kind is Kind.DRAW and not op.form)
"""Ops that in place do not read what they overwrite."""

# functions with poles, and guards against these
POLES = where(lambda op: bool(op.poles) and op.kind not in (Kind.ROUNDING, Kind.REMAINDER))
"""Functions that become infinite or stop being defined at some argument. `OpSpec.poles` says where."""
INFINITE_AT = {name: tuple(ord(pole.operand) - ord("a") for pole in row.poles if pole.what == "value") for name, row in REGISTRY.items() if row.poles}
"""Functions with poles: the places of the operands at which they become infinite. A quotient does at its divisor, and never at its numerator."""
_EDGES = {name: {pole.at for pole in row.poles if pole.what == "edge"} for name, row in REGISTRY.items()}
ENDS_AT_ONE = frozenset(name for name, edges in _EDGES.items() if edges and edges <= {-1, 1})
"""Functions whose domain ends at one or minus one, as the arc cosine's. What is one in theory may be beyond by a rounding of any format."""
SINGULAR = where(lambda op: any(pole.operand == "a" and pole.what == "value" and not pole.when for pole in op.poles))
"""Functions of one operand that become infinite at some argument. Applied to a uniform draw, they give a distribution with a tail."""
LOGARITHMS = where(lambda op: op.kind is Kind.LOGARITHM)
ZERO_AT_ONE = LOGARITHMS | {"acos", "acosh"}
"""Functions that are zero at one, log1p beside it. A number that is rounded to one makes a zero of what the format holds."""
EXPONENTIALS = where(lambda op: op.kind is Kind.EXPONENTIAL)
BENDING = where(lambda op: op.bends)
"""Functions that bend at numbers of a fixed size, so that a factor of their operand is no factor of their result."""
ALPHA = {name: row.alpha for name, row in REGISTRY.items() if row.alpha}
"""Ops that multiply a term by their argument `alpha`: the places of the arguments that it may stand before."""
GUARDS = where(lambda op: bool(op.bound))
"""Sums and bounds that may keep a number away from a pole."""
BOUNDS_BELOW = where(lambda op: op.kind is Kind.BOUND and op.bound in ("lower", "both"))
"""Lower bounds."""
GUARDS_BELOW = where(lambda op: op.bound in ("lower", "both"))
"""Guards that make a small number larger, such as an added epsilon."""
RECIPROCALS = where(lambda op: op.law in ("a/b", "a^-1"))
"""Ops whose result overflows if their last operand is too small."""

# decisions
STEPS = where(lambda op: op.kind in (Kind.ROUNDING, Kind.JUMP))
"""Ops whose floating result is a step function."""
COUNTS = where(lambda op: op.kind is Kind.COUNT)
"""Ops that count elements in bins. The choice of the bin is a decision, the count is not."""
CUTS = where(lambda op: op.kind in (Kind.ROUNDING, Kind.REMAINDER))
"""Ops that round numbers to multiples or take remainders. The results are still numbers: coordinates, times, phases."""
KEEPING = SUMS | MOVING | GUARDS | SCALING | CUTS
"""Ops that keep the meaning of numbers: a sum of positions is still a position."""
WHOLE = (CUTS & STEPS) - {"floor_divide"}
"""Ops that round each element to a whole number."""
REMAINDERS = where(lambda op: op.kind is Kind.REMAINDER)
"""Those of `CUTS` that take remainders."""
ORDERINGS = where(lambda op: op.kind in (Kind.ORDER, Kind.BOUND))
"""Ops that compare two numbers, which is meaningful only if both have one scale."""
BOUNDING = where(lambda op: op.kind is Kind.ORDER)
"""Comparisons with a bound."""
ADDING_ALONE = where(lambda op: op.name in ("sum", "cumsum", "index_add", "scatter_add"))
"""Ops that add and do nothing else. Sums of whole numbers are exact in every order."""
EQUALITIES = where(lambda op: op.kind is Kind.EQUALITY)
JUMPING = where(lambda op: op.kind in (Kind.ORDER, Kind.EQUALITY, Kind.JUMP) or op.name in ("threshold", "hardshrink"))
"""Ops whose result jumps where a number is that with which they compare it."""
COMPARED = where(lambda op: op.kind in (Kind.ORDER, Kind.EQUALITY, Kind.TEST, Kind.LOGICAL))
"""Ops that give a boolean for each element."""
FILLING = where(lambda op: op.name in ("masked_fill", "index_fill"))
"""Ops that put a number into some places of a tensor."""
CHOOSING_OR_FILLING = COMPARED | where(lambda op: op.name in ("where", "masked_fill") or op.name.startswith("nan"))
"""Ops that test for NaN, leave it out, or replace it."""
CONCATENATIONS = where(lambda op: op.name in ("cat", "stack"))
"""Ops that lay tensors beside each other, as a loop may do with what its turns have made."""
LEAVING_OUT_NAN = where(lambda op: op.name in ("fmax", "fmin", "nanmean", "nanmedian", "nansum"))
"""Ops whose result is that of the other numbers where one is NaN."""
ASKING = where(lambda op: op.kind in (Kind.ORDER, Kind.EQUALITY, Kind.QUESTION))
"""Comparisons and tests on whose results a program may branch."""
DECIDING_IN_PLACE = where(lambda op: op.kind in (Kind.ORDER, Kind.EQUALITY, Kind.LOGICAL))
"""Comparisons that can be written in place to a floating operand. They are then step functions."""
PLACES = where(lambda op: bool(op.chooses) and not op.values)
"""Choices that return only indices."""
CHOOSERS = where(lambda op: bool(op.chooses) and op.values)
"""Choices along a dimension that return elements and then their indices."""
PAIRED = where(lambda op: op.values)
"""Ops that return numbers, and integers beside them. A program that reads no numbers wants the integers."""
BINNED = where(lambda op: op.chooses == "place")
"""Ops that give the place of each number among sorted bounds."""
ORDERED = where(lambda op: op.ordered)
"""Those of `CHOOSERS` whose elements are sorted. Code that subtracts neighbours relies on the sign, so a run that follows another's decisions keeps
its own elements in their own order: taken by the other run's indices, they would not be sorted. Their errors are no larger than those of the input.
(A shadow is compared with the run element by element, and has the run's indices.)"""
EXTREMES = where(lambda op: op.chooses == "extreme")
"""Choices of the largest or smallest elements."""
CHOSEN = where(lambda op: op.kind is Kind.CHOICE and op.exact)
"""Ops whose result is some elements of their input, chosen by their size."""
SIDES = {name: row.side for name, row in REGISTRY.items() if row.side is not None}
"""Derivatives that depend on the side of a threshold, with the place of the argument that is compared with it."""
THRESHOLDS = {name: row.thresholds for name, row in REGISTRY.items() if row.thresholds}
"""Those of `SIDES` that also depend on the argument within a side, with their thresholds."""
MASKED_SIDES = {name: place for name, place in SIDES.items() if REGISTRY[name].masks}
"""Those of `SIDES` that are zero on one side."""

# kernels
CENTRED = where(lambda op: op.kind in (Kind.MOMENT, Kind.NORMALIZATION))
"""Ops that subtract a mean internally, in float32 for all input formats."""
ATTENTION = where(lambda op: op.kind is Kind.ATTENTION)
"""Fused kernels of attention, and their derivatives."""
ATTENDING = ATTENTION | {"_safe_softmax"}
"""Ops that give zeros for rows that see nothing: kernels of attention, and the softmax of attention that torch writes out."""
SOFTMAXES = where(lambda op: op.kind is Kind.SOFTMAX)
KEEPING_TIES = SOFTMAXES | where(lambda op: op.kind in (Kind.FUNCTION, Kind.EXPONENTIAL, Kind.LOGARITHM) or op.casts)
"""Functions of each element, or of a row as a whole: of one operand, equal elements of a row stay equal."""
DECOMPOSED = where(lambda op: op.kind is Kind.DECOMPOSITION)
"""Matrix decompositions. All of their outputs are results, none is a statistic for the derivative."""
REPORTING = frozenset({"linalg_cholesky_ex", "linalg_inv_ex", "_linalg_solve_ex", "linalg_lu_factor_ex", "linalg_ldl_factor_ex"})
"""Factorisations that report, as their last result, whether the matrix has one. `REFUSING` raises an error if it has none."""
REFUSING = "_linalg_check_errors"
UNORDERED = where(lambda op: op.unordered)
"""Decompositions whose results come in any order."""
VECTORS = {(name, place): dim for name, row in REGISTRY.items() for place, dim in row.vectors}
"""Results that hold vectors of arbitrary sign, with the dimension along which a vector lies."""
FORMS = where(lambda op: op.kind is Kind.FORM)
"""Views that their schemas do not declare, and queries of a tensor's shape."""
FACTORIES = where(lambda op: op.kind is Kind.FACTORY and not op.replaces)
"""Ops that make a tensor of no other."""
RESIZING = frozenset({"resize", "resize_as", "set"})
"""Ops that may give their first operand another size, in place."""
EMPTY = where(lambda op: op.kind is Kind.FACTORY and not op.constant)
"""Factories of uninitialised tensors."""
HIDDEN_WRITES = {name: row.hidden_writes for name, row in REGISTRY.items() if row.hidden_writes}
"""Places of arguments that kernels write although their schemas do not declare it: running statistics."""
UNWRITTEN = {name: row.unwritten for name, row in REGISTRY.items() if row.unwritten}
"""Places of results that kernels write only in part, for their own derivative."""
PAYLOADS = where(lambda op: op.workspace == "payload")
"""Kernels that pass a workspace to their own derivative."""
PACKED = where(lambda op: op.workspace == "packed")
"""The same, with packed weights as well."""
MATRIX_PRODUCTS = {name: row.factors for name, row in REGISTRY.items() if row.engine in ("matrix", "batch")}
"""Products of matrices or batches of matrices, with the places of the two factors."""
DENSE_PRODUCTS = {name: row.factors for name, row in REGISTRY.items() if row.engine == "matrix"}
"""Products of two matrices, as in a linear layer. fp8 recipes quantise their operands."""
TILED_PRODUCTS = {name: row.factors for name, row in REGISTRY.items() if row.engine not in ("", "vector")}
"""Products on tensor cores, whose operands tf32 rounds. Products with a vector are not included."""

MULTIPLIED = where(lambda op: bool(op.engine))
"""Products, attention and recurrent kernels, which autocast runs in the low format."""

# how a scale is passed on
SCALED_PRODUCTS = where(lambda op: op.law.startswith("a*b"))
"""Ops whose result has the product of its operands' scales."""
SCALED_QUOTIENTS = where(lambda op: op.law == "a/b")
SCALED_SUMS = where(lambda op: op.law == "a + b")
FUSED_SUMS = {name: int(terms(row.law)[1]["c"]) for name, row in REGISTRY.items() if row.law in ("a + b*c", "a + b/c")}
"""Ops a + b·c and a + b/c, by the exponent of c."""
ADDENDS = {name: "abc".index(next(letter for term in terms(row.law) for letter in term if len(term) == 1))
           for name, row in REGISTRY.items() if row.law in ("a + b*c", "a + b/c", "a*b + c")}  # fmt: skip
"""The place of the operand that a product is added to, such as a bias."""
POWERS = {name: terms(row.law)[0]["a"] for name, row in REGISTRY.items() if row.law.startswith("a^")}
"""Ops whose result has a power of their operand's scale, by its exponent."""
EXPONENTS = {name: next(iter(terms(row.law, "ab")[0].values())) for name, row in REGISTRY.items() if row.law}
"""Ops out of whose result a factor of their operands can be divided again, and the exponent that the factor has there."""
NORMS = where(lambda op: op.kind is Kind.NORM)
"""Roots of sums of squares."""
SIZES = NORMS | where(lambda op: op.name in ("abs", "pow", "square"))
"""Ops that tell how large numbers are, whatever their signs."""
SUBTRACTIONS = where(lambda op: op.name in ("sub", "rsub"))
KEPT = where(lambda op: op.law == "a")
"""Ops whose result has the scale of their first operand."""
JOINED = where(lambda op: op.kind is Kind.JOIN and bool(op.law))
"""Ops whose result has the common scale of its operands."""

__all__ = [
    "REGISTRY", "Kind", "OpSpec", "Pole", "base_name", "names_of", "terms",
    *(name for name in dir() if name.isupper() and not name.startswith("_")),
]  # fmt: skip
