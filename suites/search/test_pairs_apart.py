"""`search(model, strategy, other=…)`: the input that tells two implementations apart, shrunk to what matters of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import precheck
from precheck.observe.job import InputError
from precheck.strategies import tensors


def gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x)


def cut(x: torch.Tensor) -> torch.Tensor:
    """The same up to 30, where somebody thought that nothing comes any more."""
    return torch.where(x < 30, torch.nn.functional.gelu(x), x * 0 + 30)


def by_erf(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.erf(x * 2**-0.5))


STRATEGY = tensors((2, (1, 6)), magnitude=(2**-4, 2**6))


def test_the_element_that_tells_them_apart_is_found_alone() -> None:
    found = precheck.search(gelu, STRATEGY, other=cut, precision="32-true", most=100)
    assert found is not None
    assert found.finding.rule == "different"
    assert [abs(value) > 30 for _, _, value in found.elements] == [True]
    assert "32-true breaks: different: output: other computes something else" in str(found)
    space: dict[str, Any] = {}
    exec(found.code(), space)
    assert precheck.compare(gelu, cut, space["inputs"]).verdict == "different"
    with pytest.raises(InputError, match="of two implementations"):
        found.save("test_it.py")


def test_two_that_are_the_same_function_give_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "precheck")
    assert precheck.search(gelu, tensors((2, (1, 6)), magnitude=(2**-4, 2)), other=by_erf, precision="32-true", most=30) is None
    assert "inputs breaks the model" not in caplog.text
    assert "inputs tells other from model under 32-true" in caplog.text


def test_rules_of_a_measurement_are_none_of_a_comparison() -> None:
    with pytest.raises(InputError, match="pass one or several of different, less-accurate"):
        precheck.search(gelu, STRATEGY, other=cut, rules="overflow")
    with pytest.raises(InputError, match="pass one or several of overflow, nan"):
        precheck.search(gelu, STRATEGY, rules="different")
