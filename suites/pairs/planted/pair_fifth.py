"""A fifth batch, committed before the judge has seen any of it: detectors, larger images, sounds.

Faults as people have shipped them: anchors half a cell off, pixels shuffled in another library's order, channels grouped the other way,
padding as another library pads, the wrong half of a gate, distances mirrored.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from torch import nn

W = 16


def levels_of(x: torch.Tensor, groups: int, weight: torch.Tensor, bias: torch.Tensor, *, turned: bool) -> torch.Tensor:
    """A group norm of channels that are last, by its formula. `turned`: every so-manieth channel is a group."""
    wide = x.float()
    wide = wide.unflatten(-1, (-1, groups)).transpose(-1, -2) if turned else wide.unflatten(-1, (groups, -1))
    mean = wide.mean((1, 2, 4), keepdim=True)
    wide = (wide - mean) * torch.rsqrt((wide - mean).square().mean((1, 2, 4), keepdim=True) + 1e-5)
    wide = (wide.transpose(-1, -2) if turned else wide).flatten(-2)
    return (wide * weight.float() + bias.float()).to(x.dtype)


class Pyramid(nn.Module):
    """Two levels of an image, the coarse one added to the fine one; a head that both share; boxes by their sides' distances from anchors."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.stem, self.down = nn.Conv2d(3, W, 3, 2, padding=1), nn.Conv2d(W, W, 3, 2, padding=1)
        self.norm, self.side, self.top = nn.GroupNorm(4, W), nn.Conv2d(W, W, 1), nn.Conv2d(W, W, 1)
        self.tower = nn.Conv2d(W, W, 3, padding=1)
        self.boxes, self.classes = nn.Conv2d(W, 4, 1), nn.Conv2d(W, 5, 1)
        self.scales = nn.Parameter(torch.ones(2))
        if ways.get("unshared"):
            self.second = copy.deepcopy(self.tower)

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        if self.ways.get("form") != "other":
            return self.norm(x)
        x = x.permute(0, 2, 3, 1)
        return levels_of(x, 4, self.norm.weight, self.norm.bias, turned=bool(self.ways.get("turned"))).permute(0, 3, 1, 2)

    def pointwise(self, layer: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
        if self.ways.get("form") != "other":
            return layer(x)
        return F.linear(x.permute(0, 2, 3, 1), layer.weight[:, :, 0, 0], layer.bias).permute(0, 3, 1, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ways = self.ways
        if ways.get("form") == "other":
            x = x.to(memory_format=torch.channels_last)
        fine = F.relu(self.normed(self.stem(x)))
        if ways.get("padded"):
            coarse = F.relu(F.conv2d(F.pad(fine, (0, 1, 0, 1)), self.down.weight, self.down.bias, 2))
        else:
            coarse = F.relu(self.down(fine))
        above = self.pointwise(self.top, coarse)
        if ways.get("smooth"):
            larger = F.interpolate(above, scale_factor=2, mode="bilinear")
        elif ways.get("form") == "other":
            larger = above.repeat_interleave(2, -1).repeat_interleave(2, -2)
        else:
            larger = F.interpolate(above, scale_factor=2)
        found = []
        for number, level in enumerate((self.pointwise(self.side, fine) + larger, above)):
            tower = self.second if number and ways.get("unshared") else self.tower
            y = F.relu(tower(level))
            stride = 2 << number
            middle = 0.0 if ways.get("corner") else 0.5
            rows, columns = ((torch.arange(size) + middle) * stride for size in y.shape[-2:])
            sides = F.softplus(self.boxes(y).float() * self.scales[0 if ways.get("one") else number].float()) * stride
            left, top, right, bottom = sides.unbind(1)
            if ways.get("swapped"):
                left, top = top, left
            places = columns - left, rows[:, None] - top, columns + right, rows[:, None] + bottom
            found.append((torch.stack(places, -1).flatten(1, 2), self.pointwise(self.classes, y).flatten(2).mT))
        return torch.cat([boxes for boxes, _ in found], 1), torch.cat([classes for _, classes in found], 1)


def overlap(a: torch.Tensor, b: torch.Tensor, *, generalised: bool = True) -> torch.Tensor:
    both = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    all_ = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - both
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).prod(-1)
    return both / all_ - (hull - all_) / hull if generalised else both / all_


class Detector(nn.Module):
    """A pyramid and its loss: a focal one of classes, overlaps of boxes."""

    def __init__(self, wrong: str = "", **ways: Any) -> None:
        super().__init__()
        self.wrong, self.form, self.pyramid = wrong, ways.get("form"), Pyramid(**ways)

    def forward(self, x: torch.Tensor, boxes: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        given, scores = self.pyramid(x)
        scores = scores.float()
        if self.form == "other":
            signed = scores * (2 * classes - 1)
            share = torch.sigmoid(signed if self.wrong == "focus" else -signed)
            lost = share.square() * F.softplus(-signed)
        else:
            share = scores.sigmoid()
            lost = (
                F.binary_cross_entropy_with_logits(scores, classes, reduction="none") * (1 - share * classes - (1 - share) * (1 - classes)).square()
            )
        lost = lost * (0.25 * classes + 0.75 * (1 - classes))
        if self.wrong == "alpha":
            lost = lost / (0.25 * classes + 0.75 * (1 - classes)) * (0.75 * classes + 0.25 * (1 - classes))
        near = classes.amax(-1)
        apart = (1 - overlap(given, boxes, generalised=self.wrong != "plain")) * near
        return lost.sum() / near.sum() + apart.sum() / (len(near) if self.wrong == "images" else near.sum())


def detector(loss: str = "", **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Detector(), 0.2), Detector(loss, **{"form": "other", **ways})
    other.load_state_dict(model.state_dict(), strict=False)
    if ways.get("unshared"):
        other.pyramid.second.load_state_dict(other.pyramid.tower.state_dict())
    corners = torch.rand(2, 80, 2) * 8
    boxes, classes = torch.cat([corners, corners + 2 + torch.rand(2, 80, 2) * 8], -1), (torch.rand(2, 80, 5) < 0.2).float()
    return model, other, (torch.randn(2, 3, 16, 16), boxes, classes), {"loss": lambda out: out}


class Bigger(nn.Module):
    """Twice as many pixels, from four times as many channels, and a convolution that is turned round."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.first, self.back, self.last = ways, nn.Conv2d(3, 4 * W, 3, padding=1), nn.ConvTranspose2d(W, 8, 4, 2, 1), nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.first(x))
        if self.ways.get("form") != "other":
            return self.last(F.gelu(self.back(F.pixel_shuffle(x, 2))))
        parts = (
            x.unflatten(1, (2, 2, -1)).permute(0, 3, 4, 1, 5, 2) if self.ways.get("depth") else x.unflatten(1, (-1, 2, 2)).permute(0, 1, 4, 2, 5, 3)
        )
        x = parts.flatten(4, 5).flatten(2, 3)
        apart = x.new_zeros(*x.shape[:2], 2 * x.shape[2] - 1, 2 * x.shape[3] - 1)
        apart[:, :, ::2, ::2] = x
        weight = self.back.weight.transpose(0, 1)
        return self.last(F.gelu(F.conv2d(F.pad(apart, (2, 2, 2, 2)), weight if self.ways.get("unturned") else weight.flip(2, 3), self.back.bias)))


def bigger(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Bigger()), Bigger(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(2, 3, 6, 5), MEAN


class Conformer(nn.Module):
    """Frames taken two by two; attention with distances that are looked up by a shift, as Transformer-XL's; a gated convolution."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.sub, self.q, self.kv, self.o = nn.Conv1d(6, W, 3, 2, padding=1), nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(W, W)
        self.far, self.u, self.v = nn.Linear(W, W, bias=False), nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.randn(2, 8))
        self.gate, self.depth, self.norm, self.last = nn.Linear(W, 2 * W), nn.Conv1d(W, W, 5, padding=2, groups=W), nn.LayerNorm(W), nn.Linear(W, 7)

    def distances(self, length: int) -> torch.Tensor:
        turns = torch.arange(length - 1, -length, -1)[:, None] * 50.0 ** (-torch.arange(0, W, 2) / W)
        return torch.cat([turns.sin(), turns.cos()], -1).to(self.far.weight.dtype)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        x = F.silu(self.sub(x)).mT
        left = lengths // 2 if ways.get("floor") else (lengths + 1) // 2
        hidden = torch.arange(x.shape[1]) >= left[:, None]
        length = x.shape[1]
        q, (k, v) = self.q(x).unflatten(-1, (2, 8)), (each.unflatten(-1, (2, 8)) for each in self.kv(x).chunk(2, -1))
        far = self.far(self.distances(length)).unflatten(-1, (2, 8))
        near = torch.einsum("bihd,bjhd->bhij", q + self.u.to(q.dtype), k)
        away = torch.einsum("bihd,rhd->bhir", q + (self.u if ways.get("same") else self.v).to(q.dtype), far)
        if ways.get("form") == "other":
            place = length - 1 - torch.arange(length)[:, None] + torch.arange(length)
            if ways.get("mirrored"):
                place = place.flip(1)
            away = away.gather(-1, place.expand(*away.shape[:2], -1, -1))
        else:  # a column of zeros, read in rows that are one shorter
            away = F.pad(away, (1, 0)).flatten(2).unflatten(-1, (2 * length, length))[:, :, 1:].flatten(2)
            away = away.unflatten(-1, (length, 2 * length - 1))[..., :length]
        scores = (near + away).float() / math.sqrt(8)
        y = torch.einsum("bhij,bjhd->bihd", scores.masked_fill(hidden[:, None, None], -math.inf).softmax(-1).to(v.dtype), v)
        x = x + self.o(y.flatten(2))
        if ways.get("form") == "other":
            first, second = self.gate(x).chunk(2, -1)
            y = torch.sigmoid(first) * second if ways.get("halves") else first * torch.sigmoid(second)
        else:
            y = F.glu(self.gate(x), -1)
        y = y if ways.get("leaking") else y.masked_fill(hidden[..., None], 0)
        if ways.get("form") == "other":
            windows = F.pad(y.mT, (4, 0) if ways.get("causal") else (2, 2)).unfold(-1, 5, 1)
            y = torch.einsum("bclk,ck->blc", windows, self.depth.weight[:, 0]) + self.depth.bias
        else:
            y = self.depth(y.mT).mT
        return self.last(self.norm(x + y)).masked_fill(hidden[..., None], 0)


def conformer(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Conformer()), Conformer(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, (torch.randn(3, 6, 19), torch.tensor([19, 11, 14])), MEAN


healthy("detector", "channels last, boxes and losses by their formulas", detector)
broken("detector", "anchors in a cell's corner", lambda: detector(corner=True), "pyramid")
broken("detector", "a tower that is no longer shared", lambda: detector(unshared=True), "pyramid", "pyramid.second", "pyramid.tower")
broken("detector", "another library's padding", lambda: detector(padded=True), "pyramid", "pyramid.down")
broken("detector", "channels grouped the other way", lambda: detector(turned=True), "pyramid", "pyramid.norm")
broken("detector", "the coarse level made smooth", lambda: detector(smooth=True), "pyramid")
broken("detector", "one scale for both levels", lambda: detector(one=True), "pyramid")
broken("detector", "left and top swapped", lambda: detector(swapped=True), "pyramid")
broken("detector", "focus on what is easy", lambda: detector("focus"), "")
broken("detector", "weights of classes the other way round", lambda: detector("alpha"), "")
broken("detector", "an overlap without its hull", lambda: detector("plain"), "")
broken("detector", "a mean over images", lambda: detector("images"), "")
healthy("bigger", "axes permuted, zeros between pixels", bigger)
broken("bigger", "another library's order of channels", lambda: bigger(depth=True), "")
broken("bigger", "a kernel that is not turned round", lambda: bigger(unturned=True), "", "back")
healthy("conformer", "distances by index, windows", conformer)
broken("conformer", "lengths rounded down", lambda: conformer(floor=True), "")
broken("conformer", "distances mirrored", lambda: conformer(mirrored=True), "")
broken("conformer", "one offset for both", lambda: conformer(same=True), "")
broken("conformer", "the gate is the other half", lambda: conformer(halves=True), "")
broken("conformer", "padding reaches the convolution", lambda: conformer(leaking=True), "")
broken("conformer", "a window of the past alone", lambda: conformer(causal=True), "", "depth")
