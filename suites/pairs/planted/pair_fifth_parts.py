"""A fifth batch, second part: experts that choose tokens, weights of four bits, slopes, segments, gated recurrences."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, language_loss, spread
from torch import nn

W, H = 24, 6


class Choosing(nn.Module):
    """Experts that choose their tokens, and a loss that balances them."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.router = ways, nn.Linear(W, 4, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(4, W, 2 * W)), nn.Parameter(torch.randn(4, 2 * W, W))
        self.shared, self.gate = nn.Linear(W, W), nn.Linear(W, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ways, flat = self.ways, x.flatten(0, 1)
        shares = self.router(flat).float().softmax(0 if ways.get("tokens") else -1)
        weights, places = shares.topk(6, 0)
        if ways.get("form") == "other":
            taken = flat[places.t()] * (weights.t()[..., None].to(flat.dtype) if ways.get("early") else 1)
            made = torch.bmm(F.silu(torch.bmm(taken, self.up)), self.down)
            made = made if ways.get("early") else made * weights.t()[..., None].to(made.dtype)
            total = torch.zeros_like(flat).index_add(0, places.t().flatten(), made.flatten(0, 1).to(flat.dtype))
        else:
            total = torch.zeros_like(flat)
            for number in range(4):
                made = F.silu(flat[places[:, number]] @ self.up[number]) @ self.down[number]
                total = total.index_add(0, places[:, number], (made * weights[:, number, None].to(made.dtype)).to(total.dtype))
        gate = self.gate(flat)
        total = total + (gate if ways.get("ungated") else torch.sigmoid(gate)) * self.shared(flat)
        best = F.one_hot(shares.argmax(-1), 4).float().mean(0)
        balance = 4 * (best * shares.mean(0)).sum() if not ways.get("squared") else 4 * shares.mean(0).square().sum()
        return total.view(x.shape), balance


def choosing(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Choosing()), Choosing(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(2, 9, W), {"loss": lambda out: out[0].float().square().mean() + out[1].float()}


class Packed(nn.Module):
    """A layer whose weights are codes of four bits, two in a byte, with a scale and a zero point for each group of eight."""

    def __init__(self, codes: torch.Tensor, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.register_buffer("codes", codes)
        self.scale, self.bias = nn.Parameter(torch.rand(W, W // 8) * 0.1 + 0.02), nn.Parameter(torch.randn(W))
        self.register_buffer("zero", torch.randint(5, 11, (W, W // 8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        low, high = self.codes & 15, self.codes >> 4
        pair = (high, low) if ways.get("order") else (low, high)
        numbers = (torch.cat(pair, 1) if ways.get("split") else torch.stack(pair, 2).flatten(1)).to(x.dtype)
        if ways.get("form") == "other":
            zero = self.zero.to(x.dtype)
            given = x.unflatten(-1, (-1, 8))
            parts = torch.einsum("...gk,ogk->...og", given, numbers.unflatten(-1, (-1, 8)))
            if ways.get("late"):
                return ((parts * self.scale - given.sum(-1)[..., None, :] * zero).sum(-1) + self.bias).to(x.dtype)
            return ((parts - given.sum(-1)[..., None, :] * zero) * self.scale).sum(-1) + self.bias
        if ways.get("tiled"):
            scale, zero = self.scale.repeat(1, 8), self.zero.repeat(1, 8)
        else:
            scale, zero = self.scale.repeat_interleave(8, 1), self.zero.repeat_interleave(8, 1)
        if ways.get("eight"):
            zero = torch.full_like(zero, 8)
        return F.linear(x, (numbers - zero.to(x.dtype)) * scale, self.bias)


class Coded(nn.Module):
    def __init__(self, codes: list[torch.Tensor], **ways: Any) -> None:
        super().__init__()
        bad = {"form": ways.get("form")}
        self.first, self.second, self.last = Packed(codes[0], **bad), Packed(codes[1], **ways), nn.Linear(W, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.gelu(self.second(F.gelu(self.first(x)))))


def coded(**ways: Any) -> Made:
    torch.manual_seed(0)
    codes = [torch.randint(0, 256, (W, W // 2), dtype=torch.uint8) for _ in range(2)]
    model, other = Coded(codes), Coded(codes, **ways)
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(5, W), MEAN


def slopes(heads: int, *, plain: bool) -> torch.Tensor:
    """ALiBi's slopes: for six heads those of four, and every second one of eight."""
    if plain:
        return 2.0 ** (-8 * (torch.arange(heads) + 1) / heads)
    return torch.cat([2.0 ** (-8 * (torch.arange(4) + 1) / 4), 2.0 ** (-8 * (torch.arange(8) + 1) / 8)[::2][: heads - 4]])


class Sloped(nn.Module):
    """Grouped heads with slopes, a window, and a norm whose weight is one more; documents packed in a row by their lengths."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.gain = ways, nn.Parameter(torch.zeros(W))
        self.q, self.kv, self.o = nn.Linear(W, W, bias=False), nn.Linear(W, 16, bias=False), nn.Linear(W, W, bias=False)

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        if self.ways.get("root"):
            wide = wide / (wide.square().mean(-1, keepdim=True).sqrt() + 1e-3)
        elif self.ways.get("form") == "other":
            wide = F.rms_norm(wide, (W,), eps=1e-3)
        else:
            wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-3)
        return (wide * (self.gain.float() + (0 if self.ways.get("bare") else 1))).to(x.dtype)

    def forward(self, x: torch.Tensor, ends: list[int]) -> torch.Tensor:
        ways, y = self.ways, self.normed(x)
        q, (k, v) = self.q(y).unflatten(-1, (H, 4)).transpose(0, 1), (each.unflatten(-1, (2, 4)).transpose(0, 1) for each in self.kv(y).chunk(2, -1))
        k, v = (each.repeat_interleave(3, 0) for each in (k, v))
        slope = slopes(H, plain=bool(ways.get("plain")))[:, None, None]
        length = 5 if ways.get("longer") else 4
        if ways.get("form") != "other":
            document = torch.bucketize(torch.arange(len(x)), torch.tensor(ends), right=True)
            apart = torch.arange(len(x))[:, None] - torch.arange(len(x))
            seen = (document[:, None] == document) & (apart >= 0) & (apart < length)
            scores = (q @ k.mT).float() / 2 - slope * apart
            mixed = scores.masked_fill(~seen, -math.inf).softmax(-1).to(v.dtype) @ v
        else:
            parts, begin = [], 0
            for end in ends:
                size = end - begin
                apart = torch.arange(size)[:, None] - torch.arange(size)
                bias = (-slope * apart).masked_fill((apart < 0) | (apart >= length), -math.inf).to(q.dtype)
                start = begin - 1 if ways.get("leaking") and begin else begin
                parts.append(F.scaled_dot_product_attention(q[:, begin:end], k[:, start : start + size], v[:, start : start + size], bias))
                begin = end
            mixed = torch.cat(parts, 1)
        return x + self.o(mixed.transpose(0, 1).flatten(1))


class Row(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(17, W)
        self.blocks, self.head = nn.ModuleList([Sloped(form=ways.get("form")), Sloped(**ways)]), nn.Linear(W, 17)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, [5, 7, 16, 20])
        return self.head(x)[None]


def row(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Row()), Row(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    tokens = torch.randint(0, 17, (20,))
    return model, other, tokens, {"loss": language_loss(tokens[None])}


class Points(nn.Module):
    """Points of several clouds in one tensor: a softmax and a mean within each, the largest of each."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.first, self.score, self.last = ways, nn.Linear(3, W), nn.Linear(W, 1), nn.Linear(3 * W, 4)

    def forward(self, x: torch.Tensor, cloud: torch.Tensor) -> torch.Tensor:
        ways, y = self.ways, F.gelu(self.first(x))
        score = self.score(y)[:, 0].float()
        member = F.one_hot(cloud, 4).bool().t()
        if ways.get("form") == "other":
            wide = score.expand(4, -1).masked_fill(~member, -math.inf)
            share = score.softmax(0).expand(4, -1) * member if ways.get("all") else wide.softmax(-1)
            pooled = share.to(y.dtype) @ y
            count = torch.full((4, 1), len(x) / 4) if ways.get("quarter") else member.sum(-1, keepdim=True)
            mean = (member.to(y.dtype) @ y) / count
            most = y.new_zeros(4, W).scatter_reduce(0, cloud[:, None].expand_as(y), y, "amax", include_self=bool(ways.get("zero")))
        else:
            parts = [y[cloud == each] for each in range(4)]
            shares = [score[cloud == each].softmax(0).to(y.dtype) for each in range(4)]
            pooled = torch.stack([share @ part for share, part in zip(shares, parts, strict=True)])
            mean, most = torch.stack([part.mean(0) for part in parts]), torch.stack([part.amax(0) for part in parts])
        return self.last(torch.cat([pooled, mean.to(pooled.dtype), most.to(pooled.dtype)], -1))


def points(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Points()), Points(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, (torch.randn(23, 3), torch.cat([torch.arange(4), torch.randint(0, 4, (19,))])), MEAN


class Gated(nn.Module):
    """Griffin's recurrence, whose input is scaled to keep its size; `other` in chunks of four with products of logarithms."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.first, self.gates, self.base, self.last = (
            ways,
            nn.Linear(5, W),
            nn.Linear(5, 2 * W),
            nn.Parameter(torch.rand(W)),
            nn.Linear(W, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, (r, i) = self.ways, self.gates(x).float().chunk(2, -1)
        logs = -(2.0 if ways.get("constant") else 4.0) * r.sigmoid() * F.softplus(self.base.float())
        scale = torch.sqrt(-torch.expm1(logs if ways.get("unsquared") else 2 * logs))
        given = scale * i.sigmoid() * self.first(x).float()
        state, made = torch.zeros(len(x), W), []
        if ways.get("form") == "other":
            for log, some in zip(logs.split(4, 1), given.split(4, 1), strict=True):
                total = log.cumsum(1)
                lower = torch.ones(log.shape[1], log.shape[1], dtype=torch.bool).tril()[..., None]
                share = (total[:, :, None] - total[:, None]).masked_fill(~lower, -math.inf).exp()
                carried = state.detach() if ways.get("cut") else state
                part = (share * some[:, None]).sum(2) + total.exp() * carried[:, None]
                state = torch.zeros_like(state) if ways.get("reset") else part[:, -1]
                made.append(part)
            out = torch.cat(made, 1)
        else:
            for place in range(x.shape[1]):
                state = logs[:, place].exp() * state + given[:, place]
                made.append(state)
            out = torch.stack(made, 1)
        return self.last(out.to(x.dtype))


def gated(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Gated()), Gated(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(2, 14, 5), MEAN


healthy("choosing", "tokens gathered, one product for all experts", choosing)
broken("choosing", "weights before the experts", lambda: choosing(early=True), "")
broken("choosing", "a softmax over tokens", lambda: choosing(tokens=True), "")
broken("choosing", "no sigmoid in the shared gate", lambda: choosing(ungated=True), "")
broken("choosing", "a balance of shares alone", lambda: choosing(squared=True), "")
healthy("packed weights", "sums of codes, scaled by group", lambda: coded(form="other"))
broken("packed weights", "the high half first", lambda: coded(order=True), "second")
broken("packed weights", "halves of a row for neighbours", lambda: coded(split=True), "second")
broken("packed weights", "the zero point after the scale", lambda: coded(form="other", late=True), "second")
broken("packed weights", "groups tiled", lambda: coded(tiled=True), "second")
broken("packed weights", "eight for each zero point", lambda: coded(eight=True), "second")
healthy("row", "a document at a time, torch's attention", row)
broken("row", "slopes as of a power of two", lambda: row(plain=True), "blocks.1")
broken("row", "a window of one more", lambda: row(longer=True), "blocks.1")
broken("row", "keys of the document before", lambda: row(leaking=True), "blocks.1")
broken("row", "eps outside of the root", lambda: row(root=True), "blocks.1")
broken("row", "a weight that is not one more", lambda: row(bare=True), "blocks.1")
healthy("points", "masks for segments", points)
broken("points", "a softmax over all clouds", lambda: points(all=True), "")
broken("points", "a mean over a quarter", lambda: points(quarter=True), "")
broken("points", "zero counts for the largest", lambda: points(zero=True), "")
healthy("gated recurrence", "chunks of four", gated)
broken("gated recurrence", "the state lost between chunks", lambda: gated(reset=True), "")
broken("gated recurrence", "no gradient between chunks", lambda: gated(cut=True), "")
broken("gated recurrence", "a root of one less the factor", lambda: gated(unsquared=True), "")
broken("gated recurrence", "another constant", lambda: gated(constant=True), "")
