"""A hook whose gradient is made of codes gives them their scale back, or what is made of the gradient has it taken out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from casts_by_hand import to_float8, to_int8
from float8_by_hand import LOW, channels, normal

import precheck

Hook = Callable[[torch.Tensor], torch.Tensor]


def without(g: torch.Tensor) -> torch.Tensor:
    codes, _ = to_float8(g, 1)
    return codes.float()


def rounded(g: torch.Tensor) -> torch.Tensor:
    codes, scale = to_float8(g, 1)
    return codes.float() * scale


def in_integers(g: torch.Tensor) -> torch.Tensor:
    codes, scale = to_int8(g, (0, 1))
    return codes.float() * scale


def gradients(hook: Hook, before: bool = False) -> tuple[precheck.Report, torch.Tensor]:
    """Of a layer whose output has the hook. `before`: it is registered before the block."""
    x, w, v = normal(16, 64).requires_grad_(), channels().requires_grad_(), normal(32, 64, seed=6)

    def forward() -> torch.Tensor:
        h = x @ w.t()
        h.register_hook(hook)
        return ((h @ v.t()) * normal(16, 32, seed=3)).sum()

    early = forward() if before else None
    with precheck.watch() as report:
        loss = forward() if early is None else early
        loss.backward()
        assert x.grad is not None
        assert w.grad is not None
        made = x.grad.to(LOW)
        w.grad.to(LOW)
    return report, made


def test_a_hook_that_forgets_the_scale() -> None:
    report, _ = gradients(without)
    assert [finding.rule for finding in report.errors] == ["wrong-scale"]
    assert "a scale is missing here, that of the codes of" in report.errors[0].message
    assert report.errors[0].source.endswith(f":{without.__code__.co_firstlineno + 2}")


@pytest.mark.parametrize("hook", [rounded, in_integers, lambda g: g.clamp(-1, 1), lambda g: None], ids=["float8", "int8", "clipped", "looks"])
def test_healthy_hooks(hook: Hook) -> None:
    report, made = gradients(hook)
    assert not report.findings
    with precheck.watch():
        pass
    assert torch.equal(made, gradients(hook, before=True)[1])


def test_a_scale_that_is_taken_out_behind_the_backward_pass() -> None:
    """A hook hands on codes under one scale, and the gradients of the leaves are multiplied by it."""
    kept: list[torch.Tensor] = []

    def hook(g: torch.Tensor) -> torch.Tensor:
        codes, scale = to_float8(g, (0, 1))
        kept.append(scale)
        return codes.float()

    with precheck.watch() as report:
        x, w = normal(16, 64).requires_grad_(), channels()
        h = x @ w.t()
        h.register_hook(hook)
        (h * normal(16, 64, seed=3)).sum().backward()
        assert x.grad is not None
        (x.grad * kept[0]).to(LOW)
    assert not report.findings


def test_hooks_are_torchs_own_again_after_the_block() -> None:
    own = torch.Tensor.register_hook
    with precheck.watch():
        assert torch.Tensor.register_hook is not own
    assert torch.Tensor.register_hook is own


def test_a_scale_that_was_made_for_the_format_and_is_never_taken_out() -> None:
    """Data that leaves room below the end of the format, under a scale that takes the greatest number of another tensor there."""
    for bug in (True, False):
        with precheck.watch() as report:
            scale = (4 * normal(64, 32, seed=8)).abs().amax() / 448
            codes = (normal(24, 32, seed=4) / scale).to(torch.float8_e4m3fn)
            scores = normal(8, 32) @ codes.float().t() / 64
            torch.softmax(scores if bug else scores * scale, -1)
        assert [finding.rule for finding in report.errors] == ["wrong-scale"] * bug
