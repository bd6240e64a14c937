"""Flags among the arguments are turned: what is wrong in the other setting is a warning, and nothing is said where that setting cannot be judged."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

import precheck
from precheck.kernels import beyond_example, dimensions, examples
from precheck.kernels.bench import Bench
from precheck.kernels.running import Wishes
from precheck.kernels.states import State

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def shares(x: torch.Tensor, logs: bool = False) -> torch.Tensor:
    return x.log_softmax(-1) if logs else x.softmax(-1)


def warned(candidate: Any, reference: Any, inputs: Any) -> list[str]:
    """What is said of other settings of the flags."""
    example = examples.read(inputs, None, True)[0]
    found = list(beyond_example.turned_flags(Bench(candidate, reference, example, dimensions.of(example), Wishes()), State(candidate)))
    assert {rule for rule, _ in found} <= {"kernel-contract"}
    return [text for _, text in found]


def ignores(x: torch.Tensor, logs: bool = False) -> torch.Tensor:
    return shares(x, logs=False)


def test_a_flag_that_is_ignored_is_a_warning() -> None:
    report = precheck.compare_kernels(ignores, shares, {"x": X, "logs": False}, trials=110)
    assert not report.errors, report.summary()
    told = [each.message for each in report.findings if "refuse True" in each.message]
    assert len(told) == 1
    assert "where inputs[logs] is True, which the reference takes, and not False as in the example" in told[0]
    assert len(warned(ignores, shares, (X, False))) == 1


def test_a_kernel_that_takes_both_settings_or_refuses_one_is_not_warned_of() -> None:
    def refuses(x: torch.Tensor, logs: bool = False) -> torch.Tensor:
        if logs:
            raise ValueError("logarithms are not given")
        return shares(x)

    def both(x: torch.Tensor, logs: bool = False) -> torch.Tensor:
        found = x - x.logsumexp(-1, keepdim=True)
        return found if logs else found.exp()

    assert warned(both, shares, (X, False)) == warned(refuses, shares, (X, False)) == []


def test_a_setting_that_the_reference_refuses_or_that_draws_random_numbers_is_not_judged() -> None:
    def refuses(x: torch.Tensor, logs: bool = False) -> torch.Tensor:
        if logs:
            raise ValueError("logarithms are not given")
        return shares(x)

    def draws(x: torch.Tensor, training: bool = False) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, training)

    assert warned(ignores, refuses, (X, False)) == warned(lambda x, training=False: x * 1, draws, (X, False)) == []


def test_what_the_reference_does_too_is_not_told() -> None:
    def relu(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        return x.detach().relu_() if inplace else x.relu()

    assert warned(relu, relu, (X, False)) == []


def test_each_flag_is_turned_alone_wherever_it_is() -> None:
    @dataclasses.dataclass
    class Wishes:
        causal: bool
        scale: float

    example = examples.read(({"x": X, "one": True}, [False, 1], Wishes(causal=False, scale=2.0)), None, True)[0]
    found = [(path, flag, changed.inputs) for path, flag, changed in example.turned()]
    assert [(path, flag) for path, flag, _ in found] == [("[0][one]", True), ("[1][0]", False), ("[2][causal]", False)]
    settings = [(inputs[0]["one"], inputs[1][0], inputs[2].causal) for _, _, inputs in found]
    assert settings == [(False, False, False), (True, True, False), (True, False, True)]
    assert all(inputs[0]["x"] is X and inputs[1][1] == 1 for _, _, inputs in found)
