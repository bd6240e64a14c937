"""Which module is named: for a gradient alone, for whole numbers, for another order of axes, for weights besides those of its parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import precheck

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
PICTURE = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(0))
MEAN: dict[str, Any] = {"loss": lambda out: out.square().mean()}


def compared(model: nn.Module, other: nn.Module, x: torch.Tensor = X) -> Any:
    return precheck.compare(model, other, x, **MEAN)


class Rounding(nn.Module):
    """Rounds what it reads to steps of an eighth, within one. `cut`: whether numbers beyond have no gradient."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.cut, self.line = cut, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        through = x * (x.abs() <= 1).to(x.dtype) if self.cut else x
        return self.line(through + ((x * 8).round().clamp(-8, 8) / 8 - through).detach())


class Stream(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inside, self.layers = nn.Linear(8, 8), nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.parametrize("place", [0, 1])
def test_a_layer_is_named_that_passes_on_another_gradient(place: int) -> None:
    """The gradients of its results and of its weights are right. What reads a sum has no gradient of its own in torch."""
    torch.manual_seed(0)
    model = Stream(Rounding(True), Rounding(True))
    for bad in (False, True):
        other = Stream(*(Rounding(not bad or number != place) for number in range(2)))
        other.load_state_dict(model.state_dict())
        report = compared(model, other)
        assert report.verdict == ("different" if bad else "bitwise"), report.summary()
    assert report.errors[0].module == f"layers.{place}", report.summary()


class Filtered(nn.Module):
    def __init__(self, folded: bool = False) -> None:
        super().__init__()
        self.taps, self.norm, self.head = nn.Conv2d(8, 8, 3), nn.Identity() if folded else nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.taps(x)).relu().mean((2, 3)))


def test_a_filter_with_a_norm_in_it_has_a_gradient_of_its_own() -> None:
    torch.manual_seed(0)
    model = Filtered()
    with torch.no_grad():
        assert isinstance(model.norm, nn.BatchNorm2d)
        model.norm.running_mean.normal_(), model.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    model.eval()
    other = Filtered(folded=True).eval()
    other.load_state_dict({name: value for name, value in model.state_dict().items() if not name.startswith("norm")})
    other.taps = nn.utils.fusion.fuse_conv_bn_eval(model.taps, model.norm)
    report = compared(model, other, PICTURE)
    assert report.verdict == "rounding", report.summary()
    assert "gradient of taps.weight, which holds other numbers than model's" in report.facts["not_compared"]
    other.taps.weight.data[0] *= 1.01
    report = compared(model, other, PICTURE)
    assert report.verdict == "different"
    assert report.errors[0].module == "taps"


class Timed(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.times, self.line = factor, nn.Embedding(9, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.line(x) * self.times(time) * self.factor


class Sampler(nn.Module):
    def __init__(self, early: int = 0, factor: float = 1.0) -> None:
        super().__init__()
        self.early, self.net = early, Timed(factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for time in (7, 4, 1):
            x = x + self.net(x, torch.full((len(x),), time - self.early))
        return x


@pytest.mark.parametrize(("ways", "module"), [({"early": 1}, ""), ({"factor": 1.1}, "net")])
def test_who_gives_another_time_is_named_and_not_who_reads_it(ways: dict[str, Any], module: str) -> None:
    torch.manual_seed(0)
    model, other = Sampler(), Sampler(**ways)
    other.load_state_dict(model.state_dict())
    report = compared(model, other)
    assert report.verdict == "different"
    assert report.errors[0].module == module, report.summary()


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 2, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain[:, None, None]


class First(nn.Module):
    """A block with channels first, whose gain is in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.taps, self.scaled, self.mix = nn.Conv2d(8, 8, 3, padding=1), Gain(), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(self.scaled(self.taps(x)).tanh())


class Last(nn.Module):
    """The same block, in parts with channels last, with its gain as a weight of its own. `factor`: of what it adds."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.taps, self.mix, self.gain = factor, nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 8), nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.mix((self.taps(x).permute(0, 2, 3, 1) * self.gain).tanh() * self.factor)
        return x + made.permute(0, 3, 1, 2)


class Blocks(nn.Module):
    """Two blocks behind a layer of pictures, `mixed` with channels first or last."""

    def __init__(self, last: bool, *blocks: nn.Module) -> None:
        super().__init__()
        self.last, self.mixed, self.blocks = last, nn.Linear(8, 8) if last else nn.Conv2d(8, 8, 1), nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mixed(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if self.last else self.mixed(x)
        for block in self.blocks:
            x = block(x)
        return x.mean((2, 3))


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_block_is_named_behind_a_layer_with_axes_in_another_order(factor: float) -> None:
    """The pictures have as many rows and columns as channels, so that no shape tells the order."""
    torch.manual_seed(0)
    model, other = Blocks(False, First(), First()), Blocks(True, Last(), Last(factor))
    state = {name.replace("scaled.", ""): value for name, value in model.state_dict().items()}
    other.load_state_dict({name: value.flatten(1) if "mix" in name and value.dim() > 1 else value for name, value in state.items()})
    report = compared(model, other, PICTURE)
    assert report.verdict == ("rounding" if factor == 1 else "different"), report.summary()
    if factor != 1:
        assert report.errors[0].module == "blocks.1", report.summary()


class Hides(nn.Module):
    """Hands a mask of truths to torch's encoder, whose layers get it as numbers. `seen`: the tokens before, or those after."""

    def __init__(self, net: nn.Module, later: bool = False) -> None:
        super().__init__()
        self.net, self.later = net, later

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        return self.net(x, mask=hidden.T if self.later else hidden)  # type: ignore[no-any-return]


def test_a_mask_turned_round_is_no_order_of_axes_that_the_layer_around_it_puts_right() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    report = compared(Hides(net), Hides(net, later=True), torch.randn(2, 6, 8))
    assert report.errors[0].module == "", report.summary()  # the code that makes the mask, and not the layers that get it as numbers
    assert "another mask" in report.errors[0].message


class Words(nn.Module):
    def __init__(self, name: str, tied: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 8)
        self.add_module(name, nn.Linear(8, 9, bias=False))
        self.name = name
        if tied:
            self.get_submodule(name).weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.get_submodule(self.name)(self.words(ids).tanh())


def test_weights_no_longer_tied_are_told_under_other_names() -> None:
    torch.manual_seed(0)
    model, other = Words("head"), Words("decoder", tied=False)
    other.load_state_dict({name.replace("head", "decoder"): value for name, value in model.state_dict().items()})
    report = compared(model, other, torch.arange(9)[None])
    assert report.verdict == "different"
    assert "head.weight and words.weight are one parameter in model, and two in other: decoder.weight and words.weight" in report.errors[0].message
