"""The fewest modules are found, and what is found has been tried."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from faulty import Functional, Rotated, Routed, Stack, Tied, around, job, measured, squared
from torch import nn

import precheck
from precheck.precisions import resolve
from precheck.remedies import Remedy, searched


def found(build: Callable[[], nn.Module], precision: str, inputs: Any = None, *, most: int = 24, **options: Any) -> Remedy | None:
    it = job(build, inputs, **options)
    report = measured(it, precision)
    assert report.errors, "the model has no fault to cure"
    return searched(it, resolve(precision), report, most=most)


def adam(lr: float) -> dict[str, Any]:
    return {"optimizer": lambda params: torch.optim.Adam(params, lr=lr), "steps": 3}


def normed() -> nn.Module:
    """A norm's weights are 1, where bfloat16 rounds away moves below 0.002; those of 16 columns are below 0.25: 0.0005."""
    return nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4))


def shifted(x: torch.Tensor) -> torch.Tensor:
    """There and back by 300, where bfloat16 keeps every other whole number."""
    return (x + 300) - 300


def cast(x: torch.Tensor) -> torch.Tensor:
    """Low whatever the module around it does."""
    return ((x.bfloat16() + 300) - 300).to(x.dtype)


CASES: dict[str, tuple[Callable[[], nn.Module], str, tuple[str, ...], dict[str, Any]]] = {
    "one norm of four": (lambda: Stack([2]), "16-true", ("blocks.2.norm",), {}),
    "two norms": (lambda: Stack([0, 3]), "16-true", ("blocks.0.norm", "blocks.3.norm"), {}),
    "three norms": (lambda: Stack([0, 1, 3]), "16-true", ("blocks.0.norm", "blocks.1.norm", "blocks.3.norm"), {}),
    "a site under autocast": (lambda: around(squared), "16-mixed", ("inner.site",), {}),
    "a site in bfloat16": (lambda: around(shifted), "bf16-true", ("inner.site",), {}),
    "a site with master weights": (lambda: around(shifted), "bf16-master", ("inner.site",), adam(1e-2)),
    "a site under fp8": (lambda: around(shifted), "fp8-e4m3-mixed", ("inner.site",), {}),
    "a rotary table": (Rotated, "bf16-true", ("rotary",), {}),
    "a router that gives back its logits": (Routed, "bf16-true", ("gate",), {}),
    "lost updates of a norm": (normed, "bf16-true", ("1",), adam(1e-3)),
    "code of a block": (lambda: nn.Sequential(nn.Linear(16, 16), Functional(squared)), "16-true", ("1",), {}),
    "code of the model": (lambda: Functional(squared), "16-true", ("",), {}),
    "what feeds the code of the model, mixed": (lambda: Functional(squared), "16-mixed", ("before",), {}),  # its float32 result stays float32
    "weights shared with a head": (Tied, "16-true", ("embed", "head"), {"inputs": torch.arange(16)}),
}


FUNCTIONS = {
    "a site under autocast": ("mul", "div"),
    "code of a block": ("mul", "div"),
    "code of the model": ("mul", "div"),
    "weights shared with a head": ("mul", "div"),
}
"""Where fewer than all functions of the modules need float32: `squared` and `Embedding` leave the range in a product and come back in a quotient.
Elsewhere all that a module calls is needed (there by 300 and back), or its weights are at fault."""


@functools.cache
def cured(name: str) -> Remedy:
    build, precision, _, options = CASES[name]
    cure = found(build, precision, **options)
    assert cure is not None
    return cure


@pytest.mark.parametrize("name", CASES)
def test_the_fewest_modules_are_found(name: str) -> None:
    cure = cured(name)
    assert cure.modules == CASES[name][2]
    assert cure.functions == FUNCTIONS.get(name, ())
    assert cure.minimal
    assert cure.report.errors == []
    assert 1 <= cure.runs <= 24


@pytest.mark.parametrize("name", CASES)
def test_the_printed_code_is_what_was_tried(name: str) -> None:
    """On a fresh model, without precheck, it gives the very numbers of the trial."""
    build, precision, _, options = CASES[name]
    cure = cured(name)
    again = job(build, **options)
    assert "precheck" not in cure.code
    exec(compile(cure.code, "pasted", "exec"), {"model": again.model})
    report = measured(again, precision)
    assert report.errors == []
    rows = [[row for row in each.boundaries if row.kind != "returned"] for each in (report, cure.report)]  # a module that is kept is another class
    assert rows[0] == rows[1]
    assert report.updates == cure.report.updates


