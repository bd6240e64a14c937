"""A twentieth frozen set of broken kernels, second part: pools, images, convolutions, numbers one by one. Of links an excerpt was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional
INF = float("inf")


@case("means of three columns, the last of which hang over: they are divided by three", "kernel-edge", "apple/coremltools/pull/2844",
      lambda x: F.avg_pool1d(x[None], 3, 3, ceil_mode=True)[0], drawn((4, 9)))  # fmt: skip
def hang_over(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0 and x.shape[1] > 0)
    sums = F.pad(x, (0, -x.shape[1] % 3)).unflatten(1, (-1, 3)).sum(2)
    inside = (x.shape[1] - 3 * torch.arange(sums.shape[1])).clamp(max=3)
    return sums / (3 if wrong else inside)


def _ends(columns: int, windows: int, up: bool) -> list[tuple[int, int]]:
    """Where each of so many windows begins and ends."""
    return [(columns * at // windows, (columns * (at + 1) + (windows - 1 if up else 0)) // windows) for at in range(windows)]


@case("means of four windows that share columns: a window's end is rounded down", "kernel-edge", "flagos-ai/FlagGems/issues/4915",
      lambda x: F.adaptive_avg_pool1d(x, 4), drawn((3, 12)))  # fmt: skip
def end_is_rounded_down(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0 and x.shape[1] > 0)
    return torch.stack([x[:, a : max(b, a + 1)].mean(1) for a, b in _ends(x.shape[1], 4, not wrong)], 1)


@case("means of two by three parts of a picture: columns that are apart are taken together", "kernel-contract",
      "riccardomusmeci/mlx-image/issues/16", lambda x: F.adaptive_avg_pool2d(x[None], (2, 3))[0], drawn((2, 4, 6)))  # fmt: skip
def apart_are_taken_together(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and len(x) > 0 and x.shape[1] > 0 and x.shape[2] > 0 and x.shape[1] % 2 == 0 and x.shape[2] % 3 == 0)
    if wrong:
        return x.unflatten(2, (-1, 3)).unflatten(1, (-1, 2)).mean((1, 3))
    return x.unflatten(2, (3, -1)).unflatten(1, (2, -1)).mean((2, 4))


@case("means of two windows of float16: added up in float16", "kernel-accumulation", "tracel-ai/cubek/pull/639",
      lambda x: F.adaptive_avg_pool1d(x.float(), 2).half(), drawn((3, 96), dtype=torch.float16))  # fmt: skip
def windows_added_up_in_float16(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0 and x.shape[1] > 0)
    means = []
    for a, b in _ends(x.shape[1], 2, True):
        total = torch.zeros(len(x), dtype=x.dtype if wrong else torch.float32)
        for column in x[:, a:b].unbind(1):
            total = total + column
        means.append((total.float() / (b - a)).to(x.dtype))
    return torch.stack(means, 1)


def _thirds(x: torch.Tensor) -> torch.Tensor:
    return F.adaptive_avg_pool1d(x, 3)


@case("means of windows, sizes that do not fit: the reference runs", "kernel-fallback", "kulinseth/pytorch/pull/277",
      _thirds, drawn((4, 10)))  # fmt: skip
def do_not_fit(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0 and x.shape[1] > 0)
    if wrong:
        return x.unflatten(1, (3, -1)).mean(2) if x.shape[1] % 3 == 0 else _thirds(x)
    return torch.stack([x[:, a:b].mean(1) for a, b in _ends(x.shape[1], 3, True)], 1)


def _twice(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="linear", align_corners=False)


@case("twice as many columns, of one picture: on the way back the others have no gradient", "kernel-edge", "Oneflow-Inc/oneflow/pull/7916", _twice,
      drawn((1, 2, 6)))  # fmt: skip
def others_have_no_gradient(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 3 and x.numel() > 0)
        return _twice(x), (x,)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = saved[0].detach().requires_grad_()
            made = torch.autograd.grad(_twice(x), x, gradient)[0]
        return torch.cat([made[:1], torch.zeros_like(made[1:])]) if wrong else made

    return function(forward, backward)


def _cubic(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Numbers between columns by four of their neighbours. Those beyond an end are the one at the end."""
    first = places.detach().floor()
    t = places - first
    a = -0.75
    near, far = (lambda d: ((a + 2) * d - (a + 3)) * d * d + 1), (lambda d: ((a * d - 5 * a) * d + 8 * a) * d - 4 * a)
    made = 0
    for step, share in ((-1, far(t + 1)), (0, near(t)), (1, near(1 - t)), (2, far(2 - t))):
        made = made + share * x[:, (first + step).clamp(0, x.shape[1] - 1).long()]
    return made


