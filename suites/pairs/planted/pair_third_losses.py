"""The third batch: images, losses, and whole steps of training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_third import Blocked, Grouped, Turning, pair
from pair_third_parts import Adapted, Decaying, Dispatch, Modulated
from torch import nn

V = 17
ADAM: dict[str, Any] = {"optimizer": lambda held: torch.optim.AdamW(held, lr=3e-3, weight_decay=0.1), "steps": 3}


class Picture(nn.Module):
    """A strided convolution, a batch norm, a pool, an upsampling, a depthwise convolution."""

    def __init__(self, form: str = "", same: bool = False, biased: bool = False, corners: bool = False, counted: bool = True, **ways: float) -> None:
        super().__init__()
        self.form, self.same, self.biased, self.corners, self.counted, self.slope = form, same, biased, corners, counted, ways.get("slope", 0.1)
        self.one, self.norm, self.deep = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8, momentum=0.2), nn.Conv2d(8, 8, 3, groups=8)

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(x.float(), (0, 2, 3), correction=0)
        with torch.no_grad():
            count = x.numel() / x.shape[1]
            self.norm.num_batches_tracked.add_(1)
            self.norm.running_mean.lerp_(mean.to(self.norm.running_mean.dtype), 0.2)
            self.norm.running_var.lerp_((variance * (1 if self.biased else count / (count - 1))).to(self.norm.running_var.dtype), 0.2)
        scale = self.norm.weight.float() * torch.rsqrt(variance + self.norm.eps)
        return (x.float() * scale[:, None, None] + (self.norm.bias.float() - mean * scale)[:, None, None]).to(x.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.form != "other":
            y = F.leaky_relu(self.norm(self.one(x)), self.slope)
            y = F.avg_pool2d(y, 3, stride=1, padding=1, count_include_pad=self.counted)
            return self.deep(F.interpolate(y, size=(7, 9), mode="bilinear", align_corners=self.corners))
        wide = F.pad(x, (0, 2, 0, 2) if self.same else (1, 1, 1, 1))[..., : x.shape[2] + 2, : x.shape[3] + 2]
        height, width = (wide.shape[2] - 3) // 2 + 1, (wide.shape[3] - 3) // 2 + 1
        y = self.one.weight.flatten(1) @ F.unfold(wide, 3, stride=2) + self.one.bias[:, None]
        y = self.normed(y.unflatten(-1, (height, width)))
        y = torch.where(y > 0, y, self.slope * y)
        ones = torch.ones_like(y[:1, :1])
        y = F.pad(y, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1).float().sum((-1, -2)).to(y.dtype)
        y = y / 9 if self.counted else y / F.pad(ones, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1).sum((-1, -2))
        rows, columns = (self.weights(old, new).to(y.dtype) for old, new in ((y.shape[2], 7), (y.shape[3], 9)))
        y = rows @ y @ columns.t()
        parts = y.unfold(2, 3, 1).unfold(3, 3, 1)
        return torch.einsum("bchwij,cij->bchw", parts, self.deep.weight[:, 0]) + self.deep.bias[:, None, None]

    def weights(self, old: int, new: int) -> torch.Tensor:
        """The matrix of a linear interpolation."""
        place = torch.arange(new) * (old - 1) / (new - 1) if self.corners else ((torch.arange(new) + 0.5) * old / new - 0.5).clamp(min=0)
        low = place.floor().long().clamp(max=old - 1)
        share = place - low
        matrix = F.one_hot(low, old) * (1 - share)[:, None]
        return matrix + F.one_hot((low + 1).clamp(max=old - 1), old) * share[:, None]


def picture(ours: dict[str, Any] | None = None, optimizer: dict[str, Any] | None = None, **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Picture(**(ours or {}))), Picture(form="other", **{**(ours or {}), **ways})
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(2, 3, 11, 8), {**MEAN, **(optimizer or {})}


class Words(nn.Module):
    """Embedding, two layers, and a head that is the embedding; gives its own loss."""

    def __init__(self, loss: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor], tied: bool = True, gain: float = 1.0) -> None:
        super().__init__()
        self.loss, self.gain = loss, gain
        self.embedding, self.one, self.two = nn.Embedding(V, 16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = self.embedding if tied else nn.Linear(16, V, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens[:, :-1])
        x = x + self.two(F.silu(self.one(x)))
        return self.loss(x * self.gain, self.head.weight, tokens[:, 1:])


def plain(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, weight).float().flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=0.1)


def chunked(
    x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, means: bool = False, counted: bool = False, smoothing: float = 0.1
) -> torch.Tensor:
    """Logits of five tokens at a time."""
    total, parts = torch.zeros(()), 0.0
    for hidden, wanted in zip(x.flatten(0, 1).split(5), labels.flatten().split(5), strict=True):
        logs = F.linear(hidden, weight).float()
        logs = logs - logs.logsumexp(-1, keepdim=True)
        own = -logs.gather(1, wanted[:, None])[:, 0]
        each = (own * (1 - smoothing) - smoothing * logs.mean(-1)) * (1.0 if counted else wanted != 0)
        total, parts = total + (each.mean() if means else each.sum()), parts + 1
    return total / parts if means else total / (labels.numel() if counted else (labels != 0).sum())


class Recomputed(torch.autograd.Function):
    """The loss of a head, whose gradient is made in the forward pass, as fused kernels do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, kept: bool, times: float) -> torch.Tensor:
        logits = F.linear(x.float(), weight.float())
        powers = logits.softmax(-1)
        used = (labels != 0)[:, None].float()
        wanted = F.one_hot(labels, V).float() * 0.9 + 0.1 / V
        slope = (powers - wanted) * (1.0 if kept else used) / used.sum()
        ctx.save_for_backward(slope @ weight.float() * times, slope.t() @ x.float())
        ctx.formats = x.dtype, weight.dtype
        return -(logits.log_softmax(-1) * wanted).sum(-1).mul(used[:, 0]).sum() / used.sum()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return (slope * x).to(ctx.formats[0]), (slope * weight).to(ctx.formats[1]), None, None, None


