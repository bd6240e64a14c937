"""precheck's markers: what they accept, and what they do to a test."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from precheck.findings import RULES
from precheck.precisions import Precision, PrecisionError, resolve

LINES = (
    "precision(*names): run this test only under these precisions",
    "expect_finding(rule): check_precision must report this rule; the test fails if it does not",
    "allow_finding(rule, reason=...): errors of this rule do not fail the test, and are listed at the end",
    "gpu(min_memory=GiB, min_capability=(major, minor)): skip where there is no such CUDA device",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Expectations:
    """Rules that a test must report, and rules that it may, with the reason."""

    expected: frozenset[str]
    allowed: dict[str, str]


class MarkerError(ValueError):
    """A marker of precheck's is used in a way that means nothing; the message says what is accepted."""


def restricted(item: pytest.Item, precisions: Sequence[Precision]) -> tuple[list[Precision], str]:
    """Those of `precisions` that the test's `precision` markers let through; and if none, the reason."""
    chosen = list(precisions)
    for mark in item.iter_markers("precision"):
        wanted = {precision.name for precision in _named(mark)}
        chosen = [precision for precision in chosen if precision.name in wanted]
        if not chosen:
            return [], f"only for {', '.join(sorted(wanted))} (this run: {', '.join(precision.name for precision in precisions)})"
    return chosen, ""


def _named(mark: pytest.Mark) -> Iterator[Precision]:
    if mark.kwargs or not mark.args:
        raise MarkerError('@pytest.mark.precision takes names alone, as in @pytest.mark.precision("bf16-mixed", "16-mixed")')
    for name in mark.args:
        try:
            yield resolve(name)
        except PrecisionError as error:
            raise MarkerError(f"@pytest.mark.precision: {error}") from None


def expectations(item: pytest.Item) -> Expectations:
    expected = [_rule(mark, "expect_finding", ()) for mark in item.iter_markers("expect_finding")]
    allowed = {_rule(mark, "allow_finding", ("reason",)): str(mark.kwargs["reason"]) for mark in item.iter_markers("allow_finding")}
    return Expectations(frozenset(expected), allowed)


def _rule(mark: pytest.Mark, name: str, needed: tuple[str, ...]) -> str:
    example = f'@pytest.mark.{name}("lost-update"' + "".join(f', {word}="..."' for word in needed) + ")"
    if len(mark.args) != 1 or set(mark.kwargs) != set(needed) or not all(mark.kwargs.values()):
        raise MarkerError(f"@pytest.mark.{name} takes one rule{' and a reason' if needed else ''}, as in {example}")
    if mark.args[0] not in RULES:
        raise MarkerError(f"@pytest.mark.{name}: there is no rule {mark.args[0]!r}; there are {', '.join(RULES)}")
    return str(mark.args[0])


def no_gpu(mark: pytest.Mark) -> str:
    """Why the test of a `gpu` marker cannot run here; "" if it can."""
    if mark.args or set(mark.kwargs) - {"min_memory", "min_capability"}:
        raise MarkerError("@pytest.mark.gpu takes min_memory=GiB and min_capability=(major, minor), and nothing else")
    least = _capability(mark.kwargs.get("min_capability", (0, 0)))
    memory = mark.kwargs.get("min_memory", 0)
    if not isinstance(memory, (int, float)):
        raise MarkerError(f"@pytest.mark.gpu(min_memory={memory!r}): give GiB as a number, as in min_memory=16")
    import torch

    if not torch.cuda.is_available():
        return "needs a CUDA device, and torch sees none"
    has = torch.cuda.get_device_capability()
    if has < least:
        return f"needs compute capability {least[0]}.{least[1]}, and {torch.cuda.get_device_name()} has {has[0]}.{has[1]}"
    total = torch.cuda.get_device_properties(0).total_memory / 2**30
    return f"needs {memory} GiB of device memory, and {torch.cuda.get_device_name()} has {total:.1f}" if total < memory else ""


def _capability(value: Any) -> tuple[int, int]:
    parts = str(value).split(".") if isinstance(value, (str, float)) else value
    try:
        major, minor = (int(part) for part in parts)
    except (TypeError, ValueError):
        raise MarkerError(f"@pytest.mark.gpu(min_capability={value!r}): give a pair, as in min_capability=(8, 0)") from None
    return major, minor
