"""`compare_kernels`: what it says of right and of wrong kernels, and of what cannot be judged."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
import torch

import precheck
from precheck.observe.job import InputError

F = torch.nn.functional


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps=1e-6)


def written(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float()).to(x.dtype)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 32, generator=generator).to(dtype), torch.randn(32, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_kernel_that_keeps_float32_inside_passes_in_every_format(dtype: torch.dtype) -> None:
    report = precheck.compare_kernels(written, norm, inputs(dtype), trials=60)
    assert not report.errors, report.summary()
    assert report.verdict == "rounding"
    assert report.facts["trials"] >= 12
    assert {(row.kind, row.tensor) for row in report.boundaries} == {("output", "output"), ("gradient", "inputs[0]"), ("gradient", "inputs[1]")}


def test_an_error_has_its_class_its_place_and_code_that_rebuilds_its_inputs() -> None:
    def tile(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = written(x, weight)
        return rows if len(x) % 2 == 0 else torch.cat([rows[:-1], 2 * rows[-1:]])

    report = precheck.compare_kernels(tile, norm, inputs(), trials=70)
    [finding] = report.errors
    assert finding.rule == "kernel-edge"
    assert finding.tensor == "output"
    assert "in the example's sizes it is right" in finding.message
    space: dict[str, Any] = {}
    assert "the smallest inputs that fail:" in report.summary()
    assert all(line in report.summary() for line in report.facts["code"].splitlines())
    exec(report.facts["code"], space)
    x, weight = space["inputs"]
    assert len(x) % 2
    assert not torch.allclose(tile(x, weight), norm(x, weight))
    assert json.loads(report.to_json())["findings"][0]["rule"] == "kernel-edge"


def test_gradients_are_those_that_are_required_and_all_where_none_is() -> None:
    x, weight = inputs()
    report = precheck.compare_kernels(written, norm, (x, weight.requires_grad_()), trials=20)
    assert {(row.kind, row.tensor) for row in report.boundaries} == {("output", "output"), ("gradient", "inputs[1]")}
    report = precheck.compare_kernels(written, norm, inputs(), gradients=False, trials=20)
    assert {row.tensor for row in report.boundaries} == {"output"}


def test_a_clean_refusal_is_a_warning_and_a_crash_an_error() -> None:
    def even(x: torch.Tensor, weight: torch.Tensor, error: type[Exception] = ValueError) -> torch.Tensor:
        if x.shape[-1] % 2:
            raise error(f"{x.shape[-1]} columns: a multiple of 2 is needed")
        return written(x, weight)

    report = precheck.compare_kernels(even, norm, inputs(), trials=90)
    assert not report.errors
    (refused,) = [finding for finding in report.findings if "refuses" in finding.message]
    assert (refused.severity, refused.remedy.split(";")[0]) == ("warning", "take these inputs too")
    report = precheck.compare_kernels(lambda x, weight: even(x, weight, RuntimeError), norm, inputs(), trials=150)
    assert [finding.rule for finding in report.errors] == ["kernel-edge"]


def test_memory_that_runs_out_in_sizes_the_user_did_not_choose_is_no_fault() -> None:
    def hungry(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.numel() > 400:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 128.01 GiB.")
        return written(x, weight)

    report = precheck.compare_kernels(hungry, norm, inputs(), trials=150)
    assert report.verdict == "rounding", report.summary()


def test_a_number_of_trials_is_a_limit_that_hangs_on_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first in order; who sets seconds beside it is held to both."""
    made: list[tuple[int, ...]] = []

    def seen(x: torch.Tensor) -> torch.Tensor:
        made.append(tuple(x.shape))
        return x.sin()

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    first = precheck.compare_kernels(seen, torch.sin, x, trials=7)
    calls, made = made, []
    seconds = itertools.count(step=1000)
    monkeypatch.setattr("precheck.kernels.clock.time.thread_time", lambda: next(seconds))
    again = precheck.compare_kernels(seen, torch.sin, x, trials=7)
    assert first.facts["trials"] == again.facts["trials"] == 7
    assert calls == made
    assert first.facts["left_out_beyond_trials"] > 100
    assert (first.facts["left_out_for_time"], again.facts["left_out_for_time"]) == (0, 0)
    assert set(first.facts["not_tried"]) == {"from call to call", "other layouts", "Inf and NaN", "other sizes", "long sums"}
    assert precheck.compare_kernels(seen, torch.sin, x, trials=1).facts["trials"] == 1


