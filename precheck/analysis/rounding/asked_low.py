"""Says whether the precision asks for low numbers in a call of a user's function, or its author's own casts have made all of them."""

from __future__ import annotations

from collections.abc import Set

from precheck import ops
from precheck.analysis.propagation import attribution, causes
from precheck.analysis.propagation.attribution import Attribution
from precheck.observe.shadow.operations import Value


def asked(made: Attribution) -> bool:
    """Whether the precision asks for low numbers in a call. Otherwise its author's own casts made all of them."""
    return has_product(made) or given_low(made)


def has_product(made: Attribution) -> bool:
    """Whether an error passed a product that autocast makes low, unless the author has turned autocast off around it."""
    return any(each.base in ops.PRODUCTS and not each.autocast_left for each in made.through)


def given_low(made: Attribution) -> bool:
    """Whether an op gets a low number from elsewhere.

    It does not count if another operand of that op is a wide number that the author has cast: of a low and a wide number torch makes a wide one.
    Nor is a number from elsewhere that the author has cast in the call, though no error passes a cast that loses nothing.
    """
    passed = made.through.keys()
    own = {each.outputs[0] for each in passed if causes.casts_wide(each) and each.inputs and attribution.written(each) and not each.implicit}
    calls = {each.call for each in passed}
    given = (each for each in passed if any(source.low and not (source.maker in passed or _cast_here(source, calls)) for source in each.inputs))
    return any(own.isdisjoint(each.inputs) for each in given)


def _cast_here(value: Value, calls: Set[int]) -> bool:
    """Whether a call's author has cast a number there without loss, as the format has small whole numbers. No error passes such a cast, and yet the
    number is not from elsewhere."""
    maker = value.maker
    if maker is None or value.drift > 0 or maker.base not in ops.CASTS:
        return False
    return maker.call in calls and causes.casts_wide(maker) and attribution.written(maker)
