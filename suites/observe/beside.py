"""A program watched in a low format, beside the same program in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

import precheck
from precheck.findings import Report
from precheck.observe.shadow.mode import Shadow

Program = Callable[[torch.dtype], Sequence[torch.Tensor]]
"""Does the same in any dtype, from the same random state, and returns what is to be compared."""


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shadow_now() -> Shadow:
    """The innermost watch's."""
    mode = _get_current_dispatch_mode_stack()[-1]
    assert isinstance(mode, Shadow)
    return mode


def seen(tensor: torch.Tensor, shadow: Shadow | None = None) -> torch.Tensor:
    """What the tensor would be in the reference, by the watch that is on; what has no shadow is exact."""
    shadow = shadow or shadow_now()
    with _disable_current_modes(), torch.no_grad():
        cell = shadow.memory.find(tensor)
        return tensor.detach().clone() if cell is None else shadow.memory.view(cell, tensor.detach()).clone()


@dataclasses.dataclass
class Twins:
    """What a program returned: unwatched, watched, by the shadow, and in float32."""

    plain: list[torch.Tensor]
    run: list[torch.Tensor]
    shadows: list[torch.Tensor]
    reference: list[torch.Tensor]
    report: Report

    def unchanged(self) -> None:
        """Asserts that watching changed no bit."""
        for place, (one, other) in enumerate(zip(self.plain, self.run, strict=True)):
            assert same(one, other), f"result {place} is not what it is unwatched"

    def true(self, within: float = 0.0) -> None:
        """Asserts that the shadow is the float32 program, to a relative error `within`, and that nothing was left aside."""
        assert self.report.facts["opaque"] == {}
        for place, (shadow, reference) in enumerate(zip(self.shadows, self.reference, strict=True)):
            assert shadow.dtype == reference.dtype, f"result {place} has a shadow in {shadow.dtype}"
            assert same(shadow, reference) or off(shadow, reference) <= within, f"the shadow of result {place} is off by {off(shadow, reference):.2g}"


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, but that any NaN is a NaN."""
    one, other = one.detach(), other.detach()
    return one.shape == other.shape and one.dtype == other.dtype and bool(((one == other) | (one.isnan() & other.isnan())).all())


def off(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative error, Euclidean."""
    difference, size = (one.detach() - other.detach()).norm(), other.detach().norm()
    return float(difference / size) if size else float(difference)


def twins(program: Program, low: torch.dtype = torch.bfloat16, *, model: Any = None) -> Twins:
    """The program run three times from one seed. Asserts that it drew the same numbers unwatched and watched."""
    torch.manual_seed(0)
    plain = list(program(low))
    drawn = torch.get_rng_state()
    torch.manual_seed(0)
    with precheck.watch(model) as report:
        run = list(program(low))
        shadows = [seen(tensor) for tensor in run]
    assert torch.equal(torch.get_rng_state(), drawn), "watching drew random numbers"
    torch.manual_seed(0)
    return Twins(plain, run, shadows, list(program(torch.float32)), report)


def check(program: Program, low: torch.dtype = torch.bfloat16, *, within: float = 0.0) -> Twins:
    """Watching changes nothing, and the shadow is the truth."""
    both = twins(program, low)
    both.unchanged()
    both.true(within)
    return both
