"""Gradients of products have the bits that they have where nobody watches."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import precheck

PRODUCTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all": lambda x: torch.prod(x),
    "along": lambda x: torch.prod(x, 0),
    "from the end": lambda x: x.prod(-2),
    "kept": lambda x: x.prod(1, keepdim=True),
    "widened": lambda x: x.prod(0, dtype=torch.float32),
    "of one number": lambda x: x.sum().prod(),
}


def _factors(dtype: torch.dtype, zeros: int = 0) -> torch.Tensor:
    torch.manual_seed(0)
    factors = (torch.rand(5, 3, 2) / 2 + 0.5).to(dtype)
    factors.view(-1)[:zeros] = 0
    return factors.requires_grad_()


def _gradient(product: Callable[[torch.Tensor], torch.Tensor], factors: torch.Tensor) -> torch.Tensor:
    (product(factors) * 1.25).sum().backward()
    assert factors.grad is not None
    return factors.grad


@pytest.mark.parametrize("zeros", [0, 1, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_watched_product_has_the_gradient_of_one_that_is_not(name: str, dtype: torch.dtype, zeros: int) -> None:
    plain = _gradient(PRODUCTS[name], _factors(dtype, zeros))
    with precheck.watch() as report:
        watched = _gradient(PRODUCTS[name], _factors(dtype, zeros))
    assert torch.equal(plain, watched)
    assert not report.errors


def test_a_dispatch_mode_alone_changes_it() -> None:
    """Without which there would be nothing to put back."""

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    plain = _gradient(PRODUCTS["along"], _factors(torch.bfloat16))
    with Mode():
        assert not torch.equal(plain, _gradient(PRODUCTS["along"], _factors(torch.bfloat16)))


def test_the_second_derivative_is_the_usual_one_too() -> None:
    def second(factors: torch.Tensor) -> torch.Tensor:
        (first,) = torch.autograd.grad(factors.prod(0).square().sum(), factors, create_graph=True)
        return torch.autograd.grad(first.square().sum(), factors)[0]

    plain = second(_factors(torch.bfloat16))
    with precheck.watch():
        watched = second(_factors(torch.bfloat16))
    assert torch.equal(plain, watched)


def test_the_shadow_follows_the_gradient() -> None:
    """What it flows into is still compared with float32: here it is lost in a weight of 1."""
    weight = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    with precheck.watch() as report:
        for _ in range(6):
            torch.prod(weight).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert "lost-update" in {finding.rule for finding in report.errors}


def test_torch_is_given_back_and_nothing_is_held() -> None:
    function, method = torch.prod, torch.Tensor.prod
    with precheck.watch():
        with precheck.watch():
            pass
        assert torch.prod is not function
        assert torch.prod == function
        made = _factors(torch.bfloat16).prod(0)
        held = weakref.ref(made)
        del made
        gc.collect()
        assert held() is None
    assert torch.prod is function
    assert torch.Tensor.prod is method
    assert "prod" not in vars(torch.Tensor)
