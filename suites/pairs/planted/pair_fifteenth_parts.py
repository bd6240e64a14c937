"""A fifteenth batch, second part: positions stretched, differences of attentions, weights of three values, streams, returns, hashed words.

As in the first part, most networks have two layers of one kind, and a fault is in the second layer alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_fifteenth import LAST, LENGTH, ROWS, W, entered
from pair_fourteenth_scans import numbers
from torch import nn

HEADS, SIZE = 2, 8


class Stretched(nn.Module):
    """Attention with rotary positions, whose slow angles are stretched. `kind`: by pairs of numbers, or by complex ones."""

    def __init__(self, kind: str = "pairs", factor: float = 4.0, ramp: bool = True, warm: float = 1.2, start: int = 0, turned: bool = False) -> None:
        super().__init__()
        self.kind, self.factor, self.ramp, self.warm, self.start, self.turned = kind, factor, ramp, warm, start, turned
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def angles(self, length: int) -> torch.Tensor:
        rates = 10.0 ** (-torch.arange(0, SIZE, 2) / (SIZE / 2))
        share = (torch.arange(SIZE // 2) / (SIZE // 2 - 1)).clamp(0, 1)
        share = 1 - share if self.turned else share if self.ramp else torch.ones(SIZE // 2)
        return (torch.arange(length) + self.start)[:, None] * (rates * (1 - share) + rates / self.factor * share)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        angles = self.angles(x.shape[1])
        if self.kind == "pairs":
            cos, sin = (angles.cos() * self.warm).to(q.dtype), (angles.sin() * self.warm).to(q.dtype)
            q, k = (torch.cat([a * cos - b * sin, b * cos + a * sin], -1) for a, b in (each.chunk(2, -1) for each in (q, k)))
            made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            turns = torch.polar(torch.ones_like(angles), angles)
            q, k = (torch.complex(*each.float().chunk(2, -1)) * turns for each in (q, k))
            scores = (q @ k.conj().mT).real * (self.warm**2 / math.sqrt(SIZE))
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            made = scores.masked_fill(hidden, -torch.inf).softmax(-1).to(v.dtype) @ v
        return self.out(made.transpose(1, 2).flatten(2))


entered("positions stretched", Stretched, {"complex": {"kind": "complex"}, "from seven on": {"start": 7}}, {
    "multiplied for divided": {"factor": 0.25},
    "all of them": {"ramp": False}, "not warmer": {"warm": 1.0}, "fast for slow": {"turned": True}})  # fmt: skip


class Differing(nn.Module):
    """The difference of two attentions, normed head by head. `kind`: torch's kernels, or by formulas."""

    def __init__(self, kind: str = "torch", plus: bool = False, scaled: bool = True, halves: bool = False, normed: bool = True) -> None:
        super().__init__()
        self.kind, self.plus, self.scaled, self.halves, self.normed = kind, plus, scaled, halves, normed
        self.qk, self.v, self.out = nn.Linear(W, 2 * W), nn.Linear(W, W), nn.Linear(W, W)
        self.share, self.norm = nn.Parameter(torch.zeros(HEADS)), nn.RMSNorm(SIZE, eps=1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v, share = self.v(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2), torch.sigmoid(self.share.float())[:, None, None]
        q, k = (each.unflatten(-1, (2 * HEADS, SIZE // 2)).transpose(1, 2) for each in self.qk(x).chunk(2, -1))
        if self.halves:
            q, k = (each.unflatten(1, (2, HEADS)).transpose(1, 2).flatten(1, 2) for each in (q, k))
        if self.kind == "torch":
            one, two = (F.scaled_dot_product_attention(q[:, place::2], k[:, place::2], v) for place in (0, 1))
        else:
            shares = ((q @ k.mT).float() / math.sqrt(SIZE // 2)).softmax(-1).to(v.dtype)
            one, two = shares[:, 0::2] @ v, shares[:, 1::2] @ v
        made = one + share.to(v.dtype) * two if self.plus else one - share.to(v.dtype) * two
        made = self.norm(made) if self.normed else made
        return self.out((made * 0.2 if self.scaled else made).transpose(1, 2).flatten(2))


entered("two attentions apart", Differing, {"by formulas": {"kind": "formulas"}}, {
    "added": {"plus": True},
    "not scaled": {"scaled": False}, "halves for neighbours": {"halves": True}, "not normed": {"normed": False}})  # fmt: skip


class Three(nn.Module):
    """A product whose weights are -1, 0 or 1 and one scale, with the gradient of plain weights. `kind`: scaled before, or after."""

    def __init__(self, kind: str = "before", rows: bool = False, largest: bool = False, straight: bool = True, cut: float = 0.5) -> None:
        super().__init__()
        self.kind, self.rows, self.largest, self.straight, self.cut = kind, rows, largest, straight, cut
        self.norm, self.weight, self.bias = nn.LayerNorm(W), nn.Parameter(torch.zeros(W, W)), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.weight.float()
        size = wide.detach().abs()
        scale = size.amax() / 2 if self.largest else size.mean(1, keepdim=True) if self.rows else size.mean()
        codes = torch.sign(wide.detach()) * (size > self.cut * scale)
        x = self.norm(x)
        if self.kind == "before":
            return F.linear(x, (wide + (codes * scale - wide).detach()).to(x.dtype), self.bias.to(x.dtype))
        made = wide / scale
        held = codes + (made - made.detach() if self.straight else 0)
        scale = scale.flatten() if self.rows else scale
        return (F.linear(x, held.to(x.dtype)) * scale.to(x.dtype)) + self.bias.to(x.dtype)


entered("weights of three values", Three, {"scaled after": {"kind": "after"}}, {
    "a scale for each row": {"rows": True}, "the largest for the mean": {"largest": True}, "no gradient": {"straight": False},
    "more zeros": {"cut": 0.9}})  # fmt: skip


class Gated(torch.autograd.Function):
    """gelu(x @ gate) * (x @ up) with a backward pass by hand."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor, fault: str) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(gate, up)
        ctx.fault = fault
        return F.gelu(gate) * up

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[override]
        (gate, up), fault = ctx.saved_tensors, ctx.fault
        wide = gate.float()
        share = 0.5 * (1 + torch.erf(wide / math.sqrt(2)))
        slope = share if fault == "share" else share + wide * torch.exp(-wide * wide / 2) / (1.0 if fault == "unscaled" else math.sqrt(2 * math.pi))
        to_gate, to_up = (given * up).float() * slope, given.float() * wide * share
        return to_gate.to(gate.dtype), (given.float() * wide if fault == "plain" else to_up).to(up.dtype), None


class Fused(nn.Module):
    """A gated branch whose two products are one. `kind`: by parts, or with a backward pass by hand."""

    def __init__(self, kind: str = "parts", fault: str = "") -> None:
        super().__init__()
        self.kind, self.fault, self.both, self.down = kind, fault, nn.Linear(W, 4 * W), nn.Linear(2 * W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.both(x).chunk(2, -1)
        return self.down(F.gelu(gate) * up if self.kind == "parts" else Gated.apply(gate, up, self.fault))  # type: ignore[no-untyped-call]


entered("a gated branch by hand", Fused, {"its own backward pass": {"kind": "hand"}}, {
    "only the share": {"fault": "share"}, "a density not scaled": {"fault": "unscaled"}, "a gate not bent": {"fault": "plain"}})  # fmt: skip


class Scaled(nn.Module):
    """Filters that each row scales by its own style and that are normed again. `kind`: in groups, or by scaling what goes in and comes out."""

    def __init__(self, kind: str = "groups", normed: bool = True, outward: bool = False, eps: float = 1e-4, plus: float = 1.0) -> None:
        super().__init__()
        self.kind, self.normed, self.outward, self.eps, self.plus = kind, normed, outward, eps, plus
        self.style, self.weight = nn.Linear(W, W), nn.Parameter(torch.zeros(W, W, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        style, weight = self.style(x.mean(1)).float() + self.plus, self.weight.float()
        made = weight * (style[:, :, None, None] if self.outward else style[:, None, :, None])
        norms = (made.square().sum((2, 3)) + self.eps).rsqrt()
        if self.kind == "groups":
            made = (made * norms[:, :, None, None] if self.normed else made).flatten(0, 1).to(x.dtype)
            return F.conv1d(x.mT.reshape(1, -1, x.shape[1]), made, padding=1, groups=len(x)).view(len(x), W, -1).mT
        if self.outward:
            out = F.conv1d(x.mT, self.weight.to(x.dtype), padding=1) * style[:, :, None].to(x.dtype)
        else:
            out = F.conv1d(x.mT * style[:, :, None].to(x.dtype), self.weight.to(x.dtype), padding=1)
        return (out * norms[:, :, None].to(x.dtype) if self.normed else out).mT


entered("filters by style", Scaled, {"scaled outside": {"kind": "outside"}}, {
    "not normed": {"normed": False},
    "styles of what goes out": {"outward": True}, "an eps of 1e-1": {"eps": 0.1}, "no one added": {"plus": 0.0}})  # fmt: skip


class Bigger(nn.Module):
    """Channels become pixels of a picture twice as large, which is made small again. `kind`: torch's, or by axes."""

    def __init__(self, kind: str = "torch", order: str = "channels", turned: bool = False) -> None:
        super().__init__()
        self.kind, self.order, self.turned, self.up, self.down = kind, order, turned, nn.Linear(W, 4 * W), nn.Conv2d(W, W, 3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.up(x).mT.unflatten(-1, (3, 4))
        if self.kind == "torch":
            made = F.pixel_shuffle(made, 2)
        else:
            parts = made.unflatten(1, (W, 2, 2)) if self.order == "channels" else made.unflatten(1, (2, 2, W)).permute(0, 3, 1, 2, 4, 5)
            parts = parts.transpose(2, 3) if self.turned else parts
            made = parts.permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)
        return self.down(F.silu(made)).flatten(2).mT


entered("pixels from channels", Bigger, {"by axes": {"kind": "axes"}}, {
    "channels last": {"order": "last"}, "lines for columns": {"turned": True}})  # fmt: skip


class Router(nn.Module):
    """Shares of four experts and two losses of them."""

    def __init__(self, kind: str = "counts", counted: bool = True, many: bool = True, squared: bool = True) -> None:
        super().__init__()
        self.kind, self.counted, self.many, self.squared, self.line = kind, counted, many, squared, nn.Linear(W, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.line(x).float()
        shares = logits.softmax(-1)
        if self.kind == "counts":
            sent = F.one_hot(shares.argmax(-1), 4).float().mean((0, 1))
            level = logits.logsumexp(-1)
        else:
            sent = torch.stack([(shares.argmax(-1) == each).float().mean() for each in range(4)]) if self.counted else shares.detach().mean((0, 1))
            level = logits.amax(-1) + (logits - logits.amax(-1, keepdim=True)).exp().sum(-1).log()
        balance = (sent * shares.mean((0, 1))).sum() * (4 if self.many else 1)
        return shares.to(x.dtype), balance + 0.1 * (level.square() if self.squared else level.abs()).mean()


class Chosen(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.router, self.experts = Router(**ways), nn.ModuleList([nn.Linear(W, W) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shares, loss = self.router(x)
        return sum(F.gelu(expert(x)) * shares[..., place, None] for place, expert in enumerate(self.experts)), loss  # type: ignore[return-value]


class Streams(nn.Module):
    """Three residual streams that each layer reads a mean of, writes to, and mixes. `kind`: at once, or stream by stream."""

    def __init__(self, kind: str = "at once", turned: bool = False, late: bool = False) -> None:
        super().__init__()
        self.kind, self.turned, self.late, self.line = kind, turned, late, nn.Linear(W, W)
        self.read, self.write, self.mix = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3)), nn.Parameter(torch.eye(3))

    def forward(self, streams: torch.Tensor) -> torch.Tensor:
        if self.kind == "at once":
            made = torch.tanh(self.line(torch.einsum("btnw,n->btw", streams, self.read.to(streams.dtype))))
            return torch.einsum("btnw,nm->btmw", streams, self.mix.to(streams.dtype)) + made[:, :, None] * self.write[:, None].to(made.dtype)
        each = streams.unbind(2)
        mix = self.mix.T if self.turned else self.mix
        mixed = [sum(each[n] * mix[n, m].to(each[n].dtype) for n in range(3)) for m in range(3)]
        read = sum((mixed if self.late else each)[n] * self.read[n].to(each[n].dtype) for n in range(3))
        made = torch.tanh(self.line(read))
        return torch.stack([mixed[m] + made * self.write[m].to(made.dtype) for m in range(3)], 2)  # type: ignore[operator]


class Network(nn.Module):
    """Layers of one of the two kinds above."""

    def __init__(self, part: type[nn.Module], ways: dict[str, Any], bad: dict[str, Any]) -> None:
        super().__init__()
        self.streams, self.layers, self.head = part is Streams, nn.ModuleList([part(**ways), part(**ways, **bad)]), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> Any:
        if self.streams:
            x = torch.stack([x, x, x], 2)
            for layer in self.layers:
                x = layer(x)
            return self.head(x.sum(2))
        losses = []
        for layer in self.layers:
            made, loss = layer(x)
            x = x + made
            losses.append(loss)
        return self.head(x), torch.stack(losses).sum()


def network(part: type[nn.Module], ways: dict[str, Any], **bad: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Network(part, {}, {})), Network(part, ways, bad)
    other.load_state_dict(model.state_dict())
    loss = MEAN["loss"] if part is Streams else lambda out: out[0].float().square().mean() + out[1]
    return model, other, numbers(ROWS, LENGTH, W), {"loss": loss}


healthy("losses of a router", "place by place", lambda: network(Chosen, {"kind": "places"}))
healthy("three streams", "stream by stream", lambda: network(Streams, {"kind": "each"}))
for fault, given in (("shares for counts", {"counted": False}), ("not times experts", {"many": False}), ("a level not squared", {"squared": False})):
    broken("losses of a router", fault, lambda given=given: network(Chosen, {"kind": "places"}, **given), "layers.1.router", LAST)  # type: ignore[misc]
for fault, given in (("a mix turned round", {"turned": True}), ("read after it is mixed", {"late": True})):
    broken("three streams", fault, lambda given=given: network(Streams, {"kind": "each"}, **given), LAST)  # type: ignore[misc]
