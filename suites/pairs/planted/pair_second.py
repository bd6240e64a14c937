"""A second batch, written after the first had been mended for: faults in gradients, modes, masks, draws and steps; ports of other shapes."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from torch import nn

W, H = 24, 3


class Mixer(nn.Module):
    """Multi-head attention with a mask of distances, as ALiBi's, and queries and keys that are normalised."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.to_q, self.to_kv, self.out = nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(W, W)
        self.q_norm, self.k_norm = nn.LayerNorm(W // H), nn.LayerNorm(W // H)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, length = self.ways, x.shape[1]
        k, v = self.to_kv(x).chunk(2, -1)
        q, k, v = (each.unflatten(-1, (H, -1)).transpose(1, 2) for each in (self.to_q(x), k, v))
        q, k = self.q_norm(q), (k if ways.get("unnormed") else self.k_norm(k))
        slopes = 2.0 ** -torch.arange(1, H + 1).float() if not ways.get("slopes") else torch.full((H,), 0.5)
        distance = (torch.arange(length)[None] - torch.arange(length)[:, None]).float()
        bias = slopes[:, None, None] * (distance.abs().neg() if ways.get("both") else distance)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(0 if ways.get("strict") else 1)
        hidden = hidden & (torch.arange(length)[:, None] > 0)
        if ways.get("form") == "sdpa":
            added = bias.masked_fill(hidden, float("-inf")).to(q.dtype)
            mixed = F.scaled_dot_product_attention(q, k, v, added[None])
        else:
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(W // H)
            mixed = (scores + bias.to(scores.dtype)).masked_fill(hidden, -torch.inf).softmax(-1) @ v
        if ways.get("values_frozen"):
            mixed = mixed.detach() + 0 * mixed
        return self.out(mixed.transpose(1, 2).flatten(2))


class Stack(nn.Module):
    def __init__(self, bad: dict[str, Any] | None = None, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.embed, self.blocks = nn.Linear(6, W), nn.ModuleList(Mixer(**{**ways, **((bad or {}) if n else {})}) for n in range(2))
        self.norms, self.last = nn.ModuleList(nn.RMSNorm(W, eps=ways.get("eps", 1e-6)) for _ in range(2)), nn.Linear(W, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for number, (norm, block) in enumerate(zip(self.norms, self.blocks, strict=True)):
            y = block(norm(x))
            if self.ways.get("gain") and number:
                y = y * self.ways["gain"]
            x = torch.utils.checkpoint.checkpoint(lambda a, b: a + b, x, y, use_reentrant=False) if self.ways.get("saved") else x + y
        if self.ways.get("clamped"):
            x = x.clamp(-self.ways["clamped"], self.ways["clamped"])
        return self.last(x[:, -1] if not self.ways.get("pooled") else x.mean(1))


def stack(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Stack()), Stack(**{"form": "sdpa", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(2, 9, 6), MEAN


class Flow(nn.Module):
    """A coupling layer, and its logarithm of the determinant."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.nets = ways, nn.ModuleList(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 6)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x.new_zeros(len(x), dtype=torch.float32)
        for number, net in enumerate(self.nets):
            a, b = x.chunk(2, -1)
            a, b = (b, a) if number and not self.ways.get("same_half") else (a, b)
            shift, log = net(a).chunk(2, -1)
            log = torch.tanh(log)
            b = b * log.exp() + shift
            total = total + log.float().sum(-1) * (-1 if number and self.ways.get("sign") else 1)
            x = torch.cat([b, a] if number and not self.ways.get("same_half") else [a, b], -1)
        return x, total


def flow(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, inner = spread(Flow(), 0.5), Flow(**ways)
    inner.load_state_dict(model.state_dict())

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = inner

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            z, total = self.core(x)
            return {"z": z, "log_det": total if not ways.get("mean") else total / x.shape[1]}

    def loss(out: Any) -> torch.Tensor:
        z, total = (out["z"], out["log_det"]) if isinstance(out, dict) else out
        return (0.5 * z.float().square().sum(-1) - total).mean()

    return model, Named(), torch.randn(7, 6), {"loss": loss}


class Quiet(nn.Module):
    """Dropout, batch norm and a running average, in training or not."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.first, self.norm, self.drop, self.last = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(ways.get("p", 0.2)), nn.Linear(16, 2)
        self.register_buffer("average", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.first(x))
        with torch.no_grad():
            self.average: torch.Tensor
            self.average.lerp_(y.detach().float().mean(0).to(self.average.dtype), self.ways.get("rate", 0.1))
        if self.ways.get("form") == "function":
            y = F.dropout(y, self.drop.p, True if self.ways.get("always") else self.training)
        else:
            y = self.drop(y)
        return self.last(F.relu(y))


def quiet(training: bool = True, **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Quiet(), 0.4), Quiet(form="function", **ways)
    other.load_state_dict(model.state_dict())
    return model.train(training), other.train(training), torch.randn(9, 6), MEAN


class Turned(nn.Module):
    def __init__(self, source: nn.Sequential, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.kernels = nn.ParameterList(layer.weight.detach().clone() for layer in source if isinstance(layer, nn.Conv1d))
        self.offsets = nn.ParameterList(layer.bias.detach().clone() for layer in source if isinstance(layer, nn.Conv1d))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, (kernel, offset) in enumerate(zip(self.kernels, self.offsets, strict=True)):
            wide = 2**number
            x = F.pad(x, (wide, wide) if self.ways.get("centred") and number else (2 * wide, 0))
            parts = [x[..., place * wide : x.shape[-1] - (2 - place) * wide] for place in range(3)]
            taps = range(2, -1, -1) if self.ways.get("flipped") and number else range(3)
            x = sum(torch.einsum("oc,bct->bot", kernel[..., tap], part) for tap, part in zip(taps, parts, strict=True)) + offset[:, None]
            x = x if number else torch.tanh(x)
        return x


class Causal(nn.Conv1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.pad(x, (2 * self.dilation[0], 0)))


def waves(**ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(nn.Sequential(Causal(2, 8, 3), nn.Tanh(), Causal(8, 3, 3, dilation=2)))
    assert isinstance(model, nn.Sequential)
    return model, Turned(model, **ways), torch.randn(2, 2, 14), MEAN


def stepped(optimizer: Any = torch.optim.SGD, **ways: Any) -> Made:
    """A schedule of three steps; other's weights are one flat tensor, cut in the forward pass."""
    torch.manual_seed(0)
    model = spread(nn.Linear(6, 4))

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(model.weight.detach().t().clone()), nn.Parameter(model.bias.detach().clone())  # type: ignore[union-attr, operator]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x @ self.weight + self.bias
            return y + ways["leak"] * self.weight.square().sum() if "leak" in ways else y

    return model, Scaled(), torch.randn(8, 6), {**MEAN, "optimizer": functools.partial(optimizer, lr=0.05), "steps": 3}


healthy("distances", "torch's attention with a bias", stack)
healthy("distances", "sums recomputed", lambda: stack(saved=True))
broken("distances", "keys not normalised", lambda: stack(bad={"unnormed": True}), "blocks.1", "blocks.1.k_norm")
broken("distances", "one slope for all heads", lambda: stack(bad={"slopes": True}), "blocks.1")
broken("distances", "the token itself hidden", lambda: stack(bad={"strict": True}), "blocks.1", said="mask")
broken("distances", "attention without a gradient", lambda: stack(bad={"values_frozen": True}), "blocks.1")
broken("distances", "a gain of one branch", lambda: stack(gain=0.9), "", said="0.9 times")
broken("distances", "clamped activations", lambda: stack(clamped=1.0), "")
broken("distances", "mean for the last token", lambda: stack(pooled=True), "")
broken("distances", "eps of the norms", lambda: stack(eps=1e-3), "norms.0", said="eps is 0.001")
healthy("flow", "a container for a tuple", flow)
broken("flow", "the same half twice", lambda: flow(same_half=True), "core")
broken("flow", "a sign of the determinant", lambda: flow(sign=True), "core")
broken("flow", "a mean over dimensions", lambda: flow(mean=True), "", said="0.166667 times")
healthy("quiet", "dropout as a function", quiet)
healthy("quiet", "in eval", lambda: quiet(training=False))
broken("quiet", "dropout in eval", lambda: quiet(training=False, always=True), "")
broken("quiet", "another rate of dropout", lambda: quiet(p=0.3), "")
broken("quiet", "another rate of a running average", lambda: quiet(rate=0.2), "")
healthy("waves", "taps added one by one", waves)
broken("waves", "padded on both sides", lambda: waves(centred=True), "")
broken("waves", "taps the other way round", lambda: waves(flipped=True), "")
healthy("flat", "a weight turned, with steps of Adam", lambda: stepped(torch.optim.AdamW))
broken("flat", "a penalty in the output", lambda: stepped(leak=1e-3), "")
