"""A module is right if it returns what model's does once it gets what model's gets: objects and attributes too, and the same gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import precheck

W = 8
ROWS = torch.randn(3, 6, W, generator=torch.Generator().manual_seed(3))


class Kept:
    def __init__(self) -> None:
        self.keys: dict[int, torch.Tensor] = {}


class Layer(nn.Module):
    """Reads and writes a state in an object, and has an attribute that its caller may set."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.scale, self.norm, self.line = number, 1.0, nn.LayerNorm(W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, kept: Kept, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.norm(x)
        kept.keys[self.number] = torch.cat([kept.keys[self.number], y], 1) if self.number in kept.keys else y
        seen = kept.keys[self.number].mean(1, keepdim=True)
        return x + torch.tanh(self.line(y + (seen if mask is None else seen * mask))) * self.scale


class Net(nn.Module):
    """Three layers on two pieces of a row. `wrong`: what the model's own code does wrongly for the second layer."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.words = wrong, nn.Embedding(5, W)
        self.layers = nn.ModuleList([Layer(n) for n in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, made, mask = Kept(), [], torch.ones(W) * 0.5
        for number, piece in enumerate((x + self.words(torch.arange(6) % 5)).split(3, 1)):
            if number and self.wrong == "dropped":
                kept.keys[1] = kept.keys[1][:, 1:]
            if number and self.wrong == "emptied":
                del kept.keys[1]
            for place, layer in enumerate(self.layers):
                second = place == 1
                layer.scale = 0.5 if second and self.wrong != "scale" else 0.25
                with torch.set_grad_enabled(torch.is_grad_enabled() and not (second and self.wrong == "unrecorded")):
                    piece = layer(piece, kept, None if second and self.wrong == "mask" else mask)
                if second and self.wrong == "hook" and piece.requires_grad:
                    piece.register_hook(lambda gradient: gradient * 0.5)
            made.append(piece)
        weight = self.words.weight.detach() if self.wrong == "table" else self.words.weight
        return torch.cat(made, 1) @ weight.T


def found(model: nn.Module, other: nn.Module) -> Any:
    torch.manual_seed(0)
    for value in model.parameters():
        value.data.normal_(std=0.4)
    other.load_state_dict(model.state_dict())
    return precheck.compare(model, other, ROWS, loss=lambda out: out.square().mean())


@pytest.mark.parametrize("wrong", ["dropped", "emptied", "scale", "mask", "unrecorded", "hook", "table"])
def test_code_that_calls_a_right_module_with_something_wrong_is_named(wrong: str) -> None:
    report = found(Net(), Net(wrong))
    assert report.verdict == "different"
    assert report.errors[0].module == "", report.errors[0].message
    assert wrong != "mask" or "layers.1 is given no mask, and model's is" in report.errors[0].message


@pytest.mark.parametrize("change", [{"scale": 0.3}, {"number": 0}])
def test_a_layer_with_wrong_code_is_named(change: dict[str, Any]) -> None:
    class Other(Layer):
        def forward(self, x: torch.Tensor, kept: Kept, mask: torch.Tensor | None = None) -> torch.Tensor:
            for name, value in change.items():
                setattr(self, name, value)
            return super().forward(x, kept, mask)

    net = Net()
    net.layers[1] = Other(1)
    assert found(Net(), net).errors[0].module == "layers.1"


class Learning(nn.Module):
    """Runs a net on weights that it makes."""

    def __init__(self, run: Callable[[nn.Module, dict[str, torch.Tensor], torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.run, self.net, self.slow = run, nn.Sequential(nn.Linear(W, W), nn.Tanh(), nn.Linear(W, 3)), nn.Linear(W, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self.net, {name: value * 0.5 for name, value in self.net.named_parameters()}, x) + self.slow(x)


def lent(net: nn.Module, weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return functional_call(net, weights, (x,))  # type: ignore[no-any-return]


def own(net: nn.Module, weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return net(x)  # type: ignore[no-any-return]


def same(net: nn.Module, weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return functional_call(net, dict(net.named_parameters()), (x,))  # type: ignore[no-any-return]


def test_weights_that_are_not_lent_are_the_fault_of_the_code_that_should_lend_them() -> None:
    assert found(Learning(lent), Learning(own)).errors[0].module == ""
    assert found(Learning(own), Learning(lent)).errors[0].module == ""
    assert found(Learning(own), Learning(same)).verdict in ("bitwise", "rounding")


class Waves(nn.Module):
    """Layers on complex numbers."""

    def __init__(self, turned: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Wave(turned and n == 1) for n in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.fft.rfft(x, dim=1)
        for layer in self.layers:
            z = z + layer(z)
        return torch.fft.irfft(z, n=6, dim=1)


class Wave(nn.Module):
    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.turned, self.gains = turned, nn.Parameter(torch.zeros(4, W, 2))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        gains = torch.view_as_complex(self.gains)
        return z * (gains.conj() if self.turned else gains)


def test_results_of_complex_numbers_are_compared() -> None:
    assert found(Waves(), Waves(turned=True)).errors[0].module == "layers.1"


class Branches(nn.Module):
    """`apart`: the residual is added by the model's own code. `without`: the layer to which it adds none, or whose code is wrong."""

    def __init__(self, apart: bool = False, forgets: bool = False, wrong: bool = False) -> None:
        super().__init__()
        self.apart, self.forgets, self.layers = apart, forgets, nn.ModuleList([Branch(apart, wrong and n == 1) for n in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = x + layer(x) if self.apart and not (self.forgets and number == 1) else layer(x)
        return x


class Branch(nn.Module):
    def __init__(self, apart: bool, wrong: bool) -> None:
        super().__init__()
        self.apart, self.wrong, self.norm, self.line = apart, wrong, nn.LayerNorm(W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.line(self.norm(x))
        made = F.relu(made) if self.wrong else torch.tanh(made)
        return made if self.apart else x + made


def test_a_branch_to_which_the_caller_adds_the_residual_is_no_fault() -> None:
    assert found(Branches(), Branches(apart=True)).verdict in ("bitwise", "rounding")
    assert found(Branches(), Branches(apart=True, forgets=True)).errors[0].module == ""
    assert found(Branches(), Branches(apart=True, wrong=True)).errors[0].module == "layers.1"
