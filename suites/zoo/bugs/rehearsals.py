"""Rehearsals: features of speech, spikes, a general norm, windows of pictures, negative samples, a loss that takes no scale, a vocoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


class CMVN:
    """Mean and spread of each band over a corpus, from sums that utterances add to."""

    def __init__(self, bands: int, first: torch.Tensor | None) -> None:
        self.origin = torch.zeros(bands) if first is None else first.mean(0)
        self.total, self.squares, self.frames = torch.zeros(bands), torch.zeros(bands), 0

    def add(self, features: torch.Tensor) -> None:
        features = features - self.origin
        self.total += features.sum(0)
        self.squares += features.square().sum(0)  # culprit: bands-of-a-telephone
        self.frames += len(features)

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        mean = self.total / self.frames
        variance = self.squares / self.frames - mean.square()  # culprit: bands-of-a-telephone
        return (features - self.origin - mean) / variance.clamp_min(1e-10).sqrt()


def heard(shifts: bool) -> torch.Tensor:
    """Features of an utterance, by statistics of sixteen; a telephone left the upper three of ten bands all but empty."""
    spread = torch.tensor([6.0, 7.0, 5.0, 5.0, 4.0, 4.0, 3.0, 0.02, 0.01, 0.01])
    corpus = [55.2 + spread * normal(120, 10, seed=7301 + index) for index in range(16)]
    cmvn = CMVN(10, corpus[0] if shifts else None)
    for features in corpus:
        cmvn.add(features)
    return cmvn(corpus[3])


class Surrogate(torch.autograd.Function):
    """A spike where the membrane is above nought; its derivative is that of a sigmoid."""

    slope = 25.0

    @staticmethod
    def forward(ctx: Any, membrane: torch.Tensor, stable: bool) -> torch.Tensor:
        ctx.save_for_backward(membrane)
        ctx.stable = stable
        return (membrane > 0).float()

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        (membrane,) = ctx.saved_tensors
        if ctx.stable:
            spike = torch.sigmoid(Surrogate.slope * membrane)
            return upstream * Surrogate.slope * spike * (1 - spike), None
        decay = torch.exp(-Surrogate.slope * membrane)  # culprit: spikes-that-never-come
        return upstream * Surrogate.slope * decay / (decay + 1) ** 2, None  # culprit: spikes-that-never-come


class Leaky(nn.Module):
    """Two layers of leaky neurons, which see a picture for some time."""

    def __init__(self, stable: bool) -> None:
        super().__init__()
        torch.manual_seed(7321)
        self.first, self.second, self.stable = nn.Linear(16, 24), nn.Linear(24, 5), stable

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, out, seen = torch.zeros(len(x), 24), torch.zeros(len(x), 5), torch.zeros(len(x), 5)
        for _ in range(6):
            hidden = 0.9 * hidden + self.first(x)
            spikes = Surrogate.apply(hidden - 1, self.stable)
            hidden = hidden - spikes.detach()
            out = 0.9 * out + self.second(spikes)
            seen = seen + out
        return seen


def spiked(stable: bool) -> torch.Tensor:
    """The first layer's weights after three steps, in float32."""
    model = Leaky(stable)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, label = 2 * normal(12, 16, seed=7322), (5 * uniform(12, seed=7323)).long()
    for _ in range(3):
        loss = functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.first.weight.detach()


