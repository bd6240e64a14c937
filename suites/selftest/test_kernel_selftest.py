"""The self-test of kernels: a judge that can fail catches what is planted, and where it cannot, the outcome says which fault, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from precheck.selftests.checks import Outcome
from precheck.selftests.kernels import FAULTS, kernel_selftested


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6)


def by_hand(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * w.float()).to(x.dtype)


def data(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 12, generator=generator).to(dtype), torch.randn(12, generator=generator).to(dtype)


def asked(found: list[Outcome]) -> dict[str, str]:
    assert tuple(each.fault for each in found) == FAULTS
    return {each.fault: each.status for each in found}


ALL_CAUGHT = dict.fromkeys(FAULTS, "caught")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_that_is_right_would_have_failed_with_each_fault(dtype: torch.dtype) -> None:
    before = torch.get_rng_state()
    found = kernel_selftested(by_hand, norm, data(dtype))
    assert asked(found) == ALL_CAUGHT
    scaled = found[2]
    assert scaled.size is not None
    assert scaled.size < (0.2 if dtype == torch.bfloat16 else 1e-4), "the size that is noticed is the judge's own, not a factor of two"
    assert scaled.text.startswith("what the candidate returns is scaled, which changes it by ")
    assert found[4].rule == "kernel-gradient"
    assert torch.equal(torch.get_rng_state(), before)


def test_gradients_that_nobody_compares_are_not_asked_about() -> None:
    found = kernel_selftested(by_hand, norm, data(), gradients=False)
    assert asked(found) == {**ALL_CAUGHT, "gradient": "inapplicable"}
    places = kernel_selftested(lambda x: x.argmax(-1), lambda x: x.argmax(-1), data()[0])
    assert asked(places) == {**ALL_CAUGHT, "scaled": "inapplicable", "gradient": "inapplicable"}


def test_a_result_that_ignores_its_inputs_shows_neither_a_stale_one_nor_a_gradient() -> None:
    def ones(x: torch.Tensor) -> torch.Tensor:
        return x * 0 + 1

    found = kernel_selftested(ones, ones, data()[0])
    assert asked(found) == {"zeroed": "caught", "shuffled": "same", "scaled": "caught", "stale": "unnoticed", "gradient": "unnoticed"}
    assert found[3].text.endswith("which changes it by 0%")
    assert "look whether the kernel reads them at all" in found[3].advice


@pytest.mark.parametrize("settings", [{"allow": {"kernel-gradient": "a reason"}}, {"tolerated": ["kernel-gradient"]}])
def test_what_is_allowed_is_no_catch(settings: dict[str, Any]) -> None:
    found = kernel_selftested(by_hand, norm, data(), **settings)
    assert asked(found) == {**ALL_CAUGHT, "gradient": "allowed"}


def test_the_precision_is_that_of_the_check_and_the_kernel_is_as_it_was() -> None:
    calls = []

    def counting(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.bfloat16:
            raise TypeError("bfloat16 is needed")
        calls.append(x)
        return by_hand(x, w)

    assert asked(kernel_selftested(counting, norm, data(), precision="bf16-true")) == ALL_CAUGHT
    assert not calls, "what the kernel keeps comes back"
