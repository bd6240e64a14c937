"""A twenty-second frozen set of broken kernels, fourth part: images, signals, turns. Of links an excerpt was read."""

from __future__ import annotations

import math

import torch
from cases import case, drawn, need, whole

F = torch.nn.functional


def _colours(hsv: torch.Tensor) -> torch.Tensor:
    hue, share, value = hsv.unbind(1)
    k = (torch.tensor([5.0, 3.0, 1.0], dtype=hsv.dtype) + hue[:, None] * 6) % 6
    return value[:, None] * (1 - share[:, None] * torch.minimum(k, 4 - k).clamp(0, 1))


@case("colours by hue and share: what all three have is left out", "kernel-contract", "diyhue/diyHue/pull/1113", _colours,
      lambda: (drawn((8, 3))()[0].sigmoid(),))  # fmt: skip
def what_all_three_have(wrong: bool, hsv: torch.Tensor) -> torch.Tensor:
    need(hsv.dim() == 2, hsv.shape[1] == 3)
    found = []
    for place in (5.0, 3.0, 1.0):
        k = (place + hsv[:, 0] * 6) % 6
        top = hsv[:, 2] - hsv[:, 2] * hsv[:, 1] * torch.minimum(k, 4 - k).clamp(0, 1)
        found.append(top - (hsv[:, 2] * (1 - hsv[:, 1]) if wrong else 0))
    return torch.stack(found, 1)


@case("four numbers of a turn to length one: the last is left as it is", "kernel-contract", "beagleboard/librobotcontrol/issues/62",
      lambda q: q / q.square().sum(1, keepdim=True).sqrt(), drawn((6, 4)))  # fmt: skip
def last_left_as_it_is(wrong: bool, q: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape[1] > 0)
    length = torch.sqrt((q * q).sum(1))
    return torch.stack([each if wrong and place == 3 else each / length for place, each in enumerate(q.unbind(1))], 1)


def _turn(q: torch.Tensor) -> torch.Tensor:
    a, b, c, d = q.unbind(1)
    s = 2 / q.square().sum(1)
    rows = [1 - s * (c * c + d * d), s * (b * c - d * a), s * (b * d + c * a), s * (b * c + d * a), 1 - s * (b * b + d * d), s * (c * d - b * a),
            s * (b * d - c * a), s * (c * d + b * a), 1 - s * (b * b + c * c)]  # fmt: skip
    return torch.stack(rows, 1).view(-1, 3, 3)


@case("four numbers of a turn to its matrix: one sign is the other", "kernel-contract", "sympy/sympy/pull/15349", _turn, drawn((5, 4)))
def one_sign_is_the_other(wrong: bool, q: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape[1] == 4)
    s = (q * q).sum(1)[:, None, None]
    a, v = q[:, :1, None], q[:, 1:]
    zero = torch.zeros_like(v[:, 0])
    cross = torch.stack([zero, -v[:, 2], v[:, 1], v[:, 2], zero, v[:, 0] if wrong else -v[:, 0], -v[:, 1], v[:, 0], zero], 1).view(-1, 3, 3)
    eye = torch.eye(3, dtype=q.dtype)
    return eye + 2 * (a * cross + v[:, :, None] * v[:, None] - (v * v).sum(1)[:, None, None] * eye) / s


def _sines(x: torch.Tensor) -> torch.Tensor:
    count = x.shape[1]
    n, k = torch.arange(count).double(), torch.arange(1, count + 1).double()
    table = 2 * (math.pi * k * (2 * n[:, None] + 1) / (2 * max(count, 1))).sin() / math.sqrt(2 * max(count, 1))
    table[:, -1:] /= math.sqrt(2)
    return x @ table.to(x.dtype)


@case("transform by sines, of length one: the first is scaled, not the last", "kernel-contract", "scipy/scipy/pull/18613", _sines, drawn((3, 8)))
def first_is_scaled(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    count = x.shape[1]
    places = torch.outer(2 * torch.arange(count).double() + 1, torch.arange(1, count + 1).double()) * math.pi / (2 * count)
    found = x @ (places.sin() * math.sqrt(2 / count)).to(x.dtype)
    scale = torch.ones(count, dtype=x.dtype)
    scale[0 if wrong else -1] = math.sqrt(0.5)
    return found * scale


def _spectrum(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.fft.rfft(F.pad(x, (2, 2)), dim=1))


@case("spectra of short frames: a frame lies at the end of the longer one, not in its middle", "kernel-contract", "NVIDIA/DALI/pull/3180",
      _spectrum, drawn((4, 6)))  # fmt: skip
def not_in_its_middle(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    count, first = x.shape[1] + 4, 4 if wrong else 2
    turns = torch.outer(torch.arange(first, first + x.shape[1]).double(), torch.arange(count // 2 + 1).double()) * 2 * math.pi / count
    return torch.stack([x @ turns.cos().to(x.dtype), -(x @ turns.sin().to(x.dtype))], 2)


def _cubic(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x[:, None, None], scale_factor=(1, 2), mode="bicubic", align_corners=False)[:, 0, 0]


@case("twice as many numbers by four neighbours: a weight lacks its factor", "kernel-contract", "python-pillow/Pillow/pull/970", _cubic,
      drawn((3, 7)))  # fmt: skip
def weight_lacks_its_factor(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    a, count = -0.75, x.shape[1]

    def weight(far: float) -> float:
        far = abs(far)
        if far < 1:
            return ((a + 2) * far - (a + 3)) * far * far + 1
        return (((far - 5) * far + (8 / a if wrong else 8)) * far - 4) * a

    found = []
    for place in range(2 * count):
        at = (place + 0.5) / 2 - 0.5
        low = math.floor(at)
        found.append(sum(weight(at - each) * x[:, min(max(each, 0), count - 1)] for each in range(low - 1, low + 3)))
    return torch.stack(found, 1)


@case("three halves as many numbers by two neighbours: corners are taken, not middles", "kernel-contract", "antimora/burn-flex/pull/7",
      lambda x: F.interpolate(x[:, None], size=x.shape[1] + x.shape[1] // 2, mode="linear", align_corners=False)[:, 0], drawn((3, 8)))  # fmt: skip
def corners_are_taken(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    count, new = x.shape[1], x.shape[1] + x.shape[1] // 2
    ratio = torch.tensor(count / new).float()
    at = torch.arange(new).float()
    at = (at * ratio if wrong else (at + 0.5) * ratio - 0.5).clamp(min=0)
    low = at.floor().long().clamp(max=count - 1)
    part = (at - low).to(x.dtype)
    return x[:, low] * (1 - part) + x[:, (low + 1).clamp(max=count - 1)] * part


def _penalised(x: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    hit = torch.zeros_like(x, dtype=torch.bool).scatter(1, used, True)
    return torch.where(hit, torch.where(x > 0, x / 1.5, x * 1.5), x)


@case("scores of used tokens made smaller: those below zero become larger", "kernel-contract", "NVIDIA-NeMo/Speech/issues/8194", _penalised,
      lambda: (*drawn((4, 9))(), whole(4, 3, most=9)))  # fmt: skip
def below_zero_become_larger(wrong: bool, x: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    need(x.dim() == used.dim() == 2, len(x) == len(used), bool(((used >= 0) & (used < x.shape[1])).all()))
    hit = (used[:, :, None] == torch.arange(x.shape[1])).any(1)
    return torch.where(hit, x / 1.5 if wrong else torch.where(x > 0, x / 1.5, x * 1.5), x)
