"""Knows formulas that lose digits, and what to write instead: `expm1` for `exp(x) - 1`, `logsumexp` for the log of a sum of exponentials.

A form is recognised by the ops that made the operands of an op, and by those that read its result. It is advice: no verdict depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from precheck import ops
from precheck.analysis.facts import Readers
from precheck.analysis.propagation import causes
from precheck.observe.shadow.operations import Operation, Value
from precheck.rules.advice import rescaled, within_range

_FAR = 4
"""Ops between an exponential and the logarithm of the sum that it belongs to, at most: a sum, a factor, a cast."""
_WALKED = 64
"""Ops that are looked at, at most: a form has few, and a loop may read a number without end."""


def better_form(operation: Operation, readers: Readers) -> str:
    """What to write instead of the formula that an op belongs to, as the beginning of a sentence. "" if none is known."""
    return next(filter(None, (form(operation, readers) for form in _FORMS)), "")


def in_range(operation: Operation, readers: Readers, wide: str, direction: str) -> str:
    """Ways to keep an op's result within the range of a format: other formulas, or a factor. `"up"` or `"down"` is the direction in which the factor
    has to move the numbers."""
    ways = better_form(operation, readers), within_range(operation, readers, wide), rescaled(operation, direction)
    return "; or ".join(filter(None, ways))


def _less_another(operation: Operation, readers: Readers) -> str:
    """For exp(x) - 1 and its like."""
    alone = _maker(operation.inputs[0]) if _subtracts(operation) and _beside_one(operation) else None
    form = {
        "exp": "torch.expm1(x) gives exp(x) - 1", "sigmoid": "torch.sigmoid(-x) gives 1 - sigmoid(x)",
        "cos": "2 * torch.sin(x / 2) ** 2 gives 1 - cos(x)",
    }.get(alone.base if alone is not None else "")  # fmt: skip
    return f"{form} without this difference" if form else ""


def _one_less_square(operation: Operation, readers: Readers) -> str:
    alone = _subtracts(operation) and _beside_one(operation) and _squares(_maker(operation.inputs[0]))
    return "(1 - x) * (1 + x) gives 1 - x**2 and keeps the digits of 1 - x" if alone else ""


def _log_of_one_and_more(operation: Operation, readers: Readers) -> str:
    alone = operation.base in ("add", "rsub") and _beside_one(operation)
    logarithm = alone and any(each.base in ops.LOGARITHMS for each in later(operation, readers, 1))
    form = "torch.log1p(x) gives log(1 + x)" if operation.base == "add" else "torch.log1p(-x) gives log(1 - x)"
    return f"{form} without this sum" if logarithm else ""


def _mean_square_less_squared_mean(operation: Operation, readers: Readers) -> str:
    made = [_maker(value) for value in operation.inputs] if _subtracts(operation) else []
    averaged = any(each is not None and each.base in ops.AVERAGES and any(_squares(_maker(value)) for value in each.inputs) for each in made)
    squared = any(_squares(each) for each in made)
    return "x.var(dim, correction=0) gives mean(x**2) - mean(x)**2 without this difference" if averaged and squared else ""


def _expanded_distance(operation: Operation, readers: Readers) -> str:
    """For a squared distance that is expanded into squares and a product."""
    if operation.base not in ops.ADDITIONS | ops.PRODUCTS:
        return ""
    behind = [each for value in operation.inputs for each in _earlier(value, 3)]
    squares = any(each.base in ops.AVERAGES and any(_squares(_maker(value)) for value in each.inputs) for each in behind)
    products = operation.base in ops.PRODUCTS or any(each.base in ops.PRODUCTS or _sums_products(each) for each in behind)
    return "(a - b).square().sum(-1) gives |a|**2 + |b|**2 - 2 a.b, and subtracts first" if squares and products else ""


def _log_of_share(operation: Operation, readers: Readers) -> str:
    """For the logarithm of a softmax or sigmoid."""
    form = {
        "_softmax": "torch.log_softmax(x, dim) gives the log of this softmax without its zeros",
        "sigmoid": "torch.nn.functional.logsigmoid(x) gives the log of this sigmoid without its zeros",
    }.get(operation.base, "")
    return form if form and any(each.base in ops.LOGARITHMS for each in later(operation, readers, 2)) else ""


def _log_of_summed_exponentials(operation: Operation, readers: Readers) -> str:
    """For exponentials whose sum is a divisor, or whose logarithm is taken."""
    first = operation if operation.base == "exp" else _maker(operation.inputs[0]) if operation.base in ops.AVERAGES and operation.inputs else None
    if first is None or first.base != "exp":
        return ""
    bases = [each.base for each in later(first, readers, _FAR)]
    if not ops.AVERAGES.isdisjoint(bases) and not ops.LOGARITHMS.isdisjoint(bases):
        return "torch.logsumexp(x, dim) gives the log of this sum, and subtracts the greatest x first"
    return "torch.softmax(x, dim) gives exp(x) / sum(exp(x)), and subtracts the greatest x first" if {"sum", "div"} <= set(bases) else ""


def _root_of_summed_squares(operation: Operation, readers: Readers) -> str:
    squares = _squares(operation) or (operation.base == "sum" and any(_squares(_maker(value)) for value in operation.inputs))
    bases = [each.base for each in later(operation, readers, 2)] if squares else []
    summed = "sum" in [operation.base, *bases]
    return "torch.linalg.vector_norm(x, dim=dim) gives the root of this sum, which it adds up in float32" if summed and "sqrt" in bases else ""


def _angle_by_its_cosine(operation: Operation, readers: Readers) -> str:
    cosine = any(each.base == "acos" for each in (operation, *later(operation, readers, 2)))
    return "2 * torch.atan2((a - b).norm(), (a + b).norm()) gives the angle of two unit vectors at any size" if cosine else ""


_FORMS: tuple[Callable[[Operation, Readers], str], ...] = (
    _less_another, _one_less_square, _log_of_one_and_more, _mean_square_less_squared_mean, _expanded_distance, _log_of_share,
    _log_of_summed_exponentials, _root_of_summed_squares, _angle_by_its_cosine,
)  # fmt: skip


def _beside_one(operation: Operation) -> bool:
    """Whether the only other operand is a Python number, which may be 1. Whole numbers are not recorded, so its value is not known."""
    return len(operation.inputs) == 1 and all(each == 1.0 for each in operation.scalars)


def _subtracts(operation: Operation) -> bool:
    return operation.base in ops.SUBTRACTIONS


def _squares(operation: Operation | None) -> bool:
    """Whether an op multiplies a number by itself."""
    if operation is None or not operation.inputs:
        return False
    factors = list(operation.inputs) if operation.base == "mul" and len(operation.inputs) == 2 else []
    product = bool(factors) and (factors[0] is factors[1] or _same(*map(_maker, factors)))
    return product or (operation.base == "pow" and 2.0 in operation.scalars)


def _same(one: Operation | None, other: Operation | None) -> bool:
    """Whether two ops compute the same, as two calls of `x.mean()` do."""
    both = [(each.name, each.inputs, each.scalars) for each in (one, other) if each is not None and each.inputs]
    return len(both) == 2 and both[0] == both[1]


def _sums_products(operation: Operation) -> bool:
    """Whether an op sums the products of two different tensors, as `(a * b).sum(-1)` does."""
    made = [_maker(value) for value in operation.inputs] if operation.base in ops.AVERAGES else []
    return any(each is not None and each.base == "mul" and len(each.inputs) == 2 and not _squares(each) for each in made)


def _maker(value: Value) -> Operation | None:
    """The op that computed a value, before casts and copies."""
    return causes.before_copies(value).maker


def _earlier(value: Value, most: int) -> Iterator[Operation]:
    """The op that computed a value, and those before it, at most so many in a row."""
    made = _maker(value)
    if made is not None and most:
        yield made
        for each in made.inputs:
            yield from _earlier(each, most - 1)


def later(operation: Operation, readers: Readers, most: int) -> list[Operation]:
    """The ops that read the result of an op, and those after them, at most so many in a row. Casts and copies do not count."""
    found, waiting = dict[Operation, None](), [(operation, most)]
    while waiting and len(found) < _WALKED:
        each, left = waiting.pop()
        for reader in (reader for value in each.outputs[:1] for reader in readers.get(value, ()) if reader.outputs and reader not in found):
            found[reader] = None
            rest = left - (reader.base not in ops.WHOLE_COPIES)
            if rest > 0:
                waiting.append((reader, rest))
    return list(found)