def test_who_refuses_the_example_is_another_function() -> None:
    def refusing(x: torch.Tensor) -> torch.Tensor:
        raise TypeError("no such format")

    report = precheck.compare_kernels(refusing, torch.sin, torch.randn(3, 4), trials=10)
    assert [finding.rule for finding in report.errors] == ["kernel-contract"], report.summary()
    assert "the candidate refuses the example: TypeError: no such format" in report.errors[0].message


def test_a_module_is_judged_with_its_weights() -> None:
    torch.manual_seed(0)
    reference, candidate = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
    candidate.load_state_dict(reference.state_dict())
    assert not precheck.compare_kernels(candidate, reference, torch.randn(3, 8), trials=60).errors
    candidate.bias.data[0] += 0.01
    assert precheck.compare_kernels(candidate, reference, torch.randn(3, 8), trials=10).errors


def test_second_gradients_are_compared_where_they_are_asked_for() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x.detach())
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return 2 * gradient * ctx.saved_tensors[0]

    x = torch.randn(4, 5)
    assert not precheck.compare_kernels(Square.apply, torch.square, x, trials=60).errors
    report = precheck.compare_kernels(Square.apply, torch.square, x, gradients="double", trials=10)
    assert [each.rule for each in report.errors] == ["kernel-gradient"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"candidate": 3}, "candidate=3 cannot be called"),
        ({"inputs": []}, "inputs=\\[\\] has no example"),
        ({"inputs": (1, 2)}, "has no tensor"),
        ({"reference": lambda x: torch.dropout(x, 0.5, True), "inputs": torch.randn(9)}, "draws random numbers"),
        ({"reference": lambda x: x.view(7, 7), "inputs": torch.randn(9)}, "the reference raises RuntimeError on the example"),
        ({"budget": 0}, "budget=0; pass seconds"),
        ({"trials": 0}, "trials=0; pass how many trials to make at most, as in trials=100"),
        ({"trials": 2.5}, "trials=2.5; pass how many"),
        ({"trials": True}, "trials=True; pass how many"),
        ({"gradients": "third"}, "gradients='third'"),
        ({"sizes": ("a b c", "d")}, "gives 3 names"),
        ({"sizes": ("a a", "a")}, "names 'a' both 6 and 32"),
    ],
)
def test_what_cannot_be_judged_is_said_in_one_sentence(given: dict[str, Any], said: str) -> None:
    asked: dict[str, Any] = {"candidate": written, "reference": norm, "inputs": inputs(), **given}
    with pytest.raises(InputError, match=said):
        precheck.compare_kernels(**asked)


def test_the_users_tensors_and_random_state_come_back_as_they_were() -> None:
    x, weight = inputs()
    before, state = (x.clone(), weight.clone()), torch.get_rng_state()
    precheck.compare_kernels(lambda x, weight: written(x.mul_(1), weight), norm, (x, weight), trials=10)
    assert all(torch.equal(a, b) for a, b in zip((x, weight), before, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_softmax_may_differentiate_its_own_shift(seed: int) -> None:
    """What comes back by way of the largest score of a row is zero on paper; in float32 it is a rounding of the row's terms."""

    def shifted(x: torch.Tensor) -> torch.Tensor:
        powers = (x - x.amax(-1, keepdim=True)).exp() if x.shape[-1] else x
        return powers / powers.sum(-1, keepdim=True)

    torch.manual_seed(seed)
    report = precheck.compare_kernels(shifted, lambda x: torch.softmax(x, -1), (torch.randn(8, 64),), trials=176)
    assert not report.errors, report.summary()
    assert report.summary().startswith("no errors: 2 tensors compared")
    assert "gradient of inputs[0]" in report.summary()
    assert "gradient of gradient" not in report.summary()


def test_attention_whose_gradient_cancels_passes_in_tiles() -> None:
    """The gradient of a key that all queries weigh alike is zero on paper."""

    def online(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        most, total, out = q.new_full((*q.shape[:-1], 1), -math.inf), q.new_zeros(*q.shape[:-1], 1), torch.zeros_like(q)
        for start in range(0, k.shape[-2], 3):
            scores = q @ k[..., start : start + 3, :].mT / math.sqrt(q.shape[-1])
            now = torch.maximum(most, scores.amax(-1, keepdim=True))
            weights, keep = (scores - now).exp(), (most - now).exp()
            total, out, most = total * keep + weights.sum(-1, keepdim=True), out * keep + weights @ v[..., start : start + 3, :], now
        return out / total

    torch.manual_seed(0)
    q, k = torch.randn(2, 7, 8), torch.randn(2, 7, 8)
    report = precheck.compare_kernels(online, F.scaled_dot_product_attention, (q, k, torch.ones(2, 7, 8)), sizes=["b n d"] * 3, trials=80)
    assert not report.errors, report.summary()
