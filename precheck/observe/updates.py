"""What of each optimizer step arrived in the weights: the shadow's move is what was meant, the run's own is what came.

Any optimizer, foreach or fused, and any loop that calls `step()`: decided on the values, never on whether a hook fired.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from precheck.observe.later import SAMPLE as LATER
from precheck.observe.later import Later
from precheck.observe.memory import Memory
from precheck.observe.operations import Operation, Update, Value
from precheck.observe.replay import local
from precheck.observe.statistics import SAMPLE, norm, sampled

Samples = tuple[torch.Tensor, torch.Tensor]
HELD = 0.5
"""A state tensor holds what a parameter lost if with it at most half is missing: Kahan's remainder holds all but its own rounding."""


@dataclasses.dataclass(slots=True)
class _Seen:
    """A parameter's update so far, with the sample's moves since the first step."""

    update: Update
    moved: torch.Tensor | None = None
    meant: torch.Tensor | None = None

    def stepped(self, gradient: Value | None, *samples: torch.Tensor) -> None:
        """Samples of the parameter and its shadow before and after a step, then of each state tensor and its shadow."""
        was, was_shadow, now, shadow, *states = (sample.float() for sample in samples)
        update, moved, meant = self.update, now - was, shadow - was_shadow
        self.moved = moved if self.moved is None else self.moved + moved
        self.meant = meant if self.meant is None else self.meant + meant
        update.steps += 1
        update.gradient_drift = max(update.gradient_drift, gradient.drift if gradient is not None else 0.0)
        update.common += float((moved * meant).sum())
        update.wanted += float((meant * meant).sum())
        update.size, update.sampled = norm(now), now.numel()
        update.arrived = float((self.moved * self.meant).sum()) / max(float((self.meant * self.meant).sum()), torch.finfo(torch.float32).tiny)
        missing = shadow - now
        excesses = (own - other for own, other in zip(states[::2], states[1::2], strict=True))
        update.held = any(norm(missing - excess) < HELD * norm(missing) for excess in excesses)


class Updates:
    """Follows low-format parameters through the steps of optimizers."""

    def __init__(self, memory: Memory, later: Later) -> None:
        self.memory, self.later = memory, later
        self.seen: dict[int, _Seen] = {}
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor, Value | None]] = {}  # values, shadow, the gradient

    def begin(self, optimizer: Any, low: frozenset[torch.dtype]) -> None:
        """Before a step: samples of each low parameter that has a gradient, and of its shadow."""
        self.before.clear()
        for parameter in _parameters(optimizer):
            mine = local(parameter)
            if parameter.dtype in low and parameter.grad is not None and parameter.layout is torch.strided and mine.numel():
                gradient = self.memory.find(local(parameter.grad)) if parameter.grad.layout is torch.strided else None
                values, shadow = self._sample(mine, whole=True)
                self.before[id(parameter)] = (values.clone(), shadow.clone(), gradient.value if gradient is not None else None)

    def end(self, optimizer: Any, names: dict[int, str], operation: Operation) -> None:
        """After it: what was meant and what came."""
        for parameter in _parameters(optimizer):
            mine = local(parameter)
            was, cell = self.before.pop(id(parameter), None), self.memory.find(mine)
            if was is None or cell is None:
                continue
            seen = self.seen.get(id(parameter))
            if seen is None:
                update = Update(names.get(id(parameter), ""), tuple(mine.shape), cell.value.dtype, operation)
                seen = self.seen[id(parameter)] = _Seen(update)
            states = [local(state) for state in optimizer.state.get(parameter, {}).values() if isinstance(state, torch.Tensor)]
            fitting = [state for state in states if state.shape == mine.shape and state.layout is torch.strided]
            samples = [each for state in fitting for each in self._sample(state)]
            self.later([*was[:2], *self._sample(mine, whole=True), *samples], functools.partial(seen.stepped, was[2]))

    def _sample(self, tensor: torch.Tensor, *, whole: bool = False) -> Samples:
        """Of a tensor and of its shadow; of one without, zeros in the shadow's place, since all but a `whole` one may be remainder."""
        limit = LATER if self.later.defers(tensor) else SAMPLE
        values, cell = sampled(tensor.detach(), limit), self.memory.find(tensor)
        if cell is not None:
            return values, sampled(self.memory.view(cell, tensor), limit)
        return values, values if whole else torch.zeros_like(values)


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