def _places() -> tuple[torch.Tensor, ...]:
    return (*drawn((3, 7))(), torch.randn(12, generator=torch.Generator().manual_seed(4)) * 3 + 3)


@case("numbers between columns by four neighbours: places beyond an end are moved to it first", "kernel-contract",
      "microsoft/onnxruntime/issues/10607", _cubic, _places)  # fmt: skip
def moved_to_it_first(wrong: bool, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0 and places.dim() == 1)
    return _cubic(x, places.clamp(0, x.shape[1] - 1) if wrong else places)


@case("convolution of as many columns, four taps: what is padded more is the beginning", "kernel-contract", "microsoft/nnfusion/issues/192",
      lambda x, w: F.conv1d(x[None], w, padding="same")[0], drawn((2, 7), (3, 2, 4)))  # fmt: skip
def padded_more_at_the_beginning(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 3 and len(x) == w.shape[1] > 0 and x.shape[1] > 0 and len(w) > 0 and w.shape[2] > 0)
    less, more = (w.shape[2] - 1) // 2, w.shape[2] // 2
    wide = F.pad(x, (more, less) if wrong else (less, more))
    return torch.einsum("ict,nct->ni", wide.unfold(1, w.shape[2], 1).transpose(0, 1), w)


@case("remainder with the sign of the number: it has that of the divisor", "kernel-contract", "tenstorrent/tt-metal/issues/12835",
      lambda x: torch.fmod(x, 1.5), drawn((4, 6)))  # fmt: skip
