"""Tests whether a mask of the candidate's own explains its result: what its rows do not depend on, in the place of what the reference hides."""

from __future__ import annotations

from typing import Any

import torch

from precheck.kernels import masks
from precheck.kernels.bench import Bench
from precheck.kernels.trial_result import Judged
from precheck.kernels.trials import Made
from precheck.observe.exact import Exact

_KEYS = 32
"""The most rows of an input that are changed one by one. Each takes a run of the candidate."""
_MASKS = {"masked_fill": 1, "where": 0}
"""Ops that hide numbers, and the place of the mask among their arguments."""


class _Hidden(Exact):
    """float64, with other masks of the same rows and columns. `changed` says whether there was one."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.hidden, self.changed = hidden, False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        place = _MASKS.get(name, 0)
        mask = args[place] if name in _MASKS and len(args) == 3 else None
        if mask is not None and mask.dtype is torch.bool and mask.dim() > 1 and mask.shape[-2:] == self.hidden.shape[-2:]:
            self.changed = True
            keeps = name == "where" and float((mask == self.hidden).double().mean()) < 0.5
            args = (*args[:place], ~self.hidden if keeps else self.hidden, *args[place + 1 :])
        return super().__torch_dispatch__(func, types, args, kwargs)


def explains(bench: Bench, judged: Judged) -> str:
    """Where the reference with the candidate's mask gives the candidate's result, in words, or ""."""
    assert judged.reference is not None
    name = judged.subject
    got = judged.outcome.values.get(name) if judged.outcome is not None else None
    if got is None or got.dim() < 2:
        return ""
    for place, leaf in enumerate(bench.example.leaves):
        hidden = _hidden(bench, judged, name, got, place)
        if hidden is not None:
            mode = _Hidden(hidden)
            outcome = bench.under(mode, judged.trial)
            if mode.changed and outcome.error is None and masks.closer(judged, outcome, judged.reference.exact):
                return f"a mask that leaves other rows of inputs{leaf.path}"
    return ""


def _hidden(bench: Bench, judged: Judged, name: str, got: torch.Tensor, place: int) -> torch.Tensor | None:
    """Which rows of an input each row of the candidate's result does not depend on. None if it depends on all, or on none."""
    made = bench.make(judged.trial)
    value = made.values[place]
    if not value.is_floating_point() or value.dim() < 2 or not 0 < value.shape[-2] <= _KEYS:
        return None
    hidden = torch.zeros(*got.shape[:-1], value.shape[-2], dtype=torch.bool)
    for row in range(value.shape[-2]):
        moved = value.clone()
        moved.select(-2, row).mul_(0.75).add_(0.25)
        outcome = bench.call(judged.trial, Made([moved if other == place else each for other, each in enumerate(made.values)], made.numbers))[0]
        now = outcome.values.get(name)
        if now is None or now.shape != got.shape:
            return None
        hidden[..., row] = (now.nan_to_num() == got.nan_to_num()).all(-1)
    return hidden if bool(hidden.any()) and not bool(hidden.all()) else None
