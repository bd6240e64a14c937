"""The twenty-second batch, second part: networks for pictures as one library has them, beside those of another.

Three blocks, of which the second has the fault. Faults as such ports have them: a stride in the wrong filter, a norm folded with another eps, a scale
of one branch that is left out, the embedding of a time whose cosine comes first.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, spread
from pair_fourteenth_scans import numbers
from pair_fourteenth_sights import renamed
from pair_twentysecond import family
from torch import nn

C = 8
PICTURES = numbers(2, 3, 8, 8)
State = dict[str, torch.Tensor]


def made(model: nn.Module, other: nn.Module, inputs: Any, state: State | None = None) -> Made:
    other.load_state_dict(dict(model.state_dict()) if state is None else state)
    return model.eval(), other.eval(), inputs, dict(MEAN)


def seeded(net: Any, **ways: Any) -> Any:
    torch.manual_seed(0)
    model = spread(net(**ways))
    for name, value in model.named_buffers():
        if name.endswith("running_mean"):
            value.normal_(std=0.3)
        elif name.endswith("running_var"):
            value.uniform_(0.3, 1.5)
    return model


class Bottleneck(nn.Module):
    """Three filters with a norm each and a shortcut. `folded`: norms lie in the filters. `early`: the stride is in the first filter."""

    def __init__(self, stride: int = 1, folded: bool = False, early: bool = False, bare: bool = False, last: bool = False,
                 valid: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.bare, self.last = bare, last
        sizes = ((C, 4, 1, stride if early else 1), (4, 4, 3, 1 if early else stride), (4, C, 1, 1))
        convs = [nn.Conv2d(i, o, k, s, k // 2, bias=folded, padding_mode="replicate" if valid and k == 3 else "zeros") for i, o, k, s in sizes]
        self.conv1, self.conv2, self.conv3 = convs
        self.bn1, self.bn2, self.bn3 = (nn.Identity() if folded else nn.BatchNorm2d(size) for size in (4, 4, C))
        self.short = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y = self.bn3(self.conv3(y if self.bare else F.relu(y)))
        return F.relu(y) + self.short(x) if self.last else F.relu(y + self.short(x))


class Residual(nn.Module):
    def __init__(self, second: dict[str, Any] | None = None, **ways: Any) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, C, 3, padding=1)
        self.blocks = nn.Sequential(Bottleneck(**ways), Bottleneck(2, **{**ways, **(second or {})}), Bottleneck(**ways))
        self.head = nn.Linear(C, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def resnet(eps: float = 1e-5, centred: bool = True, **second: Any) -> Made:
    model, state = seeded(Residual), {}
    held = model.state_dict()
    for name, value in held.items():
        if ".conv" in name:
            norm = name.replace("conv", "bn").removesuffix(".weight")
            wrong = ".1.conv2" in name
            rate = held[f"{norm}.weight"] / (held[f"{norm}.running_var"] + (eps if wrong else 1e-5)).sqrt()
            state[name] = value * rate[:, None, None, None]
            mean = held[f"{norm}.running_mean"] if centred or not wrong else torch.zeros(())
            state[name.replace("weight", "bias")] = held[f"{norm}.bias"] - mean * rate
        elif ".bn" not in name:
            state[name] = value
    return (*made(model, Residual(second, folded=True), PICTURES, state)[:3], {})  # without a loss: folded filters have gradients of their own


BLOCK = ("blocks.1",)
family("folded norms", "biased filters", resnet, {
    "another eps": ({"eps": 1e-3}, ("blocks.1.conv2", *BLOCK), ""),
    "a mean that is left out": ({"centred": False}, ("blocks.1.conv2", *BLOCK), ""),
    "the stride of the first filter": ({"early": True}, ("blocks.1.conv1", *BLOCK), ""),
    "no relu before the last": ({"bare": True}, BLOCK, ""),
    "relu before the sum": ({"last": True}, BLOCK, ""),
    "the edge repeated": ({"valid": True}, ("blocks.1.conv2",), ""),
})  # fmt: skip


class Squeeze(nn.Module):
    """A filter for each channel, whose channels are weighed by a small network. `lines`: of linear layers, not filters."""

    def __init__(self, lines: bool = False, hard: bool = False, most: bool = False, act: str = "silu", first: bool = False) -> None:
        super().__init__()
        self.lines, self.hard, self.most, self.act, self.first = lines, hard, most, act, first
        self.norm, self.taps = nn.GroupNorm(2, C), nn.Conv2d(C, C, 3, padding=1, groups=C)
        self.down, self.up = (nn.Linear(*size) if lines else nn.Conv2d(*size, 1) for size in ((C, 4), (4, C)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.taps(self.norm(x))
        read = x if self.first else y
        pooled = read.amax((2, 3), keepdim=not self.lines) if self.most else read.mean((2, 3), keepdim=not self.lines)
        share = self.up(getattr(F, self.act)(self.down(pooled)))
        share = F.hardsigmoid(share) if self.hard else share.sigmoid()
        return x + F.silu(y) * (share[..., None, None] if self.lines else share)


class Layers(nn.Module):
    """A stem, three blocks of a kind, a head."""

    def __init__(self, kind: Any, second: dict[str, Any] | None = None, stem: nn.Module | None = None, size: int = C, **ways: Any) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, C, 2, 2) if stem is None else stem
        self.blocks = nn.ModuleList([kind(**ways), kind(**{**ways, **(second or {})}), kind(**ways)])
        self.head = nn.Linear(size, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def squeezed(**second: Any) -> Made:
    model = seeded(Layers, kind=Squeeze)
    state = {name: value[..., 0, 0] if name.endswith(("down.weight", "up.weight")) else value for name, value in model.state_dict().items()}
    return made(model, Layers(Squeeze, second, lines=True), PICTURES, state)


family("squeezed channels", "linear layers", squeezed, {
    "a hard sigmoid": ({"hard": True}, BLOCK, ""),
    "the greatest for the mean": ({"most": True}, BLOCK, ""),
    "relu for silu": ({"act": "relu"}, BLOCK, "act|"),
    "shares of the input": ({"first": True}, BLOCK, ""),
})  # fmt: skip


class Seeing(nn.Module):
    """A block of a vision transformer, whose branches have a scale for each channel. `own`: torch's attention."""

    def __init__(self, own: bool = False, heads: int = 2, one: bool = False, masked: bool = False, before: bool = False, tanh: bool = False) -> None:
        super().__init__()
        self.own, self.heads, self.one, self.masked, self.before, self.tanh = own, heads, one, masked, before, tanh
        self.norm1, self.norm2 = nn.LayerNorm(C, 1e-6), nn.LayerNorm(C, 1e-6)
        self.scale1, self.scale2 = nn.Parameter(torch.ones(C)), nn.Parameter(torch.ones(C))
        if own:
            self.attn = nn.MultiheadAttention(C, heads, batch_first=True)
        else:
            self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.fc1, self.fc2 = nn.Linear(C, 16), nn.Linear(16, C)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        if self.own:
            hidden = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1) if self.masked else None
            y = self.attn(y, y, y, need_weights=False, attn_mask=hidden)[0]
        else:
            q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            y = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.scale1 * y
        y = self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh" if self.tanh else "none"))
        return x + (y if self.one else self.scale1 * y if self.before else self.scale2 * y)


