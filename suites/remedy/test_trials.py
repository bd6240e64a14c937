"""Trials: what they raise is no remedy and no failure, what they change is put back, and their yardstick is not blunted."""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from faulty import Functional, Norm, Site, Stack, around, job, measured, squared
from torch import nn
from torch.nn import functional

import precheck
from precheck.analysis.noise_floor.noise_sites import noise_for
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.job import Job
from precheck.observe.models import float32_parts
from precheck.observe.run import run
from precheck.observe.setting import low, reference
from precheck.precisions import resolve
from precheck.remedies import Remedy, searched

HALF = resolve("16-true")


def blaming(module: str) -> precheck.Report:
    return precheck.Report(precision="16-true", findings=[precheck.Finding("overflow", "error", "Inf", module=module)])


class Picky(Norm):
    """Cannot be kept itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not hasattr(self, "keep_in_float32"), "not this one"
        return super().forward(x)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The modules of each trial that kept whole modules, in order."""
    seen, exempted = [], float32_parts.exempted

    def remembered(model: nn.Module, names: Sequence[str], functions: Container[str] = ()) -> AbstractContextManager[None]:
        if functions == ():
            seen.append(tuple(names))
        return exempted(model, names, functions)

    monkeypatch.setattr(float32_parts, "exempted", remembered)
    return seen


class Borrowing(nn.Module):
    """Uses its child's weight without calling the child, and is itself at fault."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return squared(functional.linear(x, self.proj.weight, self.proj.bias))


def test_a_trial_that_raises_is_no_remedy() -> None:
    it = job(lambda: nn.Sequential(nn.Linear(16, 16), Picky(16, faulty=True)))
    assert measured(it, "16-true").errors
    cure = searched(it, HALF, blaming("1"))
    assert cure is not None
    assert cure.modules == ("",), "the norm itself cannot be kept; within a model that is kept whole it is handed float32 like any other"


def test_where_a_child_is_not_called_its_parent_is_kept(tried: list[tuple[str, ...]]) -> None:
    it = job(lambda: nn.Sequential(nn.Linear(16, 16), Borrowing(), nn.Linear(16, 4)))
    cure = searched(it, HALF, blaming("1.proj"))
    assert cure is not None
    assert cure.modules == ("1",)
    assert cure.minimal
    assert tried == [("1.proj",), ("1",)]


def test_a_list_of_modules_is_nobodys_parent(tried: list[tuple[str, ...]]) -> None:
    """It is never called, so to keep it would be a trial wasted."""

    class Listing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([nn.Linear(16, 16)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return squared(functional.linear(x, self.parts[0].weight))

    cure = searched(job(Listing), HALF, blaming("parts.0"))
    assert cure is not None
    assert (cure.modules, cure.minimal) == (("",), True)
    assert tried == [("parts.0",), ("",)]


def test_blame_that_misses_is_mended_by_looking_elsewhere() -> None:
    it = job(lambda: around(squared))
    for module in ("after", "inner.second", "no.such.module", ""):
        cure = searched(it, HALF, blaming(module))
        assert cure is not None
        assert cure.modules == ("inner.site",)


def test_a_module_whose_parts_are_all_needed_is_named_itself() -> None:
    it = job(lambda: nn.Sequential(nn.Linear(16, 16), nn.Sequential(Site(squared), Site(squared), Site(squared)), nn.Linear(16, 4)))
    cure = searched(it, HALF, blaming("1"))
    assert cure is not None
    assert (cure.modules, cure.minimal) == (("1",), True)


class Oracle:
    """Stands in for measurements: passes if every culprit is kept, and no spoiler whose antidote is not."""

    def __init__(self, seed: int, names: list[str]) -> None:
        chosen = random.Random(seed)
        self.culprits, self.first = chosen.sample(names, chosen.randint(1, 5)), chosen.choice([*names, ""])
        self.passed: list[int] = []  # how many modules were inside
        self.spoilers = [tuple(chosen.sample(names, 2)) for _ in range(chosen.choice([0, 0, 2, 6]))]

    def passes(self, kept: Sequence[str]) -> bool:
        spoiled = any(self.within(spoiler, kept) and not self.within(antidote, kept) for spoiler, antidote in self.spoilers)
        return all(self.within(culprit, kept) for culprit in self.culprits) and not spoiled

    @staticmethod
    def within(name: str, kept: Sequence[str]) -> bool:
        return any(not other or f"{name}.".startswith(f"{other}.") for other in kept)

    def report(self, model: nn.Module) -> precheck.Report:
        kept = [name for name, module in model.named_modules() if hasattr(module, "keep_in_float32")]
        if not self.passes(kept):
            return blaming(self.first)
        self.passed.append(sum(self.within(name, kept) for name, _ in model.named_modules()))
        return precheck.Report()


def asked(seed: int, monkeypatch: pytest.MonkeyPatch, most: int) -> tuple[Remedy | None, Oracle, Job]:
    it = job(lambda: nn.Sequential(*(nn.Sequential(*(nn.Sequential(nn.Identity(), nn.Identity()) for _ in range(3))) for _ in range(3))))
    oracle = Oracle(seed, [name for name, module in it.model.named_modules() if isinstance(module, nn.Identity)])

    class Measured:
        def __init__(self, it: Job, precision: precheck.Precision, **options: Any) -> None:
            self.model = it.model

        def report(self) -> precheck.Report:
            return oracle.report(self.model)

    monkeypatch.setattr("precheck.remedies.Measurement", Measured)
    assert not oracle.passes([])
    return searched(it, HALF, blaming(oracle.first), most=most), oracle, it


@pytest.mark.parametrize("seed", range(40))
def test_out_of_trials_the_smallest_set_that_passed_is_given(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cure, oracle, it = asked(seed, monkeypatch, most=3 + seed % 10)
    assert cure is not None, "the whole model passes"
    assert cure.runs <= 3 + seed % 10
    if not cure.minimal:
        assert sum(oracle.within(name, cure.modules) for name, _ in it.model.named_modules()) == min(oracle.passed)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_called_minimal_passes_and_nothing_of_it_can_be_left_out(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever passes and fails: also where keeping one module asks for keeping another."""
    cure, oracle, it = asked(seed, monkeypatch, most=500)
    leaves = [name for name, module in it.model.named_modules() if isinstance(module, nn.Identity)]
    assert cure is not None, "the whole model passes"
    assert oracle.passes(cure.modules)
    for name in cure.modules:
        assert not cure.minimal or not oracle.passes([other for other in cure.modules if other != name])
    if not oracle.spoilers:
        assert cure.minimal
        assert {name for name in leaves if oracle.within(name, cure.modules)} == set(oracle.culprits)


