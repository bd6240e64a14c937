"""Weights that one model has in parts, joined, folded or in another form: the module named has the fault, and not only a part of the work."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precheck

W = 12
X = torch.randn(3, 5, W, generator=torch.Generator().manual_seed(1))


class Adapted(nn.Module):
    """A linear layer with an adapter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(W, W), nn.Linear(W, 2, bias=False), nn.Linear(2, W, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class Blocks(nn.Module):
    """Blocks of a norm and two layers. `kind`: what the second layer is."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(W), "first": nn.Linear(W, W), "second": kind() if kind is Adapted else nn.Linear(W, W)})
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block["second"](F.gelu(block["first"](block["norm"](x))))  # type: ignore[index]
        return x


class Ported(nn.Module):
    """Blocks under another name, as a port has them."""

    def __init__(self, inner: Blocks) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"layers": inner})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model["layers"](x)  # type: ignore[no-any-return]


def merged(left: int | None = None) -> tuple[Blocks, Ported]:
    """A model with adapters, and the same with all of them merged but the one in the block `left`."""
    torch.manual_seed(0)
    model, other = Blocks(Adapted), Blocks(nn.Linear)
    for number, (ours, theirs) in enumerate(zip(model.blocks, other.blocks, strict=True)):
        adapted = ours["second"]  # type: ignore[index]
        for name in ("norm", "first"):
            theirs[name].load_state_dict(ours[name].state_dict())  # type: ignore[index]
        theirs["second"].load_state_dict(adapted.base.state_dict())  # type: ignore[index]
        if number != left:
            theirs["second"].weight.data += adapted.up.weight.data @ adapted.down.weight.data  # type: ignore[index]
    return model, Ported(other)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_an_adapter_that_was_not_merged_is_named(precision: str) -> None:
    assert not precheck.compare(*merged(), X, precision=precision).errors
    for left in range(3):
        (error, *_) = precheck.compare(*merged(left), X, precision=precision).errors
        assert error.module == f"model.layers.blocks.{left}.second", error


class Whole(nn.Module):
    """Layers whose second half is whole."""

    def __init__(self) -> None:
        super().__init__()
        self.norms, self.up, self.down = (nn.ModuleList(made() for _ in range(3)) for made in (
            lambda: nn.LayerNorm(W), lambda: nn.Linear(W, 4 * W), lambda: nn.Linear(4 * W, W)))  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(F.gelu(up(norm(x))))
        return x


class Shard(nn.Module):
    """Rows of one weight and columns of the next. The first shard has the bias."""

    def __init__(self, up: nn.Linear, down: nn.Linear, rank: int, biased: bool) -> None:
        super().__init__()
        part = slice(rank * 2 * W, (rank + 1) * 2 * W)
        self.up, self.down = nn.Linear(W, 2 * W), nn.Linear(2 * W, W, bias=biased)
        self.up.weight.data, self.up.bias.data = up.weight.data[part].clone(), up.bias.data[part].clone()
        self.down.weight.data = down.weight.data[:, part].clone()
        if biased:
            self.down.bias.data = down.bias.data.clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))  # type: ignore[no-any-return]


class Sharded(nn.Module):
    """The same in two shards. `twice`: a layer where both add the bias; `lost`: one where only the first shard counts."""

    def __init__(self, model: Whole, twice: int = -1, lost: int = -1) -> None:
        super().__init__()
        self.lost, self.norms = lost, copy.deepcopy(model.norms)
        self.shards = nn.ModuleList(
            nn.ModuleList(Shard(up, down, rank, rank == 0 or number == twice) for rank in range(2))  # type: ignore[arg-type]
            for number, (up, down) in enumerate(zip(model.up, model.down, strict=True))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, (norm, shards) in enumerate(zip(self.norms, self.shards, strict=True)):
            parts = [shard(norm(x)) for shard in shards]  # type: ignore[union-attr]
            x = x + sum(parts[:1] if number == self.lost else parts)
        return x


@pytest.mark.parametrize(
    ("fault", "named"),
    [({}, None), ({"twice": 1}, "shards.1.1.down"), ({"twice": 0}, "shards.0.1.down"), ({"lost": 1}, ""), ({"lost": 0}, "")],
)
def test_parts_of_a_sum_are_not_blamed(fault: dict[str, Any], named: str | None) -> None:
    torch.manual_seed(0)
    model = Whole()
    errors = precheck.compare(model, Sharded(model, **fault), X, loss=lambda out: out.square().mean()).errors
    assert [error.module for error in errors[:1]] == ([] if named is None else [named]), errors


class Experts(nn.Module):
    """Each row goes to one of three experts, whose weights are stacked. `kind`: the rows of each, or all rows for all, with layers of their own."""

    def __init__(self, kind: str = "rows", act: Any = F.gelu) -> None:
        super().__init__()
        self.kind, self.act, self.gate, self.last = kind, act, nn.Linear(W, 3, bias=False), nn.Linear(W, W)
        if kind == "rows":
            self.one, self.two = nn.Parameter(torch.randn(3, W, W)), nn.Parameter(torch.randn(3, W, W))
        else:
            self.one, self.two = (nn.ModuleList(nn.Linear(W, W, bias=False) for _ in range(3)) for _ in range(2))  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.gate(x).argmax(-1)
        made = torch.zeros_like(x)
        for number, (one, two) in enumerate(zip(self.one, self.two, strict=True)):
            mine = chosen == number
            if self.kind == "rows":
                made[mine] = F.linear(self.act(F.linear(x[mine], one)), two)
            else:
                made = made + two(self.act(one(x))) * mine[..., None]
        return self.last(made)


@pytest.mark.parametrize("act", [F.gelu, F.silu])
def test_layers_that_are_given_more_rows_are_not_blamed(act: Any) -> None:
    torch.manual_seed(0)
    model, other = Experts(), Experts("all", act)
    other.gate.load_state_dict(model.gate.state_dict()), other.last.load_state_dict(model.last.state_dict())
    for name in ("one", "two"):
        for layer, weight in zip(getattr(other, name), getattr(model, name), strict=True):
            layer.weight.data = weight.data.clone()
    errors = precheck.compare(model, other, X).errors
    assert [error.module for error in errors[:1]] == ([] if act is F.gelu else [""]), errors


class Words(nn.Module):
    """A table of words and a head. `sparse`: whether the table's gradient is a sparse tensor; `factor`: of its gradient."""

    def __init__(self, sparse: bool, factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.words, self.head = factor, nn.Embedding(9, W, sparse=sparse), nn.Linear(W, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        return self.head(x.detach() + (x - x.detach()) * self.factor)


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-true"])
def test_a_sparse_gradient_is_the_numbers_it_stands_for(precision: str) -> None:
    torch.manual_seed(0)
    ids = torch.tensor([[1, 5, 5], [0, 5, 8]])
    model = Words(False)
    for other, wrong in ((Words(True), False), (Words(True, 1.5), True)):
        other.load_state_dict(model.state_dict())
        report = precheck.compare(model, other, ids, precision=precision, loss=lambda out: out.float().square().mean())
        assert [error.tensor for error in report.errors[:1]] == (["words.weight"] if wrong else []), report.summary()
        assert any(row.tensor == "gradient of words.weight" or row.kind == "parameter-gradient" for row in report.boundaries)


@pytest.mark.parametrize("rounded", [True, False])
def test_a_quantised_weight_is_the_numbers_it_stands_for(rounded: bool) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)).requires_grad_(False)
    other = copy.deepcopy(model)
    quantization.quantize_(other, quantization.Int8WeightOnlyConfig())
    for place in (0, 2) if rounded else (0,):
        model[place].weight.data = other[place].weight.dequantize().clone()
    errors = precheck.compare(model, other, torch.randn(5, 32)).errors
    assert [error.module for error in errors[:1]] == ([] if rounded else ["2"]), errors


class Magnitude(nn.Module):
    """The magnitude of a complex product, with one complex weight or with two real ones. `factor`: of the imaginary part."""

    def __init__(self, whole: torch.Tensor, real: bool = False, factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.head, parts = factor, nn.Linear(W, 3), {"re": whole.real, "im": whole.imag} if real else {"whole": whole}
        self.parts = nn.ParameterDict({name: nn.Parameter(part.clone()) for name, part in parts.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "whole" in self.parts:
            return self.head((x.to(torch.complex64) @ self.parts["whole"]).abs())
        return self.head(((x @ self.parts["re"]).square() + (self.factor * (x @ self.parts["im"])).square()).sqrt())


@pytest.mark.parametrize("factor", [1.0, 0.9])
def test_a_complex_weight_is_not_its_real_part(factor: float) -> None:
    torch.manual_seed(0)
    whole = torch.randn(W, W, dtype=torch.complex64)
    model, other = Magnitude(whole), Magnitude(whole, True, factor)
    other.head.load_state_dict(model.head.state_dict())
    report = precheck.compare(model, other, X, loss=lambda out: out.square().mean())
    assert bool(report.errors) == (factor != 1), report.summary()
    assert report.facts["unmatched_in_model"] == ["parts.whole"]