def fused(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, kept: bool = False, times: float = 1.0) -> torch.Tensor:
    return Recomputed.apply(x.flatten(0, 1), weight, labels.flatten(), kept, times)  # type: ignore[no-any-return]


def words(
    loss: Callable[..., torch.Tensor] = chunked, optimizer: dict[str, Any] | None = None, tied: bool = True, gain: float = 1.0, **ways: Any
) -> Made:
    torch.manual_seed(0)
    model, other = spread(Words(plain)), Words(functools.partial(loss, **ways), tied, gain)
    other.load_state_dict(model.state_dict(), strict=tied)
    if not tied:
        assert isinstance(model, Words)
        other.head.weight = nn.Parameter(model.embedding.weight.detach().clone())
    tokens = torch.randint(0, V, (3, 9))
    tokens[0, 5:] = 0
    return model, other, tokens, {"loss": lambda out: out, **(optimizer or {})}


class Taught(nn.Module):
    """A student's loss: how far it is from its teacher, at a temperature, and from labels."""

    def __init__(self, form: str = "", square: bool = True, turned: bool = False, mean: bool = False) -> None:
        super().__init__()
        self.form, self.square, self.turned, self.mean = form, square, turned, mean
        self.teacher, self.student = nn.Linear(6, 5), nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = self.teacher(x).float() / 2
        given = self.student(x).float() / 2
        if self.form == "other":
            a, b = (each - each.logsumexp(-1, keepdim=True) for each in (wanted, given))
            a, b = (b, a) if self.turned else (a, b)
            distance = (a.exp() * (a - b)).sum(-1).mean() / (5 if self.mean else 1)
        else:
            distance = F.kl_div(given.log_softmax(-1), wanted.softmax(-1), reduction="batchmean")
        return distance * (4 if self.square else 1) + 0.1 * given.square().mean()


def taught(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Taught(), 0.6), Taught(form="other", **ways)
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(9, 6), {"loss": lambda out: out}


def trained(block: Any, **ways: Any) -> Made:
    model, other, x, given = pair(block, **ways)
    return model, other, x, {**given, **ADAM}


# Faults: corners aligned (ggml-org/llama.cpp#25781), a variance without Bessel's correction (tinygrad/tinygrad#807), padding at one end as
# TensorFlow's "same", a mean of chunks' means (huggingface/transformers#35207), padding counted.
healthy("picture", "products for convolutions", picture)
healthy("picture", "corners aligned on both sides", lambda: picture({"corners": True, "counted": False}))
healthy("picture", "after three steps of AdamW", lambda: picture(optimizer=ADAM))
broken("picture", "padded at one end", lambda: picture(same=True), "")
broken("picture", "variance without a correction", lambda: picture(biased=True), "norm", "")
broken("picture", "corners aligned", lambda: picture(corners=True), "")
broken("picture", "padding not counted", lambda: picture(counted=False), "")
broken("picture", "another slope", lambda: picture(slope=0.01), "")
healthy("words", "five tokens at a time", words)
healthy("words", "a gradient made in the forward pass", lambda: words(fused))
healthy("words", "five tokens at a time, three steps of AdamW", lambda: words(optimizer=ADAM))
broken("words", "a mean of means", lambda: words(means=True), "")
broken("words", "padding counted", lambda: words(counted=True), "")
broken("words", "another smoothing", lambda: words(smoothing=0.0), "")
broken("words", "a gradient of padding", lambda: words(fused, kept=True), "")
broken("words", "half of a gradient", lambda: words(fused, times=0.5), "")
broken("words", "head no longer tied", lambda: words(tied=False), "", "embedding", "head")
broken("words", "a gain of logits", lambda: words(gain=0.7), "", said="0.7 in other")
healthy("taught", "logarithms by hand", taught)
broken("taught", "no square of the temperature", lambda: taught(square=False), "")
broken("taught", "the other way round", lambda: taught(turned=True), "")
broken("taught", "a mean over classes", lambda: taught(mean=True), "")
healthy("trained", "queries by group", lambda: trained(Grouped))
healthy("trained", "real numbers for complex ones", lambda: trained(Turning))
healthy("trained", "blocks of keys", lambda: trained(Blocked))
healthy("trained", "strides that double", lambda: trained(Decaying))
healthy("trained", "tokens by expert", lambda: trained(Dispatch))
healthy("trained", "norms by hand", lambda: trained(Modulated))
healthy("trained", "merged weights", lambda: trained(Adapted))