def test_a_wide_model_is_bisected() -> None:
    """Nothing is blamed, and one of 32 parts is at fault. The model, its parts, then two for each of 5 halvings at most: 12 trials.
    Then all four of its functions together, and two for each of 2 halvings for both that are needed, and each left out: 11.
    """

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([around(squared if number == 20 else torch.tanh)[1][1] for number in range(32)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([part(x) for part in self.parts]).sum(0)

    it = job(Wide)
    report = measured(it, "16-true")
    blurred = precheck.Report(findings=[precheck.Finding("overflow", "error", "somewhere")], precision="16-true")
    cure = searched(it, resolve("16-true"), blurred)
    assert report.errors[0].module == "parts.20"
    assert cure is not None
    assert (cure.modules, cure.minimal) == (("parts.20",), True)
    assert cure.runs <= 12 + 11


@pytest.mark.parametrize("most", [2, 3, 5])
def test_out_of_trials_the_best_so_far_is_given_and_not_called_minimal(most: int) -> None:
    cure = found(lambda: Stack([0, 1, 3]), "16-true", most=most, loss=None)
    assert cure is not None
    assert not cure.minimal
    assert cure.runs == most
    assert cure.report.errors == []


def test_a_fault_that_all_modules_of_a_class_share_is_found_without_trying_each() -> None:
    cure = found(lambda: Stack(range(6), depth=6), "16-true", most=9, loss=None)
    assert cure is not None
    assert cure.modules == tuple(f"blocks.{number}.norm" for number in range(6))
    assert not cure.minimal  # after the three that found them, six trials cannot show that all six are needed: it takes ten


def test_updates_that_were_lost_are_kept_all_at_once() -> None:
    """Three trials: too few to follow one loss after another."""

    def build() -> nn.Module:
        return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.LayerNorm(16))), nn.Linear(16, 4))

    cure = found(build, "bf16-true", most=3, **adam(1e-3))
    assert cure is not None
    assert cure.modules == ("1", "3", "5", "7")


def test_weights_that_are_shared_are_kept_together_from_the_start() -> None:
    cure = found(Tied, "16-true", torch.arange(16), most=1)
    assert cure is not None
    assert cure.modules == ("embed", "head")


def test_out_of_trials_with_nothing_found_there_is_no_remedy() -> None:
    assert found(lambda: Stack([0, 1, 3]), "16-true", most=1) is None


@pytest.mark.parametrize("most", range(4, 12))
def test_out_of_trials_for_functions_the_modules_stand(most: int) -> None:
    """The block is found in 4 trials; to show which functions of it takes more than a dozen."""
    cure = found(lambda: nn.Sequential(nn.Linear(16, 16), Functional(squared)), "16-true", most=most)
    assert cure is not None
    assert cure.functions == ()
    note = "" if cure.minimal else "  # fewer may do: -o remedy_trials=24"
    assert cure.call.endswith(f"in_float32(model, {json.dumps(list(cure.modules))}){note}")


def test_functions_are_printed_as_code_to_paste() -> None:
    assert cured("code of a block").call == 'from precheck import functions_in_float32\nfunctions_in_float32(model, ["1"], ["mul", "div"])'


@pytest.mark.parametrize("most", [0, -1, True, 2.5])
def test_a_number_of_trials_that_is_none_is_refused(most: Any) -> None:
    with pytest.raises(precheck.InputError, match=r"most=.*a whole number from 1"):
        found(lambda: Stack([2]), "16-true", most=most)


def test_where_float32_does_not_help_there_is_no_remedy() -> None:
    assert found(lambda: Functional(cast), "bf16-true") is None
    assert found(lambda: around(cast), "bf16-mixed") is None


def test_a_healthy_run_needs_no_remedy() -> None:
    it = job(lambda: Stack([]))
    assert searched(it, resolve("16-true"), measured(it, "16-true")) is None


@pytest.mark.parametrize("precision", ["32-true", "64-true", "tf32"])
def test_precisions_that_store_nothing_low_have_no_remedy(precision: str) -> None:
    it = job(lambda: Stack([2]))
    failing = precheck.Report(findings=[precheck.Finding("accumulated-drift", "error", "", module="head")])
    assert searched(it, resolve(precision), failing) is None
