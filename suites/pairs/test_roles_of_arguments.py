"""Which module is named, where a part takes other inputs than model's: words for their numbers, a sum of two masks, places with an offset."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precheck

N, W, WORDS = 6, 16, 12
IDS = torch.randint(1, WORDS, (2, N), generator=torch.Generator().manual_seed(0))
READ = torch.randn(2, N + 3, W, generator=torch.Generator().manual_seed(1))
HIDDEN = torch.zeros(2, 1, 1, N + 3, dtype=torch.bool)
HIDDEN[1, ..., -2:] = True
MEAN: dict[str, Any] = {"loss": lambda out: out.square().mean()}


def waves(count: int, begin: int = 0, base: float = 100.0) -> torch.Tensor:
    angles = torch.arange(begin, begin + count)[:, None] / base ** (torch.arange(0, W, 2) / W)
    return torch.cat([angles.sin(), angles.cos()], 1)


class Rows(nn.Embedding):
    """A table whose first two rows are no places."""

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return super().forward(places + 2)


class Waves(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, count: int, begin: int) -> torch.Tensor:
        return waves(count, begin + 2, 50.0 if self.fault == "another base" else 100.0)


class Looks(nn.Module):
    """Attention. `model`'s is given a bias and a mask of keys that are hidden, `other`'s their sum."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault, self.q, self.kv, self.out = fault, nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(W, W)

    def seen(self, x: torch.Tensor, read: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        q, (k, v) = self.q(x)[:, None], self.kv(read)[:, None].chunk(2, -1)
        scores = q @ k.mT * (0.5 if self.fault == "another scale" else 0.25)
        return self.out(((scores if added is None else scores + added).softmax(-1) @ v)[:, 0])  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor, read: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        return self.seen(x, read, added)


class LooksApart(Looks):
    def forward(self, x: torch.Tensor, read: torch.Tensor, hidden: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return self.seen(x, read, bias.masked_fill(hidden, -1e30))


class Layer(nn.Module):
    def __init__(self, looks: nn.Module, fault: str = "") -> None:
        super().__init__()
        self.fault, self.looks, self.norm, self.feed = fault, looks, nn.LayerNorm(W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, read: torch.Tensor, one: torch.Tensor | None = None, two: torch.Tensor | None = None) -> torch.Tensor:
        x = self.norm(x + (self.looks(x, read, one) if two is None else self.looks(x, read, one, two)))
        made = self.feed(x)
        return x + (F.gelu(made) if self.fault == "gelu" else F.relu(made))


class Decoder(nn.Module):
    """`model`'s: looks words and places up itself."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, W), Rows(N + 4, W)
        self.layers = nn.ModuleList(Layer(LooksApart()) for _ in range(3))

    def forward(self, read: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(N))
        far = -(torch.arange(N)[:, None] - torch.arange(N + 3)).abs().to(x.dtype)[None, None] / 4
        for layer in self.layers:
            x = layer(x, read, HIDDEN, far.expand(2, -1, -1, -1))
        return x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder, self.head = Decoder(), nn.Linear(W, 3)

    def forward(self, ids: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        return self.head(self.decoder(read, ids))  # type: ignore[no-any-return]


class Layers(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        inner, outer = (fault if fault == each else "" for each in ("another scale", "gelu"))
        self.fault, self.layers = fault, nn.ModuleList(Layer(Looks(inner if n == 1 else ""), outer if n == 1 else "") for n in range(3))

    def forward(self, x: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        far = -(torch.arange(N)[:, None] - torch.arange(N + 3)).abs().to(x.dtype)[None, None] / 4
        hidden = torch.zeros_like(HIDDEN) if self.fault == "padding is seen" else HIDDEN
        for n, layer in enumerate(self.layers):
            x = layer(x, read, far.masked_fill(hidden, -1e30)) if self.fault != "no mask at all" or n != 1 else layer(x, read)
        return x


class Other(nn.Module):
    """Its decoder is given words. `formula`: with places by their formula, where `model` has a table of float32."""

    def __init__(self, fault: str = "", formula: bool = False) -> None:
        super().__init__()
        self.fault, self.formula, self.words, self.decoder, self.head = fault, formula, nn.Embedding(WORDS, W), Layers(fault), nn.Linear(W, 3)
        self.places: Any = Waves(fault) if formula else nn.Embedding(N + 4, W)

    def forward(self, ids: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        begin = 0 if self.fault == "places from zero" else 2
        places = self.places(N, begin - 2) if self.formula else self.places(torch.arange(begin, begin + N))
        return self.head(self.decoder(self.words(ids) + places, read))  # type: ignore[no-any-return]


FAULTS = [
    ("", None), ("another base", "places"), ("places from zero", ""), ("another scale", "decoder.layers.1.looks"), ("gelu", "decoder.layers.1"),
    ("padding is seen", "decoder"), ("no mask at all", "decoder"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "named", "formula"), [(*each, formula) for each in FAULTS for formula in (False, True) if formula or each[0] != "another base"]
)  # fmt: skip
def test_a_decoder_that_is_given_words_for_their_numbers(fault: str, named: str | None, formula: bool) -> None:
    torch.manual_seed(0)
    model, other = Model(), Other(fault, formula)
    if formula:
        with torch.no_grad():
            model.decoder.places.weight.copy_(waves(N + 4))
    names = {"decoder.words": "words", "decoder.places": "places"}
    state = {next((name.replace(a, b) for a, b in names.items() if a in name), name): value for name, value in model.state_dict().items()}
    other.load_state_dict({name: value for name, value in state.items() if not (formula and name == "places.weight")})
    report = precheck.compare(model, other, (IDS, READ), **MEAN)
    assert [each.module for each in report.errors[:1]] == ([] if named is None else [named])


class Half(nn.Module):
    """A layer that looks at what was read, if it has the parts for it."""

    def __init__(self, fault: str = "", across: bool = False) -> None:
        super().__init__()
        self.fault, self.one = fault, nn.Linear(W, W)
        if across:
            self.two = nn.Linear(W, W)

    def forward(self, x: torch.Tensor, read: torch.Tensor | None = None) -> torch.Tensor:
        x = x + torch.tanh(self.one(x)) * (0.5 if self.fault else 1)
        return x if read is None else x + self.two(read)


class Halves(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.first, self.last = nn.ModuleList([Half(), Half(fault)]), Half(across=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for layer in self.first:
            y = layer(y)
        return self.last(x, y)  # type: ignore[no-any-return]


class Scaled(Half):
    """`model`'s, which is given a scale too."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor, read: torch.Tensor | None = None) -> torch.Tensor:  # type: ignore[override]
        x = x + torch.tanh(self.one(x)) * scale
        return x if read is None else x + self.two(read)


class ScaledHalves(Halves):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.ModuleList([Scaled(), Scaled()]), Scaled(across=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, scale = x, torch.ones_like(x)
        for layer in self.first:
            y = layer(y, scale)
        return self.last(x, scale, y)  # type: ignore[no-any-return]


@pytest.mark.parametrize("fault", ["", "halved"])
def test_a_part_that_cannot_take_an_argument_is_not_asked_what_it_makes_of_it(fault: str) -> None:
    """Given a tensor of model's call for the argument that it is called without, this part raises an AttributeError."""
    torch.manual_seed(0)
    model, other = ScaledHalves(), Halves(fault)
    other.load_state_dict(model.state_dict())
    report = precheck.compare(model, other, READ, **MEAN)
    assert [each.module for each in report.errors[:1]] == (["first.1"] if fault else [])


class Hides(nn.Module):
    """Attention that hides later keys itself, as `model`'s does, or by a mask that it is given. The port's hands on its keys too."""

    def __init__(self, given: bool, fault: str = "") -> None:
        super().__init__()
        self.given, self.fault, self.qkv, self.out = given, fault, nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, seen: torch.Tensor | None = None) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT) * (0.5 if self.fault == "another scale" else 0.25)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() if seen is None else seen
        y = self.out(scores.masked_fill(~seen, -1e30).softmax(-1) @ v)
        return (y, k) if self.given else y


class Order(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, count: int) -> torch.Tensor:
        return torch.ones(count, count, dtype=torch.bool).tril(1 if self.fault == "the next is seen" else 0)


class Words(nn.Module):
    def __init__(self, given: bool, fault: str = "") -> None:
        super().__init__()
        self.given, self.fault, self.order = given, fault, Order(fault)
        self.layers = nn.ModuleList(Hides(given, fault if n == 1 else "") for n in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.order(x.shape[1])
        for n, layer in enumerate(self.layers):
            x = x + (layer(x, torch.ones_like(seen) if self.fault == "all are seen" and n == 1 else seen)[0] if self.given else layer(x))
        return x


@pytest.mark.parametrize(
    ("fault", "named"), [("", None), ("the next is seen", "order"), ("all are seen", ""), ("another scale", "layers.1")]
)  # fmt: skip
def test_a_mask_of_later_keys_that_models_call_is_not_given(fault: str, named: str | None) -> None:
    torch.manual_seed(0)
    model, other = Words(given=False), Words(True, fault)
    other.load_state_dict(model.state_dict())
    report = precheck.compare(model, other, READ, **MEAN)
    assert [each.module for each in report.errors[:1]] == ([] if named is None else [named])


class Around(nn.Module):
    """`model`'s block, around a row of layers that holds all its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Sequential(nn.Linear(W, W), nn.Tanh(), nn.Linear(W, W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.row(x))


class Flat(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.up, self.down = fault, nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.down(torch.tanh(self.up(x)))
        return torch.relu(made if self.fault == "no sum" else x + made)


class Pooled(nn.Module):
    def __init__(self, fault: str = "", flat: bool = False) -> None:
        super().__init__()
        self.fault, self.head = fault, nn.Linear(W, 3)
        self.blocks = nn.ModuleList(Flat(fault if n == 1 else "") if flat else Around() for n in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.amax(1) if self.fault == "largest" else x.mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("fault", "named"), [("", None), ("largest", ""), ("no sum", "blocks.1")])
def test_a_block_stands_for_that_of_two_modules_with_its_weights_which_returns_what_it_does(fault: str, named: str | None) -> None:
    torch.manual_seed(0)
    model, other = Pooled(), Pooled(fault, flat=True)
    other.load_state_dict({name.replace("row.0", "up").replace("row.2", "down"): value for name, value in model.state_dict().items()})
    report = precheck.compare(model, other, READ, **MEAN)
    assert [each.module for each in report.errors[:1]] == ([] if named is None else [named])


class Turned(nn.Module):
    """`model`'s layer: makes rows of a picture itself."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(W, 5)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return self.proj(picture.flatten(2).mT)  # type: ignore[no-any-return]


class Stage(nn.Module):
    def __init__(self, last: nn.Module, fault: bool = False) -> None:
        super().__init__()
        self.fault, self.filter, self.norm, self.last = fault, nn.Conv2d(3, W, 3), nn.LayerNorm(W), last

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        rows = self.filter(picture).flatten(2).mT
        rows = rows if self.fault else self.norm(rows)
        return self.last(rows.mT.unflatten(-1, (4, 4)) if isinstance(self.last, Turned) else rows)  # type: ignore[no-any-return]


@pytest.mark.parametrize("fault", [False, True])
def test_a_linear_layer_with_models_weights_computes_what_its_input_says(fault: bool) -> None:
    torch.manual_seed(0)
    model, other = Stage(Turned()), Stage(nn.Linear(W, 5), fault)
    other.load_state_dict({name.replace("proj.", ""): value for name, value in model.state_dict().items()})
    report = precheck.compare(model, other, torch.randn(2, 3, 6, 6), **MEAN)
    assert [each.module for each in report.errors[:1]] == ([""] if fault else [])
