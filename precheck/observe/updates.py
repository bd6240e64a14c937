"""What of each optimizer step arrived in the weights: the shadow's move is what was meant, the run's own is what came.

Any optimizer, foreach or fused, and any loop that calls `step()`: decided on the values, never on whether a hook fired.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from precheck.observe.memory import Memory
from precheck.observe.operations import Operation, Update
from precheck.observe.statistics import SAMPLE, norm, sampled

HELD = 0.5
"""A state tensor holds what a parameter lost if with it at most half is missing: Kahan's remainder holds all but its own rounding."""


@dataclasses.dataclass(slots=True)
class _Seen:
    update: Update
    moved: torch.Tensor
    meant: torch.Tensor


class Updates:
    """Follows low-format parameters through the steps of optimizers."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.seen: dict[int, _Seen] = {}
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor, float]] = {}  # values, shadow, the gradient's drift

    def begin(self, optimizer: Any, low: frozenset[torch.dtype]) -> None:
        """Before a step: samples of each low parameter that has a gradient, and of its shadow."""
        self.before.clear()
        for parameter in _parameters(optimizer):
            if parameter.dtype in low and parameter.grad is not None and parameter.layout is torch.strided and parameter.numel():
                cell = self.memory.find(parameter)
                values = sampled(parameter.detach(), SAMPLE).float()
                shadow = values if cell is None else sampled(self.memory.view(cell, parameter), SAMPLE)
                gradient = self.memory.find(parameter.grad) if parameter.grad.layout is torch.strided else None
                self.before[id(parameter)] = (values.clone(), shadow.clone(), gradient.value.drift if gradient is not None else 0.0)

    def end(self, optimizer: Any, names: dict[int, str], operation: Operation) -> None:
        """After it: what was meant and what came."""
        for parameter in _parameters(optimizer):
            was, cell = self.before.pop(id(parameter), None), self.memory.find(parameter)
            if was is None or cell is None:
                continue
            now, shadow = sampled(parameter.detach(), SAMPLE).float(), sampled(self.memory.view(cell, parameter), SAMPLE)
            moved, meant = now - was[0], shadow.float() - was[1].float()
            seen = self.seen.get(id(parameter))
            if seen is None:
                update = Update(names.get(id(parameter), ""), tuple(parameter.shape), cell.value.dtype, operation)
                seen = self.seen[id(parameter)] = _Seen(update, torch.zeros_like(moved), torch.zeros_like(meant))
            seen.moved += moved
            seen.meant += meant
            update = seen.update
            update.steps += 1
            update.gradient_drift = max(update.gradient_drift, was[2])
            update.common += float((moved * meant).sum())
            update.wanted += float((meant * meant).sum())
            update.size = norm(now)
            update.sampled = now.numel()
            update.arrived = float((seen.moved * seen.meant).sum()) / max(float((seen.meant * seen.meant).sum()), torch.finfo(torch.float32).tiny)
            update.held = self._held(optimizer, parameter, shadow.float() - now)

    def _held(self, optimizer: Any, parameter: torch.Tensor, missing: torch.Tensor) -> bool:
        """Whether a state tensor of the parameter's shape holds what it lacks, as Kahan summation's remainder does."""
        lacking = norm(missing)
        for state in optimizer.state.get(parameter, {}).values():
            if isinstance(state, torch.Tensor) and state.shape == parameter.shape and state.layout is torch.strided:
                cell, own = self.memory.find(state), sampled(state.detach(), SAMPLE).float()
                excess = own - sampled(self.memory.view(cell, state), SAMPLE).float() if cell is not None else own
                if norm(missing - excess) < HELD * lacking:
                    return True
        return False


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
