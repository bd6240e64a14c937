"""A row of the registry: mathematical and structural facts about an op, with no opinion on their meaning for a verdict."""

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
    """Where a function of one operand leaves the finite numbers.

    `value`: the result is Inf or NaN there. `edge`: the function ends there, and beyond it is NaN. `slope`: its derivative is not finite.
    """

    operand: str  # a letter, as in OpSpec.law
    at: float
    what: Literal["value", "edge", "slope"]
    when: Literal["", "negative exponent", "fractional exponent"] = ""  # "": at any call


@dataclasses.dataclass(frozen=True, slots=True)
class OpSpec:
    """The facts of one op. Letters a, b, c, … are its floating-point tensor operands in order, those in lists among them.

    name: as aten has it, less the underscore of an op in place and the prefix `_foreach_`: "mul" is mul, mul_ and _foreach_mul_ as well.
        An op of another library carries that: "c10d::allreduce".
    law: how the result scales with the operands, where it does: "a*b", "a + b/c", "a^0.5"; all terms have to have one scale. "a + ..." is an op of
        any number of operands that share their scale. "" where the result has no scale that follows from theirs.
    linear: the operands in each of which, the others held, the result is linear up to a constant; "..." for all, however many.
    poles: where it has any.
    steady: the result moves by no more than twice what the operands' elements are moved by at most, whatever their size: an error of theirs
        comes in absolutely.
    exact: each element of the result is an element of an operand or a number that is given, up to its sign; a cast aside, nothing is rounded.
    whole: the result is all of the operand, in another dtype or layout.
    casts: the result may have another dtype than the operand.
    replaces: in place, it leaves nothing of what it is given first.
    factors: the places of the arguments whose elements are multiplied with each other, of a contraction.
    engine: what multiplies these: "matrix" (two matrices), "batch" (pairs of matrices), "window" (a convolution), "vector", or the kernel of a
        whole layer, "attention" or "recurrent".
    bound: the side on which a sum or a bound keeps its operand off a number: "lower", "upper" or "both".
    accumulates: how an op in place changes what it is given: "adds" to it, "scales" it, "scatters" several elements onto one, "may scatter" if an
        argument says so, or updates running "statistics".
    subtracts: it takes operands from each other, or from their mean, within.
    form: it takes a tensor's form and none of its content.
    constant: what it makes is a "number" that is given or named, all over, or a "range" of numbers.
    real: it draws real numbers, not whole ones.
    uniform: all numbers of an interval alike.
    positive: it draws numbers above zero, and zero itself with no probability.
    chooses: by what it chooses: the largest or smallest elements ("extreme"), the order of all ("rank"), or a place among bounds ("place").
    values: of a choice, whether the elements at the places are a result as well, before these.
    ordered: these elements are all of the operand, and come in their order.
    side: the place of the argument that a derivative asks on which side of a threshold it lies.
    masks: beyond that threshold the derivative is zero.
    thresholds: where the sides of a derivative meet that is not constant on each of them.
    hidden_writes: places of arguments that the kernel writes although its schema does not say so.
    workspace: "payload" where a kernel hands bytes to its derivative, "packed" where its weights have an order of their own as well.
    vectors: of results that hold vectors of any sign, their place and the dimension along which a vector lies.
    across: of a collective, whether the ranks' numbers are combined ("sums") or passed on ("copies").
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
    workspace: Literal["", "payload", "packed"] = ""
    vectors: tuple[tuple[int, int], ...] = ()
    across: Literal["", "sums", "copies"] = ""

    @property
    def library(self) -> str:
        """Where torch keeps it: "aten", "c10d"."""
        return self.name.rpartition("::")[0] or "aten"


def each(names: str, row: OpSpec) -> tuple[OpSpec, ...]:
    """The same row for each of the names."""
    return tuple(dataclasses.replace(row, name=name) for name in names.split())


_FACTOR = re.compile(r"([*/]?)\s*([a-z])(?:\^(-?[\d.]+))?")

Term = dict[str, float]


def terms(law: str, operands: Iterable[str] = ()) -> list[Term]:
    """The terms of a law, each the exponents of its operands: "a + b/c" is [{"a": 1}, {"b": 1, "c": -1}].

    `operands`: those of the call, all of which are terms of "a + ...". Raises ValueError for what is no law.
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
    """The name in the registry of an op that torch calls `packet`: "mul" for "mul_" and "_foreach_mul_"."""
    return packet.removeprefix("_foreach_").rstrip("_") or packet


@functools.cache
def names_of(overload: str) -> tuple[str, str]:
    """Of "mul_.Tensor" the packet, "mul_", and its name in the registry, "mul"."""
    packet = overload.partition(".")[0]
    return packet, base_name(packet)
