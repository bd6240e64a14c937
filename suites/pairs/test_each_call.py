"""What each call gets and gives: rows of a single call, what is taught, indices of a layer of torch, weights at other places, methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_first_wrong_value import MEAN, X, of
from torch import nn

import precheck

FIT: dict[str, Any] = {"loss": lambda out: (out - 0.3).square().mean()}


class Sums(nn.Module):
    """Each row and all rows before. In pieces, the sum before comes in `kept`. `wrong`: the code of further pieces is wrong."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong, self.line = wrong, nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:
        y = self.line(x)
        made = y.cumsum(0) + (kept[-1] * (0.5 if self.wrong else 1) if kept else 0)
        kept.append(made[-1])
        return x + torch.tanh(made)


class Pieces(nn.Module):
    """Two layers on all rows, or on pieces. `fault`: all layers are wrong from the second piece on, or the second is given the sum of the first."""

    def __init__(self, pieces: int = 1, fault: str = "") -> None:
        super().__init__()
        self.pieces, self.fault, self.layers = pieces, fault, nn.ModuleList([Sums(fault == "all") for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[list[torch.Tensor]] = [[], []]
        found = []
        for number, piece in enumerate(x.chunk(self.pieces)):
            for layer, own in zip(self.layers, kept, strict=True):
                piece = layer(piece, kept[0] if self.fault == "other" and number == 1 else own)
            found.append(piece)
        return torch.cat(found)


@pytest.mark.parametrize(("fault", "module"), [("all", "layers.0"), ("other", "")])
def test_rows_that_are_wrong_in_a_later_call_are_wrong_there(fault: str, module: str) -> None:
    model = Pieces()
    assert precheck.compare(model, of(Pieces, model, 4, fault), X, **MEAN).errors[0].module == module
    assert not precheck.compare(model, of(Pieces, model, 4), X, **MEAN).errors


class Reader(nn.Module):
    """Reads words without teaching them. `inside`: it cuts them off itself. `scaled`: its own line's gradient is doubled."""

    def __init__(self, inside: bool = False, scaled: bool = False) -> None:
        super().__init__()
        self.inside, self.scaled, self.line = inside, scaled, nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.line(x.detach() if self.inside else x)
        return 2 * y - y.detach() if self.scaled else y


class Drafts(nn.Module):
    """`cut`: who cuts words off from the reader's gradient."""

    def __init__(self, cut: str = "caller", scaled: bool = False) -> None:
        super().__init__()
        self.cut, self.words, self.layer, self.reader = cut, nn.Linear(6, 6), nn.Linear(6, 6), Reader(cut == "reader", scaled)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x)
        return self.layer(x) + self.reader(x.detach() if self.cut == "caller" else x)


@pytest.mark.parametrize(("ways", "module"), [(("nobody",), ""), (("reader", True), "reader")])
def test_the_code_is_named_that_lets_a_module_teach_what_it_reads(ways: tuple[Any, ...], module: str) -> None:
    model = Drafts()
    assert precheck.compare(model, of(Drafts, model, *ways), X, **FIT).errors[0].module == module
    assert not precheck.compare(model, of(Drafts, model, "reader"), X, **FIT).errors


class Labelled(nn.Module):
    """Rows with a vector for a label of zero or one."""

    def __init__(self, turned: bool = False) -> None:
        super().__init__()
        self.turned, self.labels = turned, nn.Embedding(2, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        label = (torch.arange(len(x)) % 3 == 0).long()
        return x + self.labels(1 - label if self.turned else label)

    def table(self, turned: bool = False) -> torch.Tensor:
        at = torch.arange(6, dtype=self.labels.weight.dtype)
        return torch.outer(at[:3], at[:3] + 1).T if turned else torch.outer(at[:3], at[:3] + 1)


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(9, 2)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return self.line(x + table.flatten())  # type: ignore[no-any-return]


class Holder(nn.Module):
    """`turned`: the part's labels, or its table, whose numbers are then in another order."""

    def __init__(self, turned: str = "") -> None:
        super().__init__()
        self.turned, self.part, self.line = turned, Labelled(turned == "labels"), nn.Linear(6, 9)
        self.last = Joined()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.line(self.part(x)), self.part.table(self.turned == "table"))  # type: ignore[no-any-return]


def test_a_layer_of_torch_computes_what_its_indices_say() -> None:
    model = Holder()
    found = precheck.compare(model, of(Holder, model, "labels"), X, **MEAN).errors[0]
    assert found.module == "part"
    assert "part.labels is given another input than model's" in found.message


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(6, 8, bias=False), nn.Linear(6, 8, bias=False), nn.Linear(8, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Shards(nn.Module):
    """The layer of two ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.down = (nn.ModuleList([nn.Linear(*size, bias=False) for _ in range(2)]) for size in ((6, 8), (4, 6)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: Any = 0
        for into, down in zip(self.into, self.down, strict=True):
            gate, up = into(x).chunk(2, -1)
            made = made + down(F.silu(gate) * up)
        return made  # type: ignore[no-any-return]


class Ranked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.feed = Shards()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.feed(x)  # type: ignore[no-any-return]


def test_weights_at_other_places_than_those_of_a_right_layer_are_no_alibi() -> None:
    torch.manual_seed(0)
    model, other = (nn.Sequential(*(kind() for _ in range(3))) for kind in (Whole, Ranked))
    for number, (whole, ranked) in enumerate(zip(model, other, strict=True)):
        joined = torch.cat([whole.gate.weight, whole.up.weight]).chunk(2) if number == 1 else None
        for rank in range(2):
            own = torch.cat([whole.gate.weight.chunk(2)[rank], whole.up.weight.chunk(2)[rank]]) if joined is None else joined[rank]
            with torch.no_grad():
                ranked.feed.into[rank].weight.copy_(own)
                ranked.feed.down[rank].weight.copy_(whole.down.weight.chunk(2, 1)[rank])
    assert precheck.compare(model, other, X, **MEAN).errors[0].module == "1.feed"


class Normed(nn.Module):
    """A norm and a product of its result by a scale. `folded`: the norm's weight holds the scale."""

    def __init__(self, folded: bool = False) -> None:
        super().__init__()
        self.folded, self.norm, self.line = folded, nn.RMSNorm(6), nn.Linear(6, 6)
        self.register_buffer("scale", torch.linspace(0.5, 2, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + torch.tanh(self.line(y if self.folded else y / self.scale))


@pytest.mark.parametrize("wrong", [False, True])
def test_a_folded_norm_with_a_wrong_weight_is_named_though_that_of_a_right_block_differs_too(wrong: bool) -> None:
    torch.manual_seed(0)
    model, other = (nn.Sequential(*(Normed(folded) for _ in range(3))).requires_grad_(False) for folded in (False, True))
    other.load_state_dict(model.state_dict())
    for number, layer in enumerate(other):
        scale = layer.get_buffer("scale")
        layer.norm.weight.copy_(scale if wrong and number == 1 else 1 / scale)
    errors = precheck.compare(model, other, X).errors
    assert [each.module for each in errors][:1] == (["1.norm"] if wrong else [])


def test_a_method_that_makes_a_wrong_table_alone_is_named() -> None:
    model = Holder()
    assert precheck.compare(model, of(Holder, model, "table"), X, **MEAN).errors[0].module == "part"
