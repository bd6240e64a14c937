"""A twelfth batch, committed before the judge has seen any of it: orders of axes, pictures, quantised weights, adapters, spectra, positions.

Each network has two layers of one kind. Healthy pairs write both in another way; broken ones have a fault in the second layer alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from torch import nn

W, LENGTH, HEADS, SIZE = 24, 8, 3, 8
SECOND = "layers.1"


class Net(nn.Module):
    """Layers in a residual stream."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inside, self.layers, self.norm, self.head = nn.Linear(W, W), nn.ModuleList(layers), nn.LayerNorm(W), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x))


def numbers(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def two(part: Callable[..., Any], *, length: int = LENGTH, std: float = 0.2, **ways: Any) -> Callable[[], Made]:
    """A network with plain layers, and one whose layers are made in another way. What begins with `bad_` is of the second layer alone."""
    good = {name: value for name, value in ways.items() if not name.startswith("bad_")}
    bad = good | {name.removeprefix("bad_"): value for name, value in ways.items() if name.startswith("bad_")}

    def made() -> Made:
        torch.manual_seed(0)
        model, other = spread(Net(part(), part()), std), Net(part(**good), part(**bad))
        ported = {name: value for layer in range(2) for name, value in _ported(model, other, layer).items()}
        other.load_state_dict({**{name: value for name, value in model.state_dict().items() if not name.startswith("layers")}, **ported})
        return model, other, numbers(2, length, W), dict(MEAN)

    return made


def _ported(model: Any, other: Any, layer: int) -> dict[str, torch.Tensor]:
    state = model.layers[layer].state_dict()
    port = getattr(other.layers[layer], "ported", lambda state: state)
    return {f"layers.{layer}.{name}": value for name, value in port(state).items()}


class Packed(nn.Module):
    """Attention with one product for queries, keys and values. `kind`: whether they lie part by part, or head by head."""

    def __init__(self, kind: str = "parts", mixed: bool = False, over: int = -1) -> None:
        super().__init__()
        self.kind, self.mixed, self.over, self.qkv, self.out = kind, mixed, over, nn.Linear(W, 3 * W), nn.Linear(W, W)

    def ported(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        def turned(value: torch.Tensor) -> torch.Tensor:
            return value.unflatten(0, (3, HEADS, SIZE)).transpose(0, 1).reshape(value.shape) if self.kind == "heads" else value

        return {name: turned(value) if "qkv" in name else value for name, value in state.items()}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.qkv(x)
        if self.kind == "heads" and not self.mixed:
            q, k, v = made.unflatten(-1, (HEADS, 3, SIZE)).unbind(-2)
        else:
            q, k, v = made.unflatten(-1, (3, HEADS, SIZE)).unbind(-3)
        if self.kind == "heads":
            scores = torch.einsum("bthd,bshd->bhts", q, k).float() / math.sqrt(SIZE)
            return self.out(torch.einsum("bhts,bshd->bthd", scores.softmax(self.over).to(v.dtype), v).flatten(2))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return self.out(((q @ k.mT).float() / math.sqrt(SIZE)).softmax(-1).to(v.dtype).matmul(v).transpose(1, 2).flatten(2))


class Grouped(nn.Module):
    """A filter over time in groups of channels. `kind`: torch's, a filter for each group, or a sum over taps. `mixed`: groups that are dealt out."""

    def __init__(self, kind: str = "torch", mixed: bool = False, early: int = 0) -> None:
        super().__init__()
        self.kind, self.mixed, self.early, self.conv, self.out = kind, mixed, early, nn.Conv1d(W, W, 3, groups=4), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.pad(x.mT, (2 - self.early, self.early))
        weight, bias = self.conv.weight, self.conv.bias
        if self.kind == "torch":
            made = self.conv(x)
        elif self.kind == "groups":
            parts = x.unflatten(1, (6, 4)).transpose(1, 2).unbind(1) if self.mixed else x.chunk(4, 1)
            made = torch.cat([F.conv1d(*each) for each in zip(parts, weight.chunk(4), bias.chunk(4), strict=True)], 1)
        else:
            windows = x.unfold(-1, 3, 1).unflatten(1, (4, 6))
            made = torch.einsum("bgitk,goik->bgot", windows, weight.unflatten(0, (4, 6))).flatten(1, 2) + bias[:, None]
        return self.out(F.gelu(made.mT))


class Picture(nn.Module):
    """Tokens as a picture of 2 by 4, filtered, made larger and read again. `kind`: of the order of axes."""

    def __init__(self, kind: str = "channels first", order: str = "", corners: bool = False, flipped: bool = True) -> None:
        super().__init__()
        self.kind, self.order, self.corners, self.flipped = kind, order, corners, flipped
        self.filter, self.norm, self.wide = nn.Conv2d(W, W, 3, padding=1), nn.GroupNorm(1, W), nn.Conv2d(W, 4 * W, 1)
        self.up = nn.ConvTranspose2d(W, W, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "channels first":
            y = self.norm(self.filter(x.mT.unflatten(-1, (2, 4))))
            y = F.pixel_shuffle(self.wide(y), 2)
            y = F.interpolate(y.float(), size=(3, 5), mode="bilinear").to(x.dtype)
            return F.adaptive_avg_pool2d(self.up(y), (2, 4)).flatten(2).mT
        y = x.unflatten(1, (2, 4))
        patches = F.pad(y, (0, 0, 1, 1, 1, 1)).unfold(1, 3, 1).unfold(2, 3, 1)
        y = torch.einsum("bhwcij,ocij->bhwo", patches, self.filter.weight) + self.filter.bias
        y = F.layer_norm(y.float(), y.shape[1:]).to(y.dtype) * self.norm.weight + self.norm.bias
        y = F.linear(y, self.wide.weight[:, :, 0, 0], self.wide.bias)
        form = (2, 2, W) if self.order == "first" else (W, 2, 2)
        y = y.unflatten(-1, form)
        y = torch.einsum("bhwijc->bhiwjc" if self.order == "first" else "bhwcij->bhiwjc", y).reshape(len(x), 4, 8, W)
        for axis, count in ((1, 3), (2, 5)):
            y = torch.movedim(torch.movedim(y, axis, -1).float() @ self.between(y.shape[axis], count), -1, axis).to(x.dtype)
        y = torch.einsum("bhwc,coij->bhiwjo", y, self.up.weight).flatten(3, 4).flatten(1, 2) + self.up.bias
        ends = [[(i * n // m, -((-(i + 1) * n) // m)) for i in range(m)] for n, m in ((6, 2), (10, 4))]
        return torch.stack([y[:, a:b, c:d].mean((1, 2)) for a, b in ends[0] for c, d in ends[1]], 1)

    def between(self, have: int, want: int) -> torch.Tensor:
        places = torch.arange(want)
        at = places * (have - 1) / (want - 1) if self.corners else ((places + 0.5) * have / want - 0.5).clamp(min=0)
        return (1 - (at - torch.arange(have)[:, None]).abs()).clamp(min=0)


class Sampled(nn.Module):
    """Values between the places of a picture of 2 by 4, at places that the layer computes. `kind`: torch's, or by four corners."""

    def __init__(self, kind: str = "torch", edge: bool = False) -> None:
        super().__init__()
        self.kind, self.edge, self.where, self.value = kind, edge, nn.Linear(W, 2), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        picture, places = self.value(x).mT.unflatten(-1, (2, 4)).float(), self.where(x).float().tanh() * 1.5
        if self.kind == "torch":
            made = F.grid_sample(picture, places[:, :, None], align_corners=False)
            return made[..., 0].mT.to(x.dtype)
        at = ((places + 1) * torch.tensor([4.0, 2.0]) - 1) / 2
        low, made = at.floor(), torch.zeros(x.shape)
        for right in (0, 1):
            for down in (0, 1):
                corner = low + torch.tensor([right, down])
                share = (1 - (at - corner).abs()).prod(-1)
                seen = ((corner >= 0) & (corner < torch.tensor([4, 2]))).all(-1)
                index = (corner[..., 1].clamp(0, 1) * 4 + corner[..., 0].clamp(0, 3)).long()
                values = picture.flatten(2).mT.gather(1, index[..., None].expand(x.shape))
                made = made + values * (share if self.edge else share * seen)[..., None]
        return made.to(x.dtype)


class Few(nn.Module):
    """A product with weights of four bits in groups of 6. `kind`: the numbers first, or each group's product times its scale."""

    def __init__(self, kind: str = "numbers", middle: int = 8, turned: bool = False) -> None:
        super().__init__()
        self.kind, self.middle, self.turned, self.before = kind, middle, turned, nn.Linear(W, W)
        generator = torch.Generator().manual_seed(5)
        self.register_buffer("codes", torch.randint(0, 16, (W, W), generator=generator))
        self.register_buffer("packed", self.codes[:, ::2] * 16 + self.codes[:, 1::2])
        self.scales = nn.Parameter(torch.zeros(W, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        if self.kind == "numbers":
            weight = (self.codes - 8).unflatten(1, (4, 6)) * self.scales[..., None]
            return F.linear(x, weight.flatten(1).to(x.dtype))
        codes = torch.stack([self.packed // 16, self.packed % 16][:: -1 if self.turned else 1], -1).flatten(1)
        parts = torch.einsum("btgi,ogi->btog", x.unflatten(-1, (4, 6)), (codes - self.middle).unflatten(1, (4, 6)).to(x.dtype))
        return (parts.float() * self.scales.float()).sum(-1).to(x.dtype)


class Adapted(nn.Module):
    """A product with two adapters of low rank, one of which has a magnitude. `kind`: beside the weight, or merged."""

    def __init__(self, kind: str = "beside", rank: float = 4.0, axis: int = 1, shares: tuple[float, float] = (0.7, 0.3)) -> None:
        super().__init__()
        self.kind, self.rank, self.axis, self.shares, self.base = kind, rank, axis, shares, nn.Linear(W, W)
        self.downs, self.ups = nn.ParameterList(torch.zeros(4, W) for _ in range(2)), nn.ParameterList(torch.zeros(W, 4) for _ in range(2))
        self.size = nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = 8 / self.rank
        changes = [share * factor * (up @ down) for share, up, down in zip(self.shares, self.ups, self.downs, strict=True)]
        length = (self.base.weight + sum(changes)).float().square().sum(self.axis).sqrt().detach()
        if self.kind == "merged":
            weight = (self.base.weight + sum(changes)) * (self.size / length)[:, None].to(x.dtype)
            return F.linear(x, weight.to(x.dtype), self.base.bias)
        made = F.linear(x, self.base.weight)
        for share, up, down in zip(self.shares, self.ups, self.downs, strict=True):
            made = made + share * factor * F.linear(F.linear(x, down), up)
        return made * (self.size / length).to(x.dtype) + self.base.bias


class Spectral(nn.Module):
    """A few frequencies along time, each mixed by its own matrix. `kind`: a fast transform, sums of cosines and sines, or one filter."""

    def __init__(self, kind: str = "fast", sign: float = -1.0, first: int = 0) -> None:
        super().__init__()
        self.kind, self.sign, self.first, self.mix = kind, sign, first, nn.Parameter(torch.zeros(3, W, W, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide, mix, length = x.float(), torch.view_as_complex(self.mix.float()), x.shape[1]
        if self.kind == "fast":
            spectrum = torch.fft.rfft(wide, dim=1)
            made = torch.einsum("bfi,fio->bfo", spectrum[:, :3], mix)
            return torch.fft.irfft(F.pad(made, (0, 0, 0, spectrum.shape[1] - 3)), n=length, dim=1).to(x.dtype)
        angles = 2 * math.pi * torch.arange(self.first, self.first + 3)[:, None] * torch.arange(length) / length
        wave = torch.complex(angles.cos(), self.sign * angles.sin())
        twice = torch.tensor([1.0, 2.0, 2.0])[:, None]
        if self.kind == "sums":
            made = torch.einsum("ft,bti,fio->bfo", wave, wide + 0j, mix)
            return ((made.mT @ (wave.conj() * twice)).real / length).mT.to(x.dtype)
        filters = torch.einsum("ft,fio->tio", wave.conj() * twice, mix).real / length
        around = (torch.arange(length)[:, None] - torch.arange(length)) % length
        return torch.einsum("bsi,tsio->bto", wide, filters[around]).to(x.dtype)


class Frames(nn.Module):
    """Strengths of frequencies in frames of the sequence. `kind`: torch's transform, or a filter for each frequency."""

    def __init__(self, kind: str = "torch", periodic: bool = True, pad: str = "reflect") -> None:
        super().__init__()
        self.kind, self.periodic, self.pad, self.before, self.out = kind, periodic, pad, nn.Linear(W, W), nn.Linear(3 * W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, window = self.before(x).float().mT.flatten(0, 1), torch.hann_window(4, periodic=self.periodic)
        if self.kind == "torch":
            made = torch.stft(y, 4, 1, window=window, center=True, return_complex=True).abs().square()
        else:
            y = F.pad(y[:, None], (2, 2), mode=self.pad)
            angles = 2 * math.pi * torch.arange(3)[:, None] * torch.arange(4) / 4
            made = sum(F.conv1d(y, (wave * window)[:, None]).square() for wave in (angles.cos(), angles.sin()))
        made = made[..., : x.shape[1]].unflatten(0, (len(x), W)).flatten(1, 2).mT
        return self.out(made.add(1).log().to(x.dtype))


healthy("packed", "head by head", two(Packed, kind="heads"))
broken("packed", "weights head by head, read part by part", two(Packed, kind="heads", bad_mixed=True), SECOND)
broken("packed", "shares over queries", two(Packed, kind="heads", bad_over=-2), SECOND)
healthy("grouped filters", "a filter for each group", two(Grouped, kind="groups"))
healthy("grouped filters", "a sum over taps", two(Grouped, kind="taps"))
broken("grouped filters", "channels dealt out to groups", two(Grouped, kind="groups", bad_mixed=True), SECOND)
broken("grouped filters", "sees one step ahead", two(Grouped, kind="taps", bad_early=1), SECOND, f"{SECOND}.conv")
healthy("pictures", "channels last, by formulas", two(Picture, kind="channels last"))
broken("pictures", "small pictures before channels", two(Picture, kind="channels last", bad_order="first"), SECOND)
broken("pictures", "corners on corners", two(Picture, kind="channels last", bad_corners=True), SECOND)
healthy("sampled", "four corners", two(Sampled, kind="corners"))
broken("sampled", "the edge goes on outside", two(Sampled, kind="corners", bad_edge=True), SECOND)
healthy("weights of four bits", "a scale for each group's product", two(Few, kind="groups"))
broken("weights of four bits", "another middle", two(Few, kind="groups", bad_middle=7), SECOND)
broken("weights of four bits", "two codes of a byte swapped", two(Few, kind="groups", bad_turned=True), SECOND)
healthy("two adapters", "merged", two(Adapted, kind="merged"))
broken("two adapters", "scale by the root of the rank", two(Adapted, kind="merged", bad_rank=2.0), SECOND)
broken("two adapters", "lengths of columns", two(Adapted, kind="merged", bad_axis=0), SECOND)
broken("two adapters", "shares swapped", two(Adapted, kind="merged", bad_shares=(0.3, 0.7)), SECOND)
healthy("spectral", "sums of cosines and sines", two(Spectral, kind="sums"))
healthy("spectral", "one filter", two(Spectral, kind="filter"))
broken("spectral", "the other sign", two(Spectral, kind="sums", bad_sign=1.0), SECOND)
broken("spectral", "without the mean", two(Spectral, kind="filter", bad_first=1), SECOND)
healthy("frames", "a filter for each frequency", two(Frames, kind="filters"))
broken("frames", "a window that ends in zero", two(Frames, kind="filters", bad_periodic=False), SECOND)
broken("frames", "zeros at the ends", two(Frames, kind="filters", bad_pad="constant"), SECOND)
