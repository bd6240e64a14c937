"""Draws examples from hypothesis strategies, if the user passes strategies."""

from __future__ import annotations

import importlib.util
from typing import Any

from precheck.observe.job import InputError

EXAMPLES = 5
"""The number of examples that are drawn. Each is varied further."""


def drawn(inputs: Any) -> Any:
    """`inputs` unchanged, or a list of examples if it contains strategies."""
    if importlib.util.find_spec("hypothesis") is None:
        return inputs
    from hypothesis.strategies import SearchStrategy

    if not _has(inputs, SearchStrategy):
        return inputs
    return _examples(inputs, SearchStrategy)


def _has(value: Any, kind: type) -> bool:
    if isinstance(value, kind):
        return True
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return any(_has(each, kind) for each in items)


def _examples(inputs: Any, kind: type) -> list[Any]:
    """Examples drawn by hypothesis, without its database: the same each time."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    found: list[Any] = []

    @settings(max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(_strategy(inputs, kind, st))
    def collect(example: Any) -> None:
        found.append(example)

    collect()
    if not found:
        raise InputError("the strategies in inputs= draw nothing; pass arguments of one call, or strategies of precheck.strategies")
    return found


def _strategy(value: Any, kind: type, st: Any) -> Any:
    if isinstance(value, kind):
        return value
    if isinstance(value, dict):
        return st.fixed_dictionaries({name: _strategy(each, kind, st) for name, each in value.items()})
    if isinstance(value, tuple):
        return st.tuples(*(_strategy(each, kind, st) for each in value))
    if isinstance(value, list):
        return st.tuples(*(_strategy(each, kind, st) for each in value)).map(list)
    return st.just(value)