class Sight(nn.Module):
    """Patches, a token for the whole picture, places. `pool`: "token", or "mean" over all patches."""

    def __init__(self, second: dict[str, Any] | None = None, unfolded: bool = False, channels_last: bool = False, late: bool = False,
                 all_: bool = False, **ways: Any) -> None:  # fmt: skip
        super().__init__()
        self.unfolded, self.last, self.late, self.all = unfolded, channels_last, late, all_
        self.stem = nn.Linear(48, C) if unfolded else nn.Conv2d(3, C, 4, 4)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, C)), nn.Parameter(torch.zeros(1, 5, C))
        self.blocks = nn.ModuleList([Seeing(**ways), Seeing(**{**ways, **(second or {})}), Seeing(**ways)])
        self.norm, self.head = nn.LayerNorm(C, 1e-6), nn.Linear(C, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.unfolded:
            parts = x.unfold(2, 4, 4).unfold(3, 4, 4)
            x = self.stem(parts.permute((0, 2, 3, 4, 5, 1) if self.last else (0, 2, 3, 1, 4, 5)).flatten(3).flatten(1, 2))
        else:
            x = self.stem(x).flatten(2).mT
        token = self.token.expand(len(x), -1, -1)
        x = torch.cat([x, token] if self.late else [token, x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x.mean(1) if self.all else x[:, 1:].mean(1))


def sight(channels_last: bool = False, late: bool = False, all_: bool = False, unfolded: bool = True, **second: Any) -> Made:
    model = seeded(Sight)
    state = renamed(model.state_dict(), ("qkv.", "attn.in_proj_"), ("proj.", "attn.out_proj."), ("in_attn.out_proj.", "in_proj_"))
    state["stem.weight"] = state["stem.weight"].flatten(1) if unfolded else state["stem.weight"]
    other = Sight(second, unfolded=unfolded, channels_last=channels_last, late=late, all_=all_, own=True)
    return made(model, other, PICTURES, state)


family("sight", "torch's attention, unfolded patches", sight, {
    "channels last in patches": ({"channels_last": True}, ("", "stem"), ""),
    "the token comes last": ({"late": True}, ("",), ""),
    "the token in the mean": ({"all_": True}, ("",), ""),
    "four heads for two": ({"heads": 4}, ("blocks.1.attn", *BLOCK), "heads|"),
    "no scale of the network": ({"one": True}, BLOCK, ""),
    "the scale of the attention twice": ({"before": True}, BLOCK, ""),
    "attention that looks back": ({"masked": True}, ("blocks.1.attn", *BLOCK), ""),
}, filters={"unfolded": False})  # fmt: skip


class Denoising(nn.Module):
    """A block of a diffusion network, told the time."""

    def __init__(self, matrix: bool = False, groups: int = 2, late: bool = False, bare: bool = False, plain: bool = False) -> None:
        super().__init__()
        self.matrix, self.late, self.bare, self.plain = matrix, late, bare, plain
        self.norm1, self.norm2 = nn.GroupNorm(groups, C), nn.GroupNorm(groups, C)
        self.conv1, self.conv2, self.time = nn.Conv2d(C, C, 3, padding=1), nn.Conv2d(C, C, 3, padding=1), nn.Linear(C, C)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        shift = self.time(time if self.bare else F.silu(time))[..., None, None]
        y = self.norm2(y) + shift if self.late else self.norm2(y + shift)
        y = y if self.plain else F.silu(y)
        if self.matrix:
            parts = F.unfold(y, 3, padding=1)
            return x + (self.conv2.weight.flatten(1) @ parts + self.conv2.bias[:, None]).view_as(x)
        return x + self.conv2(y)


class Diffusion(nn.Module):
    def __init__(self, second: dict[str, Any] | None = None, turned: bool = False, longer: bool = False, **ways: Any) -> None:
        super().__init__()
        self.turned, self.longer = turned, longer
        self.stem, self.time = nn.Conv2d(3, C, 3, padding=1), nn.Linear(C, C)
        self.blocks = nn.ModuleList([Denoising(**ways), Denoising(**{**ways, **(second or {})}), Denoising(**ways)])
        self.head = nn.Conv2d(C, 3, 1)

    def forward(self, x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-math.log(10000) * torch.arange(C // 2) / (C // 2 - (1 if self.longer else 0)))
        angles = when[:, None] * rates
        waves = [angles.cos(), angles.sin()] if self.turned else [angles.sin(), angles.cos()]
        x, time = self.stem(x), self.time(torch.cat(waves, -1).to(x.dtype))
        for block in self.blocks:
            x = block(x, time)
        return self.head(x)


def diffusion(turned: bool = False, longer: bool = False, **second: Any) -> Made:
    other = Diffusion(second, turned=turned, longer=longer, matrix=True)
    return made(seeded(Diffusion), other, (PICTURES, torch.tensor([3.0, 7.0])))


family("denoising blocks", "filters as products", diffusion, {
    "cosines first": ({"turned": True}, ("", "time"), ""),
    "rates that reach the end": ({"longer": True}, ("", "time"), ""),
    "four groups for two": ({"groups": 4}, ("blocks.1.norm1", "blocks.1.norm2", *BLOCK), "groups"),
    "the time after the norm": ({"late": True}, BLOCK, ""),
    "a time without its slope": ({"bare": True}, BLOCK, ""),
    "no slope before the last": ({"plain": True}, BLOCK, ""),
})  # fmt: skip
