"""The eighteenth batch, fourth part: adapters, weights with a size, experts, places with an offset, steps of diffusion.

Where a part has layers, a fault is in the second alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_eighteenth import State, W, entered
from torch import nn

EXPERTS, WORDS = 4, 23


class Adapted(nn.Module):
    """A linear layer and a product of low rank, whose result has a norm for each row of the weight. `merged`: one weight."""

    def __init__(self, merged: bool = False, **ways: Any) -> None:
        super().__init__()
        self.merged, self.ways, self.base = merged, ways, nn.Linear(W, W)
        self.a, self.b, self.size = nn.Parameter(torch.zeros(4, W)), nn.Parameter(torch.zeros(W, 4)), nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, scale = self.ways, 6 / (2 if self.ways.get("root") else 4)
        if not self.merged:
            weight = self.base.weight + scale * self.b @ self.a
            made = F.linear(x, self.base.weight) + scale * (x @ self.a.mT) @ self.b.mT
            return F.silu(made * (self.size / weight.norm(dim=1)) + self.base.bias)
        weight = self.base.weight + scale * ((self.b @ self.a).mT if ways.get("turned") else self.b @ self.a)
        length = self.base.weight.norm(dim=1) if ways.get("base") else weight.norm(dim=0) if ways.get("columns") else weight.norm(dim=1)
        return F.silu(F.linear(x, self.size[:, None] * weight / length[:, None], self.base.bias))


def merged(**bad: Any) -> Adapted:
    return Adapted(True, **bad)


entered("sized adapters", "merged", Adapted, merged, {
    "scaled by the root of the rank": ({"root": True}, ""), "the product turned": ({"turned": True}, ""), "the base's norm": ({"base": True}, ""),
    "norms of columns": ({"columns": True}, ""),
})  # fmt: skip


class Weighted(nn.Module):
    """A filter over time whose weight has a direction and a size."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.filter = nn.utils.parametrizations.weight_norm(nn.Conv1d(W, W, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(self.filter(x.transpose(1, 2)), 0.1).transpose(1, 2)


class WeightedPort(nn.Module):
    """By formulas, from its own size and direction."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.g, self.v = ways, nn.Parameter(torch.zeros(W, 1, 1)), nn.Parameter(torch.zeros(W, W, 3))
        self.bias = nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        length = self.v.norm() if ways.get("whole") else self.v.square().sum((0, 2) if ways.get("inner") else (1, 2)).sqrt()[:, None, None]
        made = F.conv1d(x.transpose(1, 2), self.g * self.v / length, self.bias, padding=1)
        return torch.where(made > 0, made, (0.01 if ways.get("slope") else 0.1) * made).transpose(1, 2)


def held(state: State, _: Any) -> State:
    names = {"filter.parametrizations.weight.original0": "g", "filter.parametrizations.weight.original1": "v", "filter.bias": "bias"}
    for before, after in names.items():
        state = {name.replace(before, after): value for name, value in state.items()}
    return state


entered("sizes and directions", "by formulas", Weighted, WeightedPort, {
    "one norm for all": ({"whole": True}, ""), "norms by inputs": ({"inner": True}, ""), "another slope": ({"slope": True}, ""),
}, convert=held)  # fmt: skip


class Routed(nn.Module):
    """The two best of four experts for each token, each with room for five. One after another."""

    room = 5

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.router = ways, nn.Linear(W, EXPERTS)
        self.up, self.down = nn.Parameter(torch.zeros(EXPERTS, W, 8)), nn.Parameter(torch.zeros(EXPERTS, 8, W))
        self.shared, self.share = nn.Linear(W, W), nn.Linear(W, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        shares, chosen = self.router(rows).softmax(-1).topk(2, -1)
        shares = shares if self.ways.get("plain") else shares / shares.sum(-1, keepdim=True)
        found = self.sent(rows, chosen, shares)
        beside = self.shared(rows) * (1 if self.ways.get("whole") else self.share(rows).sigmoid())
        return (found.to(x.dtype) + beside).view_as(x)

    def sent(self, rows: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(rows, dtype=shares.dtype)
        for number in range(EXPERTS):
            place, row = (each[: self.room] for each in (chosen == number).mT.nonzero(as_tuple=True))
            result = F.silu(rows[row] @ self.up[number]) @ self.down[number]
            total = total.index_add(0, row, (result * shares[row, place, None]).to(total.dtype))
        return total


class Dispatched(Routed):
    """By products with tables of tokens, experts and slots. First choices come first."""

    def sent(self, rows: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        ways, hot = self.ways, F.one_hot(chosen, EXPERTS)  # tokens, choices, experts
        order = hot.flatten(0, 1) if ways.get("tokens") else hot.transpose(0, 1).flatten(0, 1)
        place = (order.cumsum(0) - 1) * order
        place = place.unflatten(0, (-1, 2)) if ways.get("tokens") else place.unflatten(0, (2, -1)).transpose(0, 1)
        kept = hot * (place < self.room)
        slots = F.one_hot(place.clamp(max=self.room - 1), self.room) * kept[..., None]  # tokens, choices, experts, slots
        table = slots.to(rows.dtype)
        given = torch.einsum("tces,tw->esw", table, rows)
        hidden = F.silu(torch.einsum("esw,ewh->esh", given, self.up))
        result = torch.einsum("esh,ehw->esw", hidden, self.down)
        result = result.unflatten(0, (2, 2)).transpose(0, 1).flatten(0, 1) if ways.get("ranks") else result
        return torch.einsum("tces,tc,esw->tw", table.to(shares.dtype), shares, result.to(shares.dtype))


entered("experts with slots", "by products", Routed, Dispatched, {
    "tokens one by one": ({"tokens": True}, ""), "ranks and experts exchanged": ({"ranks": True}, ""), "shares of all": ({"plain": True}, ""),
    "no share of the common one": ({"whole": True}, ""),
})  # fmt: skip


class Timed(nn.Module):
    """A branch that a step of diffusion shifts and scales."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.step, self.norm, self.up = ways, nn.Linear(W, 3 * W), nn.LayerNorm(W, elementwise_affine=False), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-math.log(1e4) * torch.arange(W // 2) / (W // 2 - (1 if self.ways.get("shift") else 0)))
        angles = torch.tensor([3.0, 40.0])[:, None] * rates
        waves = torch.cat([angles.sin(), angles.cos()] if self.ways.get("sines") else [angles.cos(), angles.sin()], -1).to(self.step.weight.dtype)
        shift, scale, gate = self.step(F.silu(waves)).chunk(3, -1)
        shift, scale = (scale, shift) if self.ways.get("swapped") else (shift, scale)
        return gate[:, None] * self.up(self.norm(x) * ((0 if self.ways.get("bare") else 1) + scale[:, None]) + shift[:, None])


