"""A block that turns CUDA's autocast off does so on a CPU too, while the CPU stands in for a GPU."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.amp.autocast_mode import autocast

import precheck
from precheck.precisions import resolve

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the names that torch.amp replaces, and of blocks for CUDA without a GPU
    OLD_OFF, OFF, ON = torch.cuda.amp.autocast(False), torch.autocast("cuda", enabled=False), torch.autocast("cuda")

    def angles(places: Tensor, steps: Tensor) -> Tensor:
        return torch.einsum("i, j -> ij", places, steps).cos()

    @torch.autocast("cuda", enabled=False)
    def decorated(places: Tensor, steps: Tensor) -> Tensor:
        return angles(places, steps)

    @torch.cuda.amp.autocast(False)
    def decorated_in_the_old_way(places: Tensor, steps: Tensor) -> Tensor:
        return angles(places, steps)

    @torch.autocast("cuda", dtype=torch.bfloat16)
    def decorated_with_autocast(places: Tensor, steps: Tensor) -> Tensor:
        return angles(places, steps)


def within(places: Tensor, steps: Tensor) -> Tensor:
    with torch.autocast("cuda", enabled=False):
        return angles(places, steps)


def within_in_the_old_way(places: Tensor, steps: Tensor) -> Tensor:
    with torch.cuda.amp.autocast(enabled=False):
        return angles(places, steps)


def within_autocast(places: Tensor, steps: Tensor) -> Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return angles(places, steps)


def on_again(places: Tensor, steps: Tensor) -> Tensor:
    with torch.autocast("cuda", enabled=False), torch.autocast("cpu", dtype=torch.bfloat16):
        return angles(places, steps)


def after(places: Tensor, steps: Tensor) -> Tensor:
    within(places, steps)
    return angles(places, steps)


class Rotary(nn.Module):
    """Angles of 400 positions: wrong where autocast makes their product."""

    def __init__(self, angles: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.angles, self.out = angles, nn.Linear(16, 8)
        self.register_buffer("steps", 10_000 ** (-torch.arange(16) / 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x * self.angles(torch.arange(400.0), self.steps))


def rules(angles: Callable[[Tensor, Tensor], Tensor], precision: str | precheck.Precision = "bf16-mixed") -> set[str]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {error.rule for error in precheck.measure(Rotary(angles), torch.randn(400, 16), precision=precision).errors}


@pytest.mark.parametrize("form", [within, within_in_the_old_way, decorated, decorated_in_the_old_way])
def test_inside_the_block_ops_compute_in_float32(form: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert not rules(form)


@pytest.mark.parametrize("form", [angles, within_autocast, decorated_with_autocast, on_again, after])
def test_elsewhere_autocast_is_on(form: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert rules(form) == {"accumulated-drift"}  # by integer-rounding


def test_watch_follows_the_block_where_it_runs_the_autocast() -> None:
    for form, wrong in ((within, False), (angles, True)):
        with precheck.watch(precision="bf16-mixed") as report:
            kept = Rotary(form)(torch.randn(400, 16))
        assert bool(report.errors) is wrong, (kept.dtype, report.summary())


def test_the_policy_of_the_cpu_knows_no_cuda() -> None:
    """On a CPU that is meant as one, such a block does nothing. CPU autocast leaves einsum alone, but not a product of matrices."""

    def product(places: Tensor, steps: Tensor) -> Tensor:
        with torch.autocast("cuda", enabled=False):
            return (places[:, None] @ steps[None]).cos()

    assert rules(product, precision=resolve("bf16-mixed", policy="native")) == {"accumulated-drift"}
    assert not rules(product)


def test_nothing_is_left_of_it() -> None:
    methods = autocast.__init__, autocast.__enter__, autocast.__exit__

    def fails(places: Tensor, steps: Tensor) -> Tensor:
        with OFF, OLD_OFF, ON:
            raise RuntimeError("no angles")

    with pytest.raises(RuntimeError, match="no angles"):
        rules(fails)
    assert (autocast.__init__, autocast.__enter__, autocast.__exit__) == methods
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cuda")


@pytest.mark.parametrize("block", [True, False])
def test_a_loop_on_a_cpu_is_told_that_the_block_is_for_cuda_alone(block: bool) -> None:
    """Its own autocast is the CPU's, which the block does not turn off. Watching does not change that."""

    def product(places: Tensor, steps: Tensor) -> Tensor:
        with torch.autocast("cuda", enabled=False) if block else contextlib.nullcontext():
            return (places[:, None] @ steps[None]).cos()

    with precheck.watch() as report, torch.autocast("cpu", dtype=torch.bfloat16):
        kept = product(torch.arange(400.0), 10_000 ** (-torch.arange(16) / 16))
    assert kept.dtype is torch.bfloat16
    told = "torch.autocast(x.device.type, enabled=False) turns off either"
    assert report.errors[0].rule == "integer-rounding"
    assert (told in report.errors[0].remedy) is block, report.summary()
