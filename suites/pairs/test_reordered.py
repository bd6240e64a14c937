"""Weights whose rows were reordered when they were converted, as pairs of a head to halves: gradients are compared in that order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import precheck

SIZE = 6


class Turned(nn.Module):
    """Pairs of features turned by an angle each: neighbours, or elements of two halves."""

    def __init__(self, halves: bool = False, gain: float = 1.0) -> None:
        super().__init__()
        self.halves, self.gain, self.q, self.last = halves, gain, nn.Linear(5, SIZE), nn.Linear(SIZE // 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, angles = self.q(x), torch.arange(1.0, SIZE // 2 + 1)
        one, two = q.chunk(2, -1) if self.halves else (q[..., ::2], q[..., 1::2])
        return self.gain * self.last((one * angles.cos() - two * angles.sin()).tanh())


def pair(permuted: bool = True, gain: float = 1.0) -> tuple[Turned, Turned]:
    torch.manual_seed(0)
    model, other = Turned(), Turned(halves=True, gain=gain)
    other.load_state_dict(model.state_dict())
    if permuted:
        order = [*range(0, SIZE, 2), *range(1, SIZE, 2)]
        other.q.weight.data, other.q.bias.data = model.q.weight.data[order], model.q.bias.data[order]
    return model, other


X = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_rows_in_another_order_are_the_same_rows(precision: str) -> None:
    report = precheck.compare(*pair(), X, precision=precision)
    assert report.verdict in ("bitwise", "rounding"), report.summary()


def test_rows_as_they_were_are_told_with_the_layer() -> None:
    (error, *_) = precheck.compare(*pair(permuted=False), X).errors
    assert error.module == "", error  # the model's own code takes the rows in the other order


def test_a_reordered_layer_is_not_the_first_that_differs() -> None:
    (error, *_) = precheck.compare(*pair(gain=0.9), X).errors
    assert error.module == "", error
    assert "gain is 0.9" in error.message


class Cell(nn.Module):
    """An LSTM with its gates in the order input, output, forgotten, new, and one bias for the sum of two."""

    def __init__(self, given: nn.LSTM, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain
        self.inward, self.onward = (nn.Parameter(self.ordered(each)) for each in (given.weight_ih_l0, given.weight_hh_l0))
        self.bias = nn.Parameter(self.ordered(given.bias_ih_l0) + self.ordered(given.bias_hh_l0))

    @staticmethod
    def ordered(weight: torch.Tensor) -> torch.Tensor:
        enter, keep, new, leave = weight.detach().chunk(4)
        return torch.cat([enter, leave, keep, new])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = memory = torch.zeros_like(x[:, 0])
        made = []
        for place in range(x.shape[1]):
            gates = nn.functional.linear(x[:, place], self.inward, self.bias) + nn.functional.linear(state, self.onward)
            enter, leave, keep, new = gates.chunk(4, -1)
            memory = torch.sigmoid(keep) * memory + torch.sigmoid(enter) * torch.tanh(new)
            state = torch.sigmoid(leave) * torch.tanh(self.gain * memory)
            made.append(state)
        return torch.stack(made, 1)


class Read(nn.Module):
    def __init__(self, *cells: nn.Module) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cells)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for cell in self.cells:
            made = cell(x)
            x = x + (made[0] if isinstance(made, tuple) else made)
        return x


@pytest.mark.parametrize("faulty", [None, 0, 1])
def test_a_cell_that_reads_its_gates_in_another_order_is_compared_with_model_s(faulty: int | None) -> None:
    torch.manual_seed(0)
    ours = [nn.LSTM(5, 5, batch_first=True) for _ in range(2)]
    theirs = [Cell(each, gain=0.9 if place == faulty else 1.0) for place, each in enumerate(ours)]
    report = precheck.compare(Read(*ours), Read(*theirs), torch.randn(3, 4, 5))
    assert [each.module for each in report.errors] == ([] if faulty is None else [f"cells.{faulty}"])
    assert not any("model has none there" in each.message for each in report.errors)  # its bias is the sum of two of model's


def test_a_bias_that_model_lacks_is_told() -> None:
    torch.manual_seed(0)
    model, other = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh()), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    other[0].weight = model[0].weight
    (error, *_) = precheck.compare(model, other, torch.randn(3, 4)).errors
    assert "0.bias is not zero, and model has none there" in error.message


class Spread(nn.Module):
    """The layers of `nn.MultiheadAttention` one by one."""

    def __init__(self, given: nn.MultiheadAttention) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(8, 8) for name in ("q", "k", "v", "o")})
        for name, weight, bias in zip("qkv", given.in_proj_weight.chunk(3), given.in_proj_bias.chunk(3), strict=True):
            self.parts[name].load_state_dict({"weight": weight.detach(), "bias": bias.detach()})
        self.parts["o"].load_state_dict(given.out_proj.state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.parts[name](x).unflatten(-1, (2, 4)).transpose(1, 2) for name in "qkv")
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.parts["o"](mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("there_and_back", [False, True])
def test_biases_of_zeros_are_joined_as_the_weights_beside_them(there_and_back: bool) -> None:
    """All biases of a new attention are zeros, so their numbers do not tell one from another."""
    torch.manual_seed(0)
    model: nn.Module = Attention()
    other: nn.Module = Spread(model.attention)  # type: ignore[arg-type]
    x, sides = torch.randn(2, 5, 8), (other, model) if there_and_back else (model, other)
    report = precheck.compare(*sides, x, loss=lambda out: out.square().sum())
    assert report.verdict == "rounding"
    assert not report.facts.get("unmatched_in_other")
    assert sum(row.tensor.endswith("bias") for row in report.boundaries if row.kind == "parameter-gradient") == 2  # of the three as one
    with torch.no_grad():
        other.parts["k"].weight.mul_(1.1)  # type: ignore[union-attr,index]
    assert precheck.compare(*sides, x, loss=lambda out: out.square().sum()).errors
