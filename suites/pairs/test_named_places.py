"""Which module is named, where parts of a module differ that together return the same, or where the modules are not called as usual."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import precheck

X = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
MEAN: dict[str, Any] = {"loss": lambda out: out.square().mean()}


class Block(nn.Module):
    """A layer of a network. `factor`: of what it returns; 1.1 is the fault."""

    def __init__(self, kind: str = "plain", factor: float = 1.0) -> None:
        super().__init__()
        self.kind, self.factor = kind, factor
        self.gate, self.experts = nn.Linear(16, 2), nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = (self.gate(x)[:, :1] > 0).to(x.dtype)
        if self.kind == "plain":  # all rows to both
            made = first * self.experts[0](x) + (1 - first) * self.experts[1](x)
        elif self.kind == "rows":  # to each its own rows
            made = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows = (first[:, 0] == 1 - number).nonzero()[:, 0]
                made = made.index_add(0, rows, expert(x[rows]))
        else:
            weights = {name: torch.stack([each.get_parameter(name) for each in self.experts]) for name in ("0.weight", "0.bias")}
            both = torch.vmap(lambda given: torch.func.functional_call(self.experts[0], given, (x,)))(weights)
            made = first * both[0] + (1 - first) * both[1]
        return made * self.factor


def networks(kind: str, factor: float) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model, other = (nn.Sequential(nn.Linear(16, 16), Block(each), Block(each, by), nn.Linear(16, 3)) for each, by in (("plain", 1.0), (kind, factor)))
    other.load_state_dict(model.state_dict())
    return model, other


@pytest.mark.parametrize("kind", ["rows", "vmap"])
def test_what_a_block_makes_up_for_is_no_fault(kind: str) -> None:
    assert not precheck.compare(*networks(kind, 1.0), X, **MEAN).errors
    for precision in ("32-true", "bf16-mixed"):
        report = precheck.compare(*networks(kind, 1.1), X, precision=precision, **MEAN)
        assert report.verdict == "different"
        assert report.errors[0].module == "2"


def test_a_module_whose_parts_hold_other_numbers() -> None:
    """A layer's scale lies in the layer after it. The block returns the same, and a block after it does not."""

    def network(scale: float, fault: float) -> nn.Module:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), *(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2)))
        with torch.no_grad():
            for block in (net[1], net[2]):
                for value in block[0].parameters():  # type: ignore[index, union-attr]
                    value.mul_(scale)
                block[2].weight.div_(scale)  # type: ignore[index, union-attr]
            net[2][2].weight.mul_(fault)  # type: ignore[index]
        return net.requires_grad_(False)

    assert not precheck.compare(network(1.0, 1.0), network(4.0, 1.0), X[:, :8]).errors
    report = precheck.compare(network(1.0, 1.0), network(4.0, 1.1), X[:, :8])
    assert report.verdict == "different"
    assert report.errors[0].module.startswith("2")


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_an_exported_program_has_its_modules(factor: float) -> None:
    model, other = networks("plain", factor)
    report = precheck.compare(model, torch.export.export(other, (X,)), X, **MEAN)
    assert [each.module for each in report.errors[:1]] == ([] if factor == 1.0 else ["2"])


@pytest.mark.parametrize("spoiled", [False, True])
def test_a_model_that_is_run_on_other_weights(spoiled: bool) -> None:
    """The function holds the model for its code, and a copy for its weights, which get the gradients."""
    model, _ = networks("plain", 1.0)
    copied = copy.deepcopy(model)

    def other(x: torch.Tensor) -> torch.Tensor:
        held = dict(copied.named_parameters())
        weights = held | {"3.weight": held["3.weight"].detach()} if spoiled else held
        made: torch.Tensor = torch.func.functional_call(model, weights, (x,))
        return made

    run: Callable[..., torch.Tensor] = other
    report = precheck.compare(model, run, X, **MEAN)
    said = [each.message for each in report.errors]
    assert said[:1] == [each for each in said if "has one, and other has none" in each]
    assert bool(said) == spoiled
    if spoiled:
        assert "3.weight" in said[0]


class Recomputed(nn.Module):
    """A branch with dropout, which the backward pass computes again. `kept`: with the same random numbers."""

    def __init__(self, kept: bool = True) -> None:
        super().__init__()
        self.kept, self.up, self.down = kept, nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def branch(x: torch.Tensor) -> torch.Tensor:
            return self.down(nn.functional.dropout(self.up(x), 0.3, self.training))  # type: ignore[no-any-return]

        return x + checkpoint(branch, x, use_reentrant=False, preserve_rng_state=self.kept)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kept", [True, False])
def test_a_part_that_is_recomputed_with_other_random_numbers_is_named(kept: bool) -> None:
    model, other = (nn.Sequential(nn.Linear(16, 16), Recomputed(), Recomputed(each)) for each in (True, kept))
    other.load_state_dict(model.state_dict())
    report = precheck.compare(model, other, X, **MEAN)
    assert [each.module for each in report.errors[:1]] == ([] if kept else ["2"])
    if not kept:
        said = "they first differ in module 2: as the backward pass computes it again, its parts get other numbers than in the forward pass"
        assert said in report.errors[0].message


@pytest.mark.parametrize("fault", ["", "nearer", "torch's"])
def test_a_fault_is_named_where_one_model_has_more_rows(fault: str) -> None:
    """Two sequences in one row beside the same padded. The rows of padding differ too, but no loss reads them."""

    class Mean(nn.Module):
        """Each token gets the mean of the tokens of its sequence up to its own."""

        def __init__(self, fault: str = "") -> None:
            super().__init__()
            self.fault, self.out = fault, nn.Linear(16, 16)

        def forward(self, x: torch.Tensor, ends: tuple[int, ...] = ()) -> torch.Tensor:
            parts = x.tensor_split(ends, 1) if ends else (x,)
            sums = torch.cat([each.cumsum(1) / torch.arange(1, each.shape[1] + 1)[:, None] for each in parts], 1)
            made = x + self.out(sums.roll(1, 1) if self.fault == "nearer" else sums).tanh()
            return made + 0.1 * self.out.bias if self.fault == "torch's" else made

    class Padded(nn.Module):
        def __init__(self, packed: bool = False, fault: str = "") -> None:
            super().__init__()
            self.packed, self.inside, self.parts = packed, nn.Linear(16, 16), nn.ModuleList([Mean(), Mean(fault)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.inside(torch.cat([x[0], x[1, :3]])[None] if self.packed else x)
            for part in self.parts:
                x = part(x, (6,)) if self.packed else part(x)
            return x[0] if self.packed else torch.cat([x[0], x[1, :3]])

    torch.manual_seed(0)
    model, other = Padded(), Padded(True, fault)
    other.load_state_dict(model.state_dict())
    report = precheck.compare(model, other, torch.stack([X, X.flip(0)]), **MEAN)
    assert [each.module for each in report.errors[:1]] == (["parts.1"] if fault else [])