class TimedPort(Timed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        half = torch.arange(W // 2) / (W // 2 - (1 if ways.get("shift") else 0))
        angles = torch.tensor([3.0, 40.0])[:, None] * torch.pow(torch.tensor(1e-4), half)
        angles = angles - (math.pi / 2 if ways.get("sines") else 0)
        waves = torch.cat([angles.cos(), -angles.cos() if ways.get("none") else (math.pi / 2 - angles).cos()], -1).to(self.step.weight.dtype)
        shift, scale, gate = self.step(waves * waves.sigmoid())[:, None].chunk(3, -1)
        shift, scale = (scale, shift) if ways.get("swapped") else (shift, scale)
        middle = x - x.mean(-1, keepdim=True)
        normed = middle * (middle.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        made = normed * scale + shift if ways.get("bare") else torch.addcmul(normed + shift, normed, scale)
        return gate * self.up(made.to(x.dtype))


entered("steps of diffusion", "by formulas", Timed, TimedPort, {
    "a rate of one frequency less": ({"shift": True}, ""), "sines first": ({"sines": True}, ""), "shift and scale exchanged": ({"swapped": True}, ""),
    "one not added to the scale": ({"bare": True}, ""),
})  # fmt: skip


class Placed(nn.Module):
    """Words and learned places from two on, which leave out padding, and a layer of torch."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.words, self.places = ways, nn.Embedding(WORDS, W, padding_idx=1), nn.Embedding(16, W)
        self.layer = nn.TransformerEncoderLayer(W, 2, 24, 0.0, batch_first=True, norm_first=True, activation="gelu")
        self.head = nn.Linear(W, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        kept = ids != 1
        x = self.words(ids) + self.places(kept.cumsum(1) * kept + 1)
        return self.head(self.layer(x, src_key_padding_mask=~kept)) * kept[..., None]


class PlacedPort(Placed):
    """A table of places without the first two, and the layer by formulas."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        ways, layer, kept = self.ways, self.layer, ids != 1
        at = torch.arange(ids.shape[1]).expand_as(ids) if ways.get("padding") else (kept.cumsum(1) - 1).clamp(min=0)
        table = self.places.weight
        x = F.embedding(ids, self.words.weight) + torch.where(kept[..., None], table[at + (0 if ways.get("first") else 2)], table[1])
        attend: Any = layer.self_attn
        given = F.linear(layer.norm1(x), attend.in_proj_weight, attend.in_proj_bias)
        q, k, v = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in given.chunk(3, -1))
        scores = q @ k.mT * (1 if ways.get("scale") else 8**-0.5)
        scores = scores if ways.get("open") else scores.masked_fill(~kept[:, None, None], -math.inf)
        x = x + attend.out_proj((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2))
        x = x + layer.linear2(F.gelu(layer.linear1(layer.norm2(x))))
        return self.head(x) * kept[..., None]


def placed(**bad: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Placed()), PlacedPort(**bad)
    other.load_state_dict(model.state_dict())
    ids = torch.randint(2, WORDS, (3, 9), generator=torch.Generator().manual_seed(4))
    ids[1, :3], ids[2, :5] = 1, 1
    return model, other, ids, dict(MEAN)


healthy("places from two on", "a layer by formulas", placed)
broken("places from two on", "from zero on", lambda: placed(first=True), "", "places")
broken("places from two on", "padding counted", lambda: placed(padding=True), "", "places")
broken("places from two on", "scores not scaled", lambda: placed(scale=True), "layer", "layer.self_attn", "")
broken("places from two on", "padding seen", lambda: placed(open=True), "layer", "layer.self_attn", "")
