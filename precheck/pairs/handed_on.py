"""Finds a module with a wrong further result, which model's module does not return: a residual, say, that layers hand on beside their own result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.couples import Couples
from precheck.pairs.floors import agree, unlike
from precheck.pairs.module_dataflow import Passage
from precheck.pairs.transplants import exchanged

Role = tuple[str, int]
"""A tensor of a call, by kind and place: ("in", 0) is the first input."""


def wrong_further(comparison: Comparison, owner: str, before: Sequence[Passage], coupled: Couples, dtype: torch.dtype) -> str | None:
    """The first module inside `owner` whose further result is not what a module of its class before it returned: the input of model's module, say.
    Only if `other` gives what `model` gives once it is."""
    classes = {name: type(module) for name, module in comparison.other.job.model.named_modules()}
    prefix, roles = f"{owner}." if owner else "", dict[tuple[type, int], set[Role]]()
    for each in before:
        wanted = coupled.matching.modules.get(each.module)
        if each.kind != "out" or not each.module.startswith(prefix) or each.module == owner or wanted is None or coupled(each) is not None:
            continue
        key, held = (classes[each.module], each.place), set(_roles(each, wanted, coupled))
        known = roles.get(key, set())
        if known and not known & held:
            kind, place = min(known)
            right = coupled.known.get((kind, wanted, each.call, place))
            if right is not None and right.shape == each.shape and _cures(comparison, each, right.tensor, dtype):
                return each.module
        roles[key] = known & held or known or held
    return None


def _roles(passage: Passage, wanted: str, coupled: Couples) -> Iterator[Role]:
    """Which tensors of model's call it equals."""
    for each in coupled.known.values():
        if (each.module, each.call) == (wanted, passage.call) and each.kind in ("in", "out") and agree(passage.tensor, each.tensor):
            yield each.kind, each.place


def _cures(comparison: Comparison, passage: Passage, right: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the results become those of `model` when this tensor is replaced by the `right` one."""
    calls = 0

    def of_its_kind(each: torch.Tensor) -> torch.Tensor:
        return (torch.view_as_complex(right.contiguous()) if each.is_complex() else right).to(each.dtype)

    def hook(module: torch.nn.Module, args: Any, output: Any) -> Any:
        nonlocal calls
        calls += 1
        return exchanged(output, passage.place, of_its_kind) if calls == passage.call else output

    with contextlib.suppress(*REFUSALS):
        ours = comparison.model.forward(dtype).captured
        handle = comparison.other.job.model.get_submodule(passage.module).register_forward_hook(hook)
        try:
            theirs = comparison.other.forward(dtype).captured
        finally:
            handle.remove()
        return not any(each.kind == "result" and each.step == 1 for each in unlike(comparison.subjects, ours, theirs))
    return False