def test_what_stops_the_user_stops_the_search_and_nothing_is_left_behind() -> None:
    calls = []

    def change(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.dtype)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return x

    it = job(lambda: Functional(change), loss=None)
    classes, values = [type(module) for module in it.model.modules()], {name: value.clone() for name, value in it.model.state_dict().items()}
    calls.append(torch.float32)
    with pytest.raises(KeyboardInterrupt):
        searched(it, HALF, blaming("before"))
    assert [type(module) for module in it.model.modules()] == classes
    assert all(torch.equal(value, values[name]) for name, value in it.model.state_dict().items())


def test_the_model_and_the_process_come_back_bit_for_bit() -> None:
    it = job(lambda: Stack([1], depth=2), optimizer=lambda params: torch.optim.SGD(params, lr=1e-2), steps=2)
    it.model.head.weight.grad = torch.ones_like(it.model.head.weight)
    held = {name: (value.data_ptr(), value.dtype, value.clone()) for name, value in it.model.state_dict().items()}
    inside = [(module, type(module), list(module.__dict__), len(module._forward_hooks)) for module in it.model.modules()]
    report = measured(it, "16-true")
    drawn = torch.get_rng_state(), random.getstate()
    assert searched(it, HALF, report) is not None
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert random.getstate() == drawn[1]
    assert not torch.is_autocast_enabled("cpu")
    for module, kind, names, hooks in inside:
        assert (type(module), list(module.__dict__), len(module._forward_hooks)) == (kind, names, hooks)
    for name, value in it.model.state_dict().items():
        assert (value.data_ptr(), value.dtype) == held[name][:2]
        assert torch.equal(value, held[name][2])
    assert torch.equal(it.model.head.weight.grad, torch.ones(4, 16))


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_weights_that_are_kept_are_neither_rounded_nor_disturbed(precision: str) -> None:
    """Or the noise floor would excuse errors that a float32 module does not make."""
    seen: dict[str, torch.Tensor] = {}

    class Watched(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen["weight"] = self.weight.detach().clone()
            return super().forward(x)

    it = job(lambda: nn.Sequential(Watched(16, 16), nn.Linear(16, 4)))
    exact, chosen = it.model[0].weight.detach().clone(), resolve(precision)

    def weight_in(noisy: bool) -> torch.Tensor:
        trace = run(it, low(chosen))
        if noisy:
            run(it, reference(torch.float32, chosen, disturbance=noise_for(it.model, trace, DecisionLog(), chosen, seed=1)))
        return seen["weight"]

    assert weight_in(False).dtype is chosen.compute_dtype
    assert not torch.equal(weight_in(True), exact)
    with float32_parts.exempted(it.model, ["0"]):
        assert torch.equal(weight_in(False), exact)
        assert torch.equal(weight_in(True), exact)
