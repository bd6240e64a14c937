"""The third batch: recurrences, convolutions, norms, experts, each written in two ways."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy
from pair_third import T, W, pair
from torch import nn


class Decaying(nn.Module):
    """h = a h + b x, step by step, or by doubling strides."""

    def __init__(self, form: str = "", late: bool = False, one: bool = False, reverse: bool = False) -> None:
        super().__init__()
        self.form, self.late, self.one, self.reverse = form, late, one, reverse
        self.gate, self.value, self.out = nn.Linear(W, W), nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        decay, value = torch.sigmoid(self.gate(x)).float(), self.value(x).float()
        value = value * (1 if self.one else (1 - decay))
        if self.late:
            decay = F.pad(decay, (0, 0, 1, 0))[:, :-1]
        if self.reverse:
            decay, value = decay.flip(1), value.flip(1)
        if self.form == "other":
            stride = 1
            while stride < T:
                value = torch.cat([value[:, :stride], value[:, stride:] + decay[:, stride:] * value[:, :-stride]], 1)
                decay = torch.cat([decay[:, :stride], decay[:, stride:] * decay[:, :-stride]], 1)
                stride *= 2
            states = value
        else:
            state, rows = torch.zeros_like(value[:, 0]), []
            for place in range(T):
                state = decay[:, place] * state + value[:, place]
                rows.append(state)
            states = torch.stack(rows, 1)
        return self.out((states.flip(1) if self.reverse else states).to(x.dtype))


class Shifted(nn.Module):
    """Each token mixed with the one before it, and squared ReLU."""

    def __init__(self, form: str = "", ahead: bool = False, plain: bool = False, mixed: bool = False) -> None:
        super().__init__()
        self.form, self.ahead, self.plain, self.mixed = form, ahead, plain, mixed
        self.share, self.key, self.value = nn.Parameter(torch.rand(W)), nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = F.pad(x, (0, 0, 1, 0))[:, :-1] if self.form != "other" else torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
        before = F.pad(x, (0, 0, 0, 1))[:, 1:] if self.ahead else before
        share = (1 - self.share if self.mixed else self.share).to(x.dtype)
        x = torch.lerp(before, x, share.expand_as(x)) if self.form == "other" else x * share + before * (1 - share)
        hidden = self.key(x).relu()
        return self.value(hidden if self.plain else hidden * hidden if self.form == "other" else hidden.square())


class Long(nn.Module):
    """A convolution as long as the sequence: by a transform, or by a matrix of its taps."""

    def __init__(self, form: str = "", round_: bool = False, turned: bool = False) -> None:
        super().__init__()
        self.form, self.round, self.turned = form, round_, turned
        self.taps, self.out = nn.Parameter(torch.randn(W, T) * 0.3), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taps = self.taps.float().flip(-1) if self.turned else self.taps.float()
        wide = x.float().transpose(1, 2)
        if self.form == "other":
            size = T if self.round else 2 * T
            y = torch.fft.irfft(torch.fft.rfft(wide, size) * torch.fft.rfft(taps, size), size)[..., :T]
        else:
            place = torch.arange(T)[:, None] - torch.arange(T)
            y = torch.einsum("cts,bcs->bct", torch.where(place >= 0, taps[:, place.clamp(min=0)], 0.0), wide)
        return self.out(y.transpose(1, 2).to(x.dtype))


class Gated(nn.Module):
    """torch's GRU by hand."""

    def __init__(self, form: str = "", before: bool = False, order: bool = False, kept: bool = False) -> None:
        super().__init__()
        self.form, self.before, self.order, self.kept = form, before, order, kept
        self.cell = nn.GRU(W, W, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.form != "other":
            return self.cell(x)[0]
        given, state, rows = F.linear(x, self.cell.weight_ih_l0, self.cell.bias_ih_l0), torch.zeros(len(x), W, dtype=x.dtype), []
        weight, bias = self.cell.weight_hh_l0, self.cell.bias_hh_l0
        for place in range(T):
            r, z, n = given[:, place].chunk(3, -1)
            rr, zz, nn_ = F.linear(state, weight, bias).chunk(3, -1)
            r, z = torch.sigmoid(r + rr), torch.sigmoid(z + zz)
            r, z = (z, r) if self.order else (r, z)
            n = torch.tanh(n + (F.linear(r * state, weight[2 * W :], bias[2 * W :]) if self.before else r * nn_))
            state = z * n + (1 - z) * state if self.kept else n + z * (state - n)
            rows.append(state)
        return torch.stack(rows, 1)


class Dispatch(nn.Module):
    """Two of four experts and one for all: tokens gathered for each expert, or all experts and a mask."""

    def __init__(self, form: str = "", scale: float = 1.5, **ways: bool) -> None:
        super().__init__()
        self.form, self.scale, self.unshared, self.full = form, scale, ways.get("unshared", False), ways.get("full", False)
        self.unnormed, self.biased = ways.get("unnormed", False), ways.get("biased", False)
        self.router, self.offset = nn.Linear(W, 4, bias=False), nn.Buffer(torch.tensor([0.1, -0.1, 0.2, 0.0]))
        self.up, self.down, self.shared = nn.Parameter(torch.randn(4, W, 8)), nn.Parameter(torch.randn(4, 8, W)), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        scores = torch.sigmoid(self.router(flat).float())
        chosen = (scores + self.offset.float()).topk(2, -1).indices
        weights = (scores + self.offset.float() if self.biased else scores).gather(-1, chosen)
        weights = (weights if self.unnormed else weights / weights.sum(-1, keepdim=True)) * self.scale
        if self.form == "other":
            total = torch.zeros(flat.shape)
            for expert in range(4):
                token, rank = (chosen == expert).nonzero(as_tuple=True)
                token, rank = (token[:6], rank[:6]) if self.full else (token, rank)
                y = F.silu(flat[token] @ self.up[expert]) @ self.down[expert]
                total = total.index_add(0, token, y.float() * weights[token, rank, None])
        else:
            hot = F.one_hot(chosen, 4).float()
            y = torch.einsum("teh,ehw->tew", F.silu(torch.einsum("tw,ewh->teh", flat, self.up)), self.down)
            total = torch.einsum("tk,tke,tew->tw", weights, hot, y.float())
        y = total.to(x.dtype).view_as(x)
        return y if self.unshared else y + self.shared(x)


class Modulated(nn.Module):
    """A norm whose shift and scale come from the mean over time, as in diffusion transformers; and a norm of groups."""

    def __init__(self, form: str = "", swapped: bool = False, plain: bool = False, mixed: bool = False, ungated: bool = False) -> None:
        super().__init__()
        self.form, self.swapped, self.plain, self.mixed, self.ungated = form, swapped, plain, mixed, ungated
        self.condition, self.mlp, self.groups = nn.Linear(W, 3 * W), nn.Linear(W, W), nn.GroupNorm(4, W, eps=1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = self.condition(F.silu(x.mean(1, keepdim=True))).chunk(3, -1)
        shift, scale = (scale, shift) if self.swapped else (shift, scale)
        if self.form == "other":
            centred = x.float() - x.float().mean(-1, keepdim=True)
            y = (centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
            y = y * scale + shift if self.plain else torch.addcmul(y + shift, y, scale)
        else:
            y = F.layer_norm(x, (W,), eps=1e-6) * (1 + scale) + shift
        y = self.mlp(F.gelu(y)).transpose(1, 2)
        if self.form == "other":
            parts = y.float().unflatten(1, (6, 4)).transpose(1, 2) if self.mixed else y.float().unflatten(1, (4, 6))
            variance, mean = torch.var_mean(parts, (2, 3), correction=0, keepdim=True)
            parts = (parts - mean) / torch.sqrt(variance + 1e-5)
            parts = (parts.transpose(1, 2) if self.mixed else parts).flatten(1, 2)
            y = (parts * self.groups.weight.float()[:, None] + self.groups.bias.float()[:, None]).to(y.dtype)
        else:
            y = self.groups(y)
        return y.transpose(1, 2) if self.ungated else gate * y.transpose(1, 2)


class Adapted(nn.Module):
    """A linear layer with weights of a low rank beside it, and weight norm on another."""

    def __init__(self, form: str = "", alpha: float = 8.0, axis: int = 1, frozen: bool = False) -> None:
        super().__init__()
        self.form, self.alpha, self.axis, self.frozen = form, alpha, axis, frozen
        self.base, self.a, self.b = nn.Linear(W, W), nn.Parameter(torch.randn(4, W)), nn.Parameter(torch.randn(W, 4))
        self.g, self.v = nn.Parameter(torch.rand(W, 1) + 0.5), nn.Parameter(torch.randn(W, W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.form == "other":
            a = self.a.detach() if self.frozen else self.a
            y = F.linear(x, self.base.weight + self.alpha / 4 * (self.b @ a), self.base.bias)
            weight = self.g * F.normalize(self.v, dim=self.axis, eps=0.0)
        else:
            y = self.base(x) + F.linear(F.linear(x, self.a), self.b) * (self.alpha / 4)
            weight = self.v * (self.g / self.v.norm(dim=1, keepdim=True))
        return F.linear(torch.tanh(y), weight)


def deep(**ways: Any) -> Made:
    """Weights of the usual size: a recurrence of two layers saturates else."""
    return pair(Gated, std=0.2, **ways)


# Faults: gates of a GRU in another order (keras-team/keras#8720), the reset gate before the product (keras-team/keras#9112), weights of experts not
# normalised (pytorch/torchtitan#1448), the correction's bias in the weights (PaddlePaddle/PaddleFormers#3452).
healthy("decaying", "strides that double", lambda: pair(Decaying))
broken("decaying", "the decay of the step before", lambda: pair(Decaying, bad={"late": True}), "blocks.1")
broken("decaying", "the input not weighed", lambda: pair(Decaying, bad={"one": True}), "blocks.1")
broken("decaying", "from the other end", lambda: pair(Decaying, bad={"reverse": True}), "blocks.1")
healthy("shifted", "an interpolation", lambda: pair(Shifted))
broken("shifted", "the token after it", lambda: pair(Shifted, bad={"ahead": True}), "blocks.1")
broken("shifted", "not squared", lambda: pair(Shifted, bad={"plain": True}), "blocks.1", "blocks.1.value", "blocks.1.key")
broken("shifted", "the shares swapped", lambda: pair(Shifted, bad={"mixed": True}), "blocks.1")
healthy("long", "a Fourier transform", lambda: pair(Long))
broken("long", "no room behind the sequence", lambda: pair(Long, bad={"round_": True}), "blocks.1")
broken("long", "taps the other way round", lambda: pair(Long, bad={"turned": True}), "blocks.1")
healthy("gated", "step by step", deep)
broken("gated", "the reset before the product", lambda: deep(bad={"before": True}), "blocks.1", "blocks.1.cell")
broken("gated", "gates in another order", lambda: deep(bad={"order": True}), "blocks.1", "blocks.1.cell")
broken("gated", "the update's complement", lambda: deep(bad={"kept": True}), "blocks.1", "blocks.1.cell")
healthy("dispatch", "tokens by expert", lambda: pair(Dispatch))
broken("dispatch", "weights not normalised", lambda: pair(Dispatch, bad={"unnormed": True}), "blocks.1")
broken("dispatch", "the offset in the weights", lambda: pair(Dispatch, bad={"biased": True}), "blocks.1")
broken("dispatch", "no expert for all", lambda: pair(Dispatch, bad={"unshared": True}), "blocks.1")
broken("dispatch", "six tokens at most", lambda: pair(Dispatch, bad={"full": True}), "blocks.1")
broken("dispatch", "not scaled", lambda: pair(Dispatch, bad={"scale": 1.0}), "blocks.1", said="1.5 they agree")
healthy("modulated", "norms by hand", lambda: pair(Modulated))
broken("modulated", "shift and scale swapped", lambda: pair(Modulated, bad={"swapped": True}), "blocks.1")
broken("modulated", "one not added to the scale", lambda: pair(Modulated, bad={"plain": True}), "blocks.1")
broken("modulated", "groups of every fourth", lambda: pair(Modulated, bad={"mixed": True}), "blocks.1", "blocks.1.groups")
broken("modulated", "not gated", lambda: pair(Modulated, bad={"ungated": True}), "blocks.1")
healthy("adapted", "merged weights", lambda: pair(Adapted))
broken("adapted", "not scaled", lambda: pair(Adapted, bad={"alpha": 4.0}), "blocks.1", "blocks.1.base")
broken("adapted", "norms of columns", lambda: pair(Adapted, bad={"axis": 0}), "blocks.1")
broken("adapted", "one factor without a gradient", lambda: pair(Adapted, bad={"frozen": True}), "blocks.1")
