"""How often a watched run chose otherwise than its shadow would have."""

from __future__ import annotations

from typing import Any

import torch

from precheck.observe.shadow.operations import Flips
from precheck.observe.shadow.replay import PAYLOADS, OpPlan, chosen, continuous
from precheck.observe.shadow.statistics import norm, ratio

COUNTED = frozenset({"argmax", "argmin", "searchsorted", "bucketize"})
"""Ops with integers alone for results whose flips are counted. Those of comparisons show in what they mask."""


def followed(call: Any, outputs: list[torch.Tensor], shadows: list[torch.Tensor], inputs: dict[int, torch.Tensor]) -> None:
    """Values that an op chose by index follow the run's indices; `inputs` are what `shadows` were made of."""
    if len(outputs) < 2 or not continuous(outputs[0]) or outputs[1].dtype != torch.int64 or call.plan.packet in PAYLOADS:
        return
    if inputs is call.shadows:
        _choice(call, outputs[1], shadows[1])
    if not call.mode.later.defers(outputs[1]) and torch.equal(outputs[1], shadows[1]):
        return
    picked = chosen(call.plan, call.args, call.kwargs, inputs[id(call.floats[0])], outputs[0], outputs[1])
    if picked is not None:
        shadows[0] = picked


def counted(call: Any, outputs: list[torch.Tensor]) -> None:
    """Of a step function, or of argmax and its kind: where the reference would have come out elsewhere."""
    if not call.plan.mutable:
        own = call.mode.replay.call(call.func, call.plan, call.args, call.kwargs, call.shadow_of)
        if call.plan.packet in COUNTED:
            _choice(call, outputs[0], own[0])
        elif call.mode.later.defers(outputs[0]):
            _noted(call, (outputs[0] != own[0]).sum(), outputs[0].numel())
        else:
            call.operation.flips = of_values(outputs[0], own[0])


def _choice(call: Any, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    scores = call.floats[0]
    if call.mode.later.defers(scores):  # how many, and no more: what a choice could see is not kept
        if mine.shape == theirs.shape:
            _noted(call, (mine != theirs).sum(), mine.numel())
        return
    call.operation.flips = of_choice(call.plan, call.args, call.kwargs, scores, call.shadows[id(scores)], mine, theirs)


def _noted(call: Any, changed: torch.Tensor, total: int) -> None:
    operation = call.operation
    call.mode.later([changed], lambda count: setattr(operation, "flips", Flips(int(count), total)))


def of_values(mine: torch.Tensor, theirs: torch.Tensor) -> Flips:
    return Flips(int((mine != theirs).sum()), mine.numel())


def of_choice(
    planned: OpPlan,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    scores: torch.Tensor,
    shadow: torch.Tensor,
    mine: torch.Tensor,
    theirs: torch.Tensor,
) -> Flips:
    """Flips between the indices `mine` and `theirs` of an op that chooses among `scores`, whose shadow is `shadow`."""
    if mine.shape != theirs.shape or scores.dim() == 0 or "max_pool" in planned.packet:
        return of_values(mine, theirs) if mine.shape == theirs.shape else Flips(0, mine.numel())
    given = planned.argument("dim", args, kwargs)
    dim = None if given is None and planned.packet in COUNTED else int(given if given is not None else -1)
    kept = mine.dim() == scores.dim()
    rows = (mine.sort(dim).values != theirs.sort(dim).values).any(dim) if dim is not None and kept else mine != theirs
    changed = int(rows.sum())
    if not changed:
        return Flips(0, rows.numel())
    return Flips(changed, rows.numel(), _tied(planned, args, kwargs, scores, mine, rows, dim), _blur(scores, shadow, dim))


def _tied(planned: OpPlan, args: Any, kwargs: Any, scores: torch.Tensor, mine: torch.Tensor, rows: torch.Tensor, dim: int | None) -> int:
    count = mine.shape[dim] if dim is not None and mine.dim() == scores.dim() else 1
    if planned.packet != "topk" or dim is None or count >= scores.shape[dim]:
        return 0
    edge = scores.detach().float().topk(count + 1, dim, largest=bool(planned.argument("largest", args, kwargs))).values
    return int((rows & (edge.select(dim, count - 1) == edge.select(dim, count))).sum())


def _blur(scores: torch.Tensor, shadow: torch.Tensor, dim: int | None) -> float:
    error = torch.nan_to_num(scores.to(shadow.dtype) - shadow, nan=0.0, posinf=0.0, neginf=0.0)
    wide = torch.nan_to_num(shadow, nan=0.0, posinf=0.0, neginf=0.0)
    spread = wide - (wide.mean() if dim is None else wide.mean(dim, keepdim=True))
    return ratio(norm(error), norm(spread))
