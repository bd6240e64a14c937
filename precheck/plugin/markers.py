"""precheck's markers: validates their arguments, and computes their effect on a test."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from precheck.precisions import Precision, PrecisionError, resolve
from precheck.words import suggestion

LINES = (
    "precision(*names): run this test only under these precisions",
    "expect_finding(rule): check_precision, watch_precision or a check of a pair must report this rule; the test fails if it does not",
    "allow_finding(rule, reason=...): errors of this rule do not fail the test, and are listed at the end",
    "gpu(min_memory=GiB, min_capability=(major, minor)): skip where there is no such CUDA device",
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expectations:
    """The rules that a test must report, and those that it may report, with the reasons."""

    expected: frozenset[str]
    allowed: dict[str, str]


class MarkerError(ValueError):
    """A marker is used incorrectly. The message says what is accepted."""


def fault(node: pytest.Item) -> str:
    """What is wrong with the markers of a test; "" if nothing is."""
    try:
        restricted(node, ())
        expectations(node)
        for mark in node.iter_markers("gpu"):
            _needs(mark)
    except MarkerError as error:
        return str(error)
    return ""


def restricted(item: pytest.Item, precisions: Sequence[Precision]) -> tuple[list[Precision], str]:
    """The precisions that the `precision` markers of a test allow, and the reason if there are none."""
    chosen, only = list(precisions), ""
    for mark in item.iter_markers("precision"):
        wanted = {precision.name: precision for precision in _named(mark)}
        chosen = [precision for precision in chosen if precision.name in wanted]
        only = only or f"only for {', '.join(wanted)} (this run: {', '.join(precision.name for precision in precisions)})"
    return chosen, "" if chosen else only


def _named(mark: pytest.Mark) -> Iterator[Precision]:
    if mark.kwargs or not mark.args:
        raise MarkerError('@pytest.mark.precision takes names alone, as in @pytest.mark.precision("bf16-mixed", "16-mixed")')
    for name in mark.args:
        try:
            precision = resolve(name)
        except PrecisionError as error:
            raise MarkerError(f"@pytest.mark.precision: {error}") from None
        yield precision


def expectations(item: pytest.Item) -> Expectations:
    expected = [_rule(mark, "expect_finding", ()) for mark in item.iter_markers("expect_finding")]
    allowed = {_rule(mark, "allow_finding", ("reason",)): str(mark.kwargs["reason"]) for mark in item.iter_markers("allow_finding")}
    return Expectations(frozenset(expected), allowed)


def unmet(item: pytest.Item, found: set[str], precision: str) -> str:
    """The message if a rule of `expect_finding` was not found. "" if all were. `precision` is "" if the test made no check."""
    missing = expectations(item).expected - found
    if not missing:
        return ""
    if not precision:
        return f"expected {min(missing)}, and the test made no check_precision, watch_precision, check_parity, check_invariance or check_kernel"
    return (
        f"expected {min(missing)}, and it found {', '.join(sorted(found)) or 'nothing'} under {precision}; "
        "if the fault appears under some precisions only, name them with @pytest.mark.precision"
    )


def _rule(mark: pytest.Mark, name: str, needed: tuple[str, ...]) -> str:
    example = f'@pytest.mark.{name}("lost-update"' + "".join(f', {word}="..."' for word in needed) + ")"
    if len(mark.args) != 1 or set(mark.kwargs) != set(needed) or not all(mark.kwargs.values()):
        raise MarkerError(f"@pytest.mark.{name} takes one rule{' and a reason' if needed else ''}, as in {example}")
    from precheck.findings import RULES

    rule = mark.args[0]
    if not isinstance(rule, str) or rule not in RULES:
        raise MarkerError(f"@pytest.mark.{name}: there is no rule {rule!r}; {suggestion(rule, RULES)}")
    return rule


def no_gpu(mark: pytest.Mark, device: str = "auto") -> str:
    """Why a test with this `gpu` marker cannot run on the `device` of this run (auto, cpu, cuda, cuda:N). "" if it can."""
    memory, least = _needs(mark)
    import torch

    if not torch.cuda.is_available():
        return "needs a CUDA device, and torch sees none"
    if device == "cpu":
        return "needs a CUDA device, and this run is on the CPU (--precision-device=cpu)"
    number = int(device.partition(":")[2] or 0)
    has = torch.cuda.get_device_capability(number)
    if has < least:
        return f"needs compute capability {least[0]}.{least[1]}, and {torch.cuda.get_device_name(number)} has {has[0]}.{has[1]}"
    total = torch.cuda.get_device_properties(number).total_memory / 2**30
    return f"needs {memory} GiB of device memory, and {torch.cuda.get_device_name(number)} has {total:.1f}" if total < memory else ""


def _needs(mark: pytest.Mark) -> tuple[float, tuple[int, int]]:
    if mark.args or set(mark.kwargs) - {"min_memory", "min_capability"}:
        raise MarkerError("@pytest.mark.gpu takes min_memory=GiB and min_capability=(major, minor), and nothing else")
    memory = mark.kwargs.get("min_memory", 0)
    if not isinstance(memory, (int, float)) or isinstance(memory, bool) or not 0 <= memory < float("inf"):
        raise MarkerError(f"@pytest.mark.gpu(min_memory={memory!r}): give GiB as a number, as in min_memory=16")
    return memory, _capability(mark.kwargs.get("min_capability", (0, 0)))


def _capability(value: Any) -> tuple[int, int]:
    """Parses a compute capability: a pair of whole numbers, or NVIDIA's form "8.0" or 8.0."""
    parts: Any = str(value).split(".") if isinstance(value, (str, float)) else value
    if isinstance(parts, list) and all(part.isdecimal() for part in map(str, parts)):
        parts = tuple(map(int, parts))
    if isinstance(parts, tuple) and len(parts) == 2 and all(type(part) is int and part >= 0 for part in parts):
        return parts[0], parts[1]
    raise MarkerError(f"@pytest.mark.gpu(min_capability={value!r}): give a pair, as in min_capability=(8, 0)")