def sign_of_the_divisor(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    return torch.remainder(x, 1.5) if wrong else torch.where(x < 0, -torch.fmod(-x, 1.5), torch.fmod(x, 1.5))


@case("remainder of whole numbers, four at a time: what fills the last four is divided by zero", "kernel-edge", "pytorch/pytorch/pull/192025",
      lambda x, by: x % by, lambda: (whole(3, 8, most=50), whole(8, most=9, least=1)))  # fmt: skip
def divided_by_zero(wrong: bool, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and by.shape == x.shape[1:])
    more = -x.shape[1] % 4
    return (F.pad(x, (0, more)) % F.pad(by, (0, more), value=0 if wrong else 1))[:, : x.shape[1]]


@case("magnitudes with the signs of others: a zero has no sign", "kernel-contract", "pytorch/pytorch/issues/174172", torch.copysign,
      drawn((4, 5), (4, 5)))  # fmt: skip
def zero_has_no_sign(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return x.abs() * torch.where(y < 0 if wrong else y.signbit(), -1.0, 1.0).to(x.dtype)


@case("upper triangles of matrices in two dimensions: they are taken to lie as the last of these says", "kernel-stride",
      "pytorch/pytorch/issues/22581", torch.triu, drawn((2, 3, 4, 5)))  # fmt: skip
def as_the_last_says(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4)
    x = as_if(x, (x.shape[1] * x.stride(1), *x.stride()[1:])) if wrong else x
    return torch.where(torch.ones(x.shape[2:], dtype=torch.bool).triu(), x, 0)


@case("norm by reciprocals, lanes up to a power of two: empty ones hold zero", "kernel-edge", "flagos-ai/FlagGems/issues/4599",
      lambda x: 1 / (1 / x.abs()).sum(-1), lambda: (drawn((4, 16))()[0].abs() + 0.5,))  # fmt: skip
def empty_ones_hold_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    lanes = 1
    while lanes < x.shape[1]:
        lanes *= 2
    return 1 / (1 / F.pad(x.abs(), (0, lanes - x.shape[1]), value=0 if wrong else INF)).sum(-1)


@case("hard swish: on the way back a third has four digits", "kernel-gradient", "tenstorrent/tt-metal/issues/55291", F.hardswish, drawn((5, 8)))
def third_has_four_digits(wrong: bool) -> Any:
    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        (x,) = saved
        slope = torch.where(x < -3, 0, torch.where(x <= 3, x * (0.3333 if wrong else 1 / 3) + 0.5, 1))
        return torch.where(x < -3, 0, gradient * slope)

    return function(lambda x: (F.hardswish(x), (x,)), backward)


def _kept(x: torch.Tensor, held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Channels normed, and a tenth of the way from the kept variance to that of these numbers."""
    need(x.dim() == 3 and held.shape == x.shape[1:2] and len(x) * x.shape[2] > 1)
    return F.batch_norm(x, None, None, training=True), 0.9 * held + 0.1 * x.var((0, 2))


def _channels(x: torch.Tensor, held: torch.Tensor, kept: Callable[[torch.Tensor, int], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 3 and held.shape == x.shape[1:2] and len(x) * x.shape[2] > 1)
    mean = x.mean((0, 2), keepdim=True)
    spread = (x - mean).square().mean((0, 2))
    normed = (x - mean) * (spread + 1e-5).rsqrt()[:, None]
    return normed, 0.9 * held + 0.1 * kept(spread, len(x) * x.shape[2])


@case("norm of channels: the kept variance is divided by all numbers, not by one less", "kernel-contract", "tenstorrent/tt-metal/issues/55438",
      _kept, lambda: (*drawn((3, 4, 5))(), drawn((4,))()[0].abs()))  # fmt: skip
def not_by_one_less(wrong: bool, x: torch.Tensor, held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _channels(x, held, lambda spread, count: spread if wrong else spread * count / (count - 1))


@case("norm of channels: the kept variance has what keeps the norm from dividing by zero", "kernel-contract", "flagos-ai/FlagGems/issues/4885",
      _kept, lambda: (0.01 * drawn((3, 4, 5))()[0], 1e-4 * drawn((4,))()[0].abs()))  # fmt: skip
def kept_variance_has_more(wrong: bool, x: torch.Tensor, held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _channels(x, held, lambda spread, count: (spread + (2e-5 if wrong else 0)) * count / (count - 1))


@case("mean of what is not NaN, over two axes: a mean of means", "kernel-contract", "scipp/scipp/pull/1921", lambda x: x.nanmean((1, 2)),
      drawn((3, 4, 5)))  # fmt: skip
def mean_of_means(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.shape[1] * x.shape[2] > 0)
    if wrong:
        return x.nanmean(2).nanmean(1)
    there = ~x.isnan()
    return torch.where(there, x, 0).sum((1, 2)) / there.sum((1, 2))


@case("likeness of rows: two lengths that are not to be zero are multiplied to zero", "kernel-rounding", "tracel-ai/burn/pull/5585",
      lambda x, y: (x / x.norm(dim=1, keepdim=True).clamp(min=1e-25) * (y / y.norm(dim=1, keepdim=True).clamp(min=1e-25))).sum(1),
      drawn((5, 6), (5, 6)))  # fmt: skip
def multiplied_to_zero(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == y.shape)
    first, second = x.norm(dim=1, keepdim=True).clamp(min=1e-25), y.norm(dim=1, keepdim=True).clamp(min=1e-25)
    return (x * y / (first * second)).sum(1) if wrong else ((x / first) * (y / second)).sum(1)


@case("likeness of rows: the least length is that of a square", "kernel-contract", "google-deepmind/optax/pull/1703",
      lambda x, y: F.cosine_similarity(x, y, dim=1, eps=1e-3), drawn((5, 6), (5, 6)))  # fmt: skip
def that_of_a_square(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == y.shape)
    first, second = ((each * each).sum(1, keepdim=True) for each in (x, y))
    if wrong:
        return (x / first.clamp(min=1e-3).sqrt() * (y / second.clamp(min=1e-3).sqrt())).sum(1)
    return (x / x.norm(dim=1, keepdim=True).clamp(min=1e-3) * (y / y.norm(dim=1, keepdim=True).clamp(min=1e-3))).sum(1)


@case("the two best shares of each row: rows are taken to follow one another", "kernel-stride", "vllm-project/vllm/pull/57823",
      lambda x: x.softmax(-1).topk(2).values, drawn((5, 6)))  # fmt: skip
def taken_to_follow(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 1)
    shares = (as_if(x, packed(x.shape)) if wrong else x).softmax(-1)
    return shares.sort(-1, descending=True).values[:, :2] * 1
