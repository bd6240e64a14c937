"""The form of a row of the registry: mathematical and structural facts about an op. Rules decide what these mean."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from collections.abc import Iterable
from typing import Literal


class Kind(enum.Enum):
    """What an op computes, one of these for each op."""

    SUM = "the sum or difference of two operands, element by element"
    BLEND = "a weighted mean of two operands"
    PRODUCT = "the product of two operands, element by element"
    QUOTIENT = "their quotient"
    FUSED = "an operand and the product or quotient of two others, added element by element"
    CONTRACTION = "sums of products: matrix products, inner products, convolutions"
    REDUCTION = "elements added up, or averaged"
    RUNNING = "partial sums"
    NORM = "the root of a sum of powers"
    MOMENT = "the spread about a mean, which is subtracted within"
    LOGARITHM = "a logarithm"
    LOG_SUM = "the logarithm of a sum of exponentials"
    EXPONENTIAL = "an exponential"
    POWER = "an operand to a fixed power"
    FUNCTION = "any other smooth function of each element"
    PIECEWISE = "a function of each element that is linear in pieces"
    BOUND = "the larger or the smaller of each element and a bound"
    ROUNDING = "the nearest whole number, up or down"
    REMAINDER = "what rounding to a multiple leaves"
    JUMP = "a floating result that takes a few values alone"
    COUNT = "how many elements lie in each of some bins"
    ORDER = "which of two elements is larger"
    EQUALITY = "whether two elements are the same"
    TEST = "a yes or no about elements: finite, close, negative"
    LOGICAL = "elements taken as yes and no, and combined"
    QUESTION = "one yes or no of many elements"
    CHOICE = "a place among elements, with the element there or without"
    POOL = "the largest or the mean element of each window"
    MOVE = "elements of one operand in another place, dtype or sign"
    JOIN = "elements of several operands in one result"
    FORM = "a view, or a question about a tensor's form: no element is read"
    FACTORY = "a new tensor, filled with a number, a range or nothing"
    DRAW = "random numbers"
    SOFTMAX = "exponentials over their sum, or the logarithm of that"
    LOSS = "one number that says how far two operands are apart"
    DECOMPOSITION = "the factors of a matrix, its eigenvectors among them"
    NORMALIZATION = "elements less their mean, over their spread"
    ATTENTION = "softmax of products, times values, in one kernel"
    RECURRENT = "a recurrent layer in one kernel"
    GRADIENT = "the derivative of another op, as a kernel of its own"
    SCALER = "what a loss scaler does with gradients and with its scale"
    COLLECTIVE = "what ranks send each other"


@dataclasses.dataclass(frozen=True, slots=True)
class Pole:
    """A place where a function of one operand becomes infinite or ends.

    `value`: the result is Inf or NaN there. `edge`: beyond it the result is NaN. `slope`: the derivative is not finite there.
    """

    operand: str  # a letter, as in OpSpec.law
    at: float
    what: Literal["value", "edge", "slope"]
    when: Literal["", "negative exponent", "fractional exponent"] = ""  # "": in any call


@dataclasses.dataclass(frozen=True, slots=True)
class OpSpec:
    """The facts of one op. Letters a, b, c, … are its floating-point tensor operands in order, also those in lists.

    name: the name in aten, without the underscore of an in-place op and the prefix `_foreach_`: "mul" stands for mul, mul_ and _foreach_mul_.
        An op of another library has a prefix: "c10d::allreduce".
    law: how the scale of the result follows from the operands' scales: "a*b", "a + b/c", "a^0.5". All terms must have one scale. "a + ..." stands for
        any number of operands with one scale. "" if the result has no such scale.
    linear: the operands in which the result is linear up to a constant, with the others fixed. "..." for all operands.
    poles: the poles of the op.
    steady: the result changes by at most twice the largest change of an operand's element, whatever its size: absolute errors are passed on.
    exact: each element of the result is an element of an operand or a given number, up to its sign. Nothing is rounded, except by casts.
    whole: the result is the whole operand, in another dtype or layout.
    casts: the dtype of the result may differ from the operand's.
    replaces: in place, it overwrites its first operand.
    factors: for a contraction, the places of the arguments whose elements are multiplied with each other.
    engine: the kind of product: "matrix" (two matrices), "batch" (pairs of matrices), "window" (a convolution), "vector", or the kernel of a
        whole layer, "attention" or "recurrent".
    bound: for a sum or a bound, the side on which it limits its operand: "lower", "upper" or "both".
    alpha: the places of the arguments that its argument `alpha` may stand before, as a factor of one of them.
    bends: it is curved at numbers of a fixed size, so that a factor of its operand is no factor of its result.
    accumulates: how the op changes a tensor in place: "adds" to it, "scales" it, "scatters" several elements onto one, "may scatter" if an
        argument says so, or updates running "statistics".
    subtracts: internally it subtracts operands from each other, or a mean.
    form: it uses a tensor's shape and dtype and not its content.
    constant: its result is filled with one "number", or is a "range" of numbers.
    real: it draws real numbers, not integers.
    uniform: it draws from a uniform distribution.
    positive: it draws numbers above zero. Zero has probability zero.
    chooses: what it chooses: the largest or smallest elements ("extreme"), by the order of all ("rank"), or a place among bounds ("place").
    values: it returns numbers before the integers that belong to them: a choice's elements before their indices, or mantissas before exponents.
    ordered: it returns all elements of the operand, sorted.
    side: for a derivative, the place of the argument that is compared with a threshold.
    masks: on one side of that threshold the derivative is zero.
    thresholds: the thresholds of a derivative that is not constant on each side.
    hidden_writes: places of arguments that the kernel writes although its schema does not declare it.
    unwritten: places of results of which the kernel writes only a part. The rest is what was in memory.
    workspace: "payload" if the kernel passes a workspace to its derivative, "packed" if its weights are packed as well.
    unordered: its results come in any order, as the eigenvalues of a matrix that is not symmetric do.
    vectors: for results that hold vectors of arbitrary sign, their place and the dimension along which a vector lies.
    across: for a collective, whether the ranks' numbers are combined ("sums") or passed on ("copies").
    """

    name: str
    kind: Kind
    law: str = ""
    linear: str = ""
    poles: tuple[Pole, ...] = ()
    steady: bool = False
    exact: bool = False
    whole: bool = False
    casts: bool = False
    replaces: bool = False
    factors: tuple[int, ...] = ()
    engine: Literal["", "matrix", "batch", "window", "vector", "attention", "recurrent"] = ""
    bound: Literal["", "lower", "upper", "both"] = ""
    alpha: tuple[int, ...] = ()
    bends: bool = False
    accumulates: Literal["", "adds", "scales", "scatters", "may scatter", "statistics"] = ""
    subtracts: bool = False
    form: bool = False
    constant: Literal["", "number", "range"] = ""
    real: bool = False
    uniform: bool = False
    positive: bool = False
    chooses: Literal["", "extreme", "rank", "place"] = ""
    values: bool = False
    ordered: bool = False
    side: int | None = None
    masks: bool = False
    thresholds: tuple[float, ...] = ()
    hidden_writes: tuple[int, ...] = ()
    unwritten: tuple[int, ...] = ()
    workspace: Literal["", "payload", "packed"] = ""
    unordered: bool = False
    vectors: tuple[tuple[int, int], ...] = ()
    across: Literal["", "sums", "copies"] = ""

    @property
    def library(self) -> str:
        """The library of the op: "aten", "c10d"."""
        return self.name.rpartition("::")[0] or "aten"


def each(names: str, row: OpSpec) -> tuple[OpSpec, ...]:
    """The same row for each of the names."""
    return tuple(dataclasses.replace(row, name=name) for name in names.split())


_FACTOR = re.compile(r"([*/]?)\s*([a-z])(?:\^(-?[\d.]+))?")

Term = dict[str, float]


def terms(law: str, operands: Iterable[str] = ()) -> list[Term]:
    """The terms of a law, each the exponents of its operands: "a + b/c" is [{"a": 1}, {"b": 1, "c": -1}].

    `operands` are those of the call; all of them are terms of "a + ...". Raises ValueError if `law` is invalid.
    """
    found: list[Term] = []
    for part in law.split(" + ") if law else ():
        if part == "...":
            found = [{operand: 1.0} for operand in operands]
            continue
        if _FACTOR.sub("", part).strip():
            raise ValueError(f"{part!r} is no term of a law, in {law!r}")
        found.append({letter: float(exponent or 1) * (-1 if sign == "/" else 1) for sign, letter, exponent in _FACTOR.findall(part)})
    return found


def base_name(packet: str) -> str:
    """The registry's name of the op that torch calls `packet`: "mul" for "mul_" and "_foreach_mul_"."""
    return packet.removeprefix("_foreach_").rstrip("_") or packet


@functools.cache
def names_of(overload: str) -> tuple[str, str]:
    """The packet and the registry's name of an overload: "mul_" and "mul" for "mul_.Tensor"."""
    packet = overload.partition(".")[0]
    return packet, base_name(packet)