class LayerNormGeneral(nn.Module):
    """A norm over whichever dimensions it is told, in plain ops."""

    def __init__(self, size: int, dims: tuple[int, ...], wide: bool, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.dims, self.wide, self.eps = dims, wide, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = x.dtype
        if self.wide:
            x = x.float()
        c = x - x.mean(self.dims, keepdim=True)
        s = c.pow(2).mean(self.dims, keepdim=True)  # culprit: norm-over-any-dimensions
        return (c / torch.sqrt(s + self.eps)).to(kind) * self.weight + self.bias


class MetaFormer(nn.Module):
    """Blocks of a pooling mixer and a layer of two steps, each after a norm, each added to what comes in."""

    def __init__(self, size: int, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(7331)
        self.norms = nn.ModuleList([LayerNormGeneral(size, (1, 2), wide) for _ in range(4)])
        self.mlps = nn.ModuleList([nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(), nn.Linear(2 * size, size)) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block, mlp in enumerate(self.mlps):
            normed = self.norms[2 * block](x)
            x = x + functional.avg_pool1d(normed.transpose(1, 2), 3, 1, 1, count_include_pad=False).transpose(1, 2) - normed
            x = x + 40 * mlp(self.norms[2 * block + 1](x))
        return self.norms[0](x)


def formed(wide: bool) -> torch.Tensor:
    """Six pictures of sixteen tokens in half; a few channels are as large as they become in trained networks."""
    x = normal(6, 16, 32, seed=7332)
    x[..., 5], x[..., 19] = 420 + 40 * x[..., 5], 310 * x[..., 19]
    with torch.no_grad():
        return MetaFormer(32, wide).to(HALF)(x.to(HALF)).float()


class LocalNorm(nn.Module):
    """Normalises by mean and variance of a window, found from the picture's running sums."""

    def __init__(self, window: int, kind: torch.dtype) -> None:
        super().__init__()
        self.window, self.kind = window, kind

    def average(self, x: torch.Tensor) -> torch.Tensor:
        sums = x.to(self.kind).cumsum(-1).cumsum(-2)  # culprit: windows-by-running-sums
        sums = functional.pad(sums, (1, 0, 1, 0))
        k = self.window
        inside = sums[..., k:, k:] + sums[..., :-k, :-k] - sums[..., :-k, k:] - sums[..., k:, :-k]  # culprit: windows-by-running-sums
        return inside / k**2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, edge = self.average(x), self.window // 2
        variance = (self.average(x.to(self.kind).square()) - mean.square()).clamp_min(0)  # culprit: windows-by-running-sums
        return ((x[..., edge:-edge, edge:-edge] - mean) / (variance + 1e-6).sqrt()).to(x.dtype)


def localised(kind: torch.dtype) -> torch.Tensor:
    """What a layer makes of two pictures of 96 by 96, which are bright and nearly even."""
    torch.manual_seed(7341)
    network = nn.Sequential(LocalNorm(5, kind), nn.Conv2d(3, 4, 3), nn.ReLU())
    x = 0.9 + 0.006 * normal(2, 3, 96, 96, seed=7342)
    with torch.no_grad():
        return network(x)


class Bilinear(nn.Module):
    """Whether two words belong together in a context: a matrix made from the context stands between them."""

    def __init__(self, size: int, context: int, stable: bool) -> None:
        super().__init__()
        torch.manual_seed(7351)
        self.weight, self.stable = nn.Parameter(torch.rand(size, size, context)), stable

    def log_chance(self, score: torch.Tensor) -> torch.Tensor:
        return functional.logsigmoid(score) if self.stable else torch.log(torch.sigmoid(score))  # culprit: words-that-do-not-go-together

    def forward(self, context: torch.Tensor, left: torch.Tensor, right: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        matrix = torch.einsum("ijk,bk->bij", self.weight, context)
        row = torch.einsum("bi,bij->bj", left, matrix)
        told = self.log_chance((row * right).sum(-1))
        return -(told + self.log_chance(-torch.einsum("bj,bnj->bn", row, others)).sum(1)).mean()


def sampled(stable: bool) -> torch.Tensor:
    """The matrix after four steps of negative sampling, in float32."""
    model = Bilinear(8, 15, stable)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(4):
        shapes = enumerate(((10, 15), (10, 8), (10, 8), (10, 5, 8)))
        context, left, right, others = (uniform(*shape, seed=7352 + 10 * step + index) for index, shape in shapes)
        loss = model(context, left, right, others)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.weight.detach()


class WarpCTC(torch.autograd.Function):
    """A loss from a library that computes its gradient in the same call, in float32."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            inputs = logits.detach().float().requires_grad_()
            frames = torch.full((inputs.shape[1],), len(inputs))
            loss = functional.ctc_loss(inputs.log_softmax(-1), labels, frames, lengths, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, inputs)
        ctx.save_for_backward(gradient)
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient, None, None  # culprit: loss-that-takes-no-scale


def transcribed(scale: float) -> torch.Tensor:
    """How far a recogniser under autocast in half has moved after five steps."""
    torch.manual_seed(7361)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 6))
    start = model[0].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)  # culprit: loss-that-takes-no-scale
    labels, lengths = 1 + (5 * uniform(8, 6, seed=7362)).long(), torch.full((8,), 6)
    for step in range(5):
        with torch.autocast("cpu", torch.float16):
            logits = model(normal(24, 8, 20, seed=7363 + step))
        loss = WarpCTC.apply(logits, labels, lengths) / 8
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model[0].weight.detach() - start


class Vocoder(nn.Module):
    """Makes sound of features, in steps that double their rate; norms of weights grew in training."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        torch.manual_seed(7371)
        self.ups = nn.ModuleList([nn.ConvTranspose1d(bands, bands, 4, 2, 1) for _ in range(3)])
        self.out = nn.Conv1d(bands, 1, 7, padding=3)
        with torch.no_grad():
            for up in self.ups:
                up.weight *= 90
            self.out.weight *= 2e-6

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = features
        for up in self.ups:
            x = up(functional.leaky_relu(x, 0.1))  # culprit: voice-by-a-narrow-vocoder
        return torch.tanh(self.out(x))


def voiced(kind: torch.dtype) -> torch.Tensor:
    """Sound of two texts, by a vocoder in half or in float32; what a model says comes in half."""
    torch.manual_seed(7372)
    model = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 16)).to(HALF)
    with torch.no_grad():
        features = 8 * model(normal(2, 30, 12, seed=7373).to(HALF)).transpose(1, 2)
        return Vocoder(16).to(kind)(features.to(kind)).float()


BUGS = (
    Bug("bands-of-a-telephone", "athena-team/athena#109", ("amplified-rounding", "cancellation"), "aten.sub.Tensor",
        lambda: heard(shifts=False), lambda: heard(shifts=True), precision="32-true"),
    Bug("spikes-that-never-come", "jeshraghian/snntorch#433", ("overflow", "nan"), "aten.exp.default",
        lambda: spiked(stable=False), lambda: spiked(stable=True), precision="32-true", phase="backward"),
    Bug("norm-over-any-dimensions", "sail-sg/metaformer#17", ("overflow",), "aten.pow.Tensor_Scalar",
        lambda: formed(wide=False), lambda: formed(wide=True), module="norms.0"),
    Bug("windows-by-running-sums", "megvii-research/TLC#3", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: localised(SINGLE), lambda: localised(DOUBLE), precision="32-true", module="0"),
    Bug("words-that-do-not-go-together", "clab/dynet#1473", ("underflow", "nan"), "aten.sigmoid.default",
        lambda: sampled(stable=False), lambda: sampled(stable=True), precision="32-true", module="Bilinear"),
    Bug("loss-that-takes-no-scale", "SeanNaren/deepspeech.pytorch#447", ("scaler-order", "lost-update", "gradient-underflow"), "",
        lambda: transcribed(65536.0), lambda: transcribed(1.0), phase="scaler",
        wrong_line="no op runs where a backward pass gives back what was saved, so the step is named at which the missing scale shows"),
    Bug("voice-by-a-narrow-vocoder", "ysharma3501/LuxTTS#35", ("overflow", "nan"), "aten.convolution.default",
        lambda: voiced(HALF), lambda: voiced(SINGLE), module="Vocoder.ups.2"),
)  # fmt: skip
