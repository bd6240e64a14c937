"""Which module is named, where a call with right code is given something wrong in a form that model's call has not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import precheck

N, W = 6, 8
X = torch.randn(2, N, W, generator=torch.Generator().manual_seed(0))
MEAN: dict[str, Any] = {"loss": lambda out: out.square().mean()}


class Sums(nn.Module):
    """`model`'s way: what is added to scores for each head, by a table of which the last part is read, a mask that is added, and places."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def scores(self, x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.qkv(x + places[:, None].to(x.dtype).sin()).chunk(3, -1))
        return q @ k.mT, v

    def forward(self, x: torch.Tensor, mask: torch.Tensor, slopes: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        scores, v = self.scores(x, places[0])
        return self.out(((scores + slopes[None, ..., -N:] + mask).softmax(-1) @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Hides(Sums):
    """`other`'s way: places first, truth values for the mask, and one that hides more."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x: torch.Tensor, places: torch.Tensor, far: torch.Tensor, seen: torch.Tensor, more: Any = None) -> torch.Tensor:
        scores, v = self.scores(x, places)
        scores = scores + far * (0.5 if self.fault == "own code" else 1)
        scores = scores.masked_fill(~(seen if more is None else seen & more), -1e30)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Distances(nn.Module):
    def __init__(self, fault: str = "", axes: int = 3, begin: int = 0) -> None:
        super().__init__()
        self.fault, self.axes, self.begin = fault, axes, begin

    def forward(self, heads: int) -> torch.Tensor:
        rates = {"other slopes": [0.5, 0.125], "slopes turned": [0.0625, 0.25]}.get(self.fault, [0.25, 0.0625])
        return (torch.tensor(rates)[:heads, None, None] * torch.arange(self.begin, N)).reshape(*[1] * (self.axes - 3), heads, 1, -1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.far, self.layers, self.head = Distances(begin=-N), nn.ModuleList([Sums(), Sums(), Sums()]), nn.Linear(W, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(N, N).masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -1e30)[None, None].expand(len(x), -1, -1, -1)
        for layer in self.layers:
            x = x + layer(x, mask, self.far(2), torch.arange(N)[None])
        return self.head(x)  # type: ignore[no-any-return]


class Other(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault, self.table, self.head = fault, Distances(fault, 4), nn.Linear(W, 3)
        self.layers = nn.ModuleList(Hides(fault if n == 1 else "") for n in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fault = self.fault
        seen = torch.ones(N, N, dtype=torch.bool).tril(-1 if fault == "another mask" else 0)
        seen[..., 0] = True
        far = self.table(2)
        for number, layer in enumerate(self.layers):
            more = {"more": torch.rand(N, N) < 0.5} if fault == "hides more" and number == 1 else {}
            x = x + layer(x, torch.arange(N) + (fault == "other places"), far, seen, **more)
        return self.head(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("", None), ("other slopes", "table"), ("slopes turned", "table"), ("another mask", ""), ("hides more", ""), ("other places", ""),
        ("own code", "layers.1"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_the_fault_of_whoever_gives_or_makes_it(fault: str, named: str | None) -> None:
    torch.manual_seed(0)
    model, other = Model(), Other(fault)
    other.load_state_dict(model.state_dict())
    report = precheck.compare(model, other, X, **MEAN)
    assert [each.module for each in report.errors[:1]] == ([] if named is None else [named])


class Halved(nn.Linear):
    fault = ""

    def forward(self, x: torch.Tensor, begun: int = 0) -> torch.Tensor:
        return super().forward(x) * (0.5 if self.fault and begun else 1)


class Piece(nn.Module):
    def __init__(self, fault: str, goes_on: bool) -> None:
        super().__init__()
        self.goes_on, self.one, self.head = goes_on, Halved(W, W), nn.Linear(W, 3, bias=False)
        self.one.fault = fault

    def forward(self, x: torch.Tensor, begun: int) -> torch.Tensor:
        y = torch.tanh(self.one(x, begun))
        return self.head(y) if self.goes_on else y  # type: ignore[no-any-return]


class Whole(nn.Module):
    """A decoder in one call, which leaves its head to the model, or in pieces."""

    def __init__(self, fault: str = "", size: int = N) -> None:
        super().__init__()
        self.size, self.decoder = size, Piece(fault, size < N)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.cat([self.decoder(part, number) for number, part in enumerate(x.split(self.size, 1))], 1)
        return made if self.size < N else self.decoder.head(made)  # type: ignore[no-any-return]


@pytest.mark.parametrize("fault", ["", "later pieces are halved"])
def test_pieces_of_another_form_have_no_place_in_model(fault: str) -> None:
    torch.manual_seed(0)
    model, other = Whole(), Whole(fault, 2)
    other.load_state_dict(model.state_dict())
    report = precheck.compare(model, other, X, **MEAN)
    assert [each.module for each in report.errors[:1]] == (["decoder.one"] if fault else [])


class Joined(nn.Module):
    """Three parts side by side for each of two heads, or one after the other."""

    def __init__(self, heads_first: bool) -> None:
        super().__init__()
        self.heads_first, self.qkv, self.out = heads_first, nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, unlike: torch.Tensor) -> torch.Tensor:
        made = self.qkv(x)
        q, k, v = (each.transpose(1, 2) for each in (
            made.unflatten(-1, (2, 3, 4)).unbind(-2) if self.heads_first else made.unflatten(-1, (3, 2, 4)).unbind(-3)))  # fmt: skip
        return self.out(((q @ k.mT + unlike.reshape(2, 1, N)).softmax(-1) @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Converted(nn.Module):
    def __init__(self, heads_first: bool) -> None:
        super().__init__()
        self.heads_first, self.layers = heads_first, nn.ModuleList([Joined(heads_first), Joined(heads_first)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        unlike = torch.arange(2.0 * N).to(x.dtype)
        for layer in self.layers:
            x = x + layer(x, unlike if self.heads_first else unlike.reshape(2, N))
        return x


@pytest.mark.parametrize("lost", [False, True])
def test_code_of_a_right_block_with_rows_of_a_weight_in_another_order_is_not_right(lost: bool) -> None:
    torch.manual_seed(0)
    model, other = Converted(True), Converted(False)
    state = dict(model.state_dict())
    for name in [each for each in state if "qkv" in each and not (lost and "layers.1" in each)]:
        state[name] = state[name].unflatten(0, (2, 3, 4)).transpose(0, 1).flatten(0, 2)
    other.load_state_dict(state)
    report = precheck.compare(model, other, X, **MEAN)
    assert all(each.module.startswith("layers.1") for each in report.errors[:1])
    assert bool(report.errors) is lost
