"""What the caller has switched on around `measure` neither leaks into the runs nor is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import precheck
from precheck.findings import Report


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast to float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "float64 by default": lambda: default_dtype(torch.float64),
    "bfloat16 by default": lambda: default_dtype(torch.bfloat16),
    "deterministic algorithms": deterministic,
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "another dispatch mode": lambda: FlopCounterMode(display=False),
    "saved-tensor hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    "a default device": lambda: torch.device("cpu"),
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.2), nn.Linear(16, 4))


def measured(model: nn.Module, x: torch.Tensor, precision: str) -> Report:
    options: dict[str, Any] = {"optimizer": lambda params: torch.optim.AdamW(params, lr=1e-2), "steps": 2}
    return precheck.measure(model, x, precision=precision, loss=lambda out: out.float().square().mean(), **options)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "32-true"])
@pytest.mark.parametrize("around", AROUND)
def test_the_verdict_is_the_same_whatever_is_on_around_it(around: str, precision: str) -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    model, seen = net(), []
    for block in (contextlib.nullcontext, AROUND[around]):
        with block():
            seen.append(measured(model, x, precision))
    assert seen[0].boundaries == seen[1].boundaries
    assert seen[0].findings == seen[1].findings


def test_a_training_loop_around_it_goes_on_as_if_it_had_not_been() -> None:
    def trained(*, watched: bool) -> torch.Tensor:
        model, x = net(), torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if watched:
                measured(model, x, "bf16-mixed")
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(trained(watched=False), trained(watched=True))


def test_a_measurement_inside_a_measurement() -> None:
    model, x = net(), torch.randn(8, 16, generator=torch.Generator().manual_seed(1))

    def loss(out: torch.Tensor) -> torch.Tensor:
        assert precheck.measure(net(), x, precision="bf16-mixed").boundaries
        return out.float().square().mean()

    def plain(out: torch.Tensor) -> torch.Tensor:
        return out.float().square().mean()

    alone, nested = (precheck.measure(model, x, loss=each) for each in (plain, loss))
    assert nested.boundaries == alone.boundaries
    assert nested.findings == alone.findings


@pytest.mark.parametrize("precision", ["bf16-mixed", "tf32"])
def test_torchs_newer_switches_of_tf32_may_be_in_use_and_stay_as_they_are(precision: str) -> None:
    """Reading the older ones is an error then."""
    matmul = torch.backends.cuda.matmul
    try:
        matmul.fp32_precision = "tf32"
        precheck.measure(torch.nn.Linear(4, 4), torch.ones(2, 4), precision=precision)
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = "none"
