"""Barns: pictures of whole numbers, blocks of nought in eight bits, means of pictures, softplus by hand, moments in half, texts of one word."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE, FLOAT8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
MEAN, SPREAD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Processor:
    """Prepares pictures for a network: brings them to a size, and each colour to its usual mean and spread."""

    def __init__(self, mends: bool) -> None:
        self.mends = mends

    def normalise(self, picture: torch.Tensor) -> torch.Tensor:
        if self.mends and not picture.is_floating_point():
            picture = picture.to(SINGLE)
        mean, spread = torch.tensor(MEAN, dtype=picture.dtype), torch.tensor(SPREAD, dtype=picture.dtype)  # culprit: pictures-of-whole-numbers
        return (picture - mean[:, None, None]) / spread[:, None, None]  # culprit: pictures-of-whole-numbers


def processed(mends: bool) -> torch.Tensor:
    """What a layer makes of a picture of bytes that was not rescaled, in bfloat16."""
    torch.manual_seed(6601)
    layer = nn.Conv2d(3, 4, 3).to(LOW)
    picture = (256 * uniform(3, 12, 12, seed=6602)).to(torch.uint8)
    with torch.no_grad():
        return layer(Processor(mends).normalise(picture)[None].to(LOW)).float()


class BlockedFP8(nn.Module):
    """A layer whose weights are numbers of eight bits, in blocks with a scale each."""

    def __init__(self, layer: nn.Linear, size: int, least: float) -> None:
        super().__init__()
        blocks = layer.weight.detach().unflatten(1, (-1, size))
        scale = blocks.abs().amax(-1, keepdim=True) / torch.finfo(FLOAT8).max
        scale = scale.clamp_min(least) if least else scale
        self.codes, self.scale = (blocks / scale).to(FLOAT8), scale  # culprit: blocks-that-were-pruned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, (self.codes.to(x.dtype) * self.scale.to(x.dtype)).flatten(1))


def blocked(least: float) -> torch.Tensor:
    """A layer in bfloat16, a quarter of whose weights was pruned in blocks."""
    torch.manual_seed(6611)
    layer = nn.Linear(64, 24, bias=False)
    with torch.no_grad():
        layer.weight.view(24, 8, 8)[:, ::4] = 0
        return BlockedFP8(layer, 8, least)(normal(6, 64, seed=6612).to(LOW)).float()


class Brightness:
    """Says how bright pictures are, and makes them equally bright."""

    def __init__(self, wide: bool) -> None:
        self.wide = wide

    def mean(self, picture: torch.Tensor) -> torch.Tensor:
        total = picture.sum(dtype=SINGLE) if self.wide else picture.sum()  # culprit: brightness-of-a-picture
        return total / picture.numel()

    def __call__(self, picture: torch.Tensor, wanted: float) -> torch.Tensor:
        return picture * (wanted / self.mean(picture))


def brightened(wide: bool) -> torch.Tensor:
    """Three pictures of 64 by 64, whose pixels reach 255, in half."""
    pictures = (255 * uniform(3, 64, 64, seed=6621) ** torch.tensor([0.5, 1.0, 2.0])[:, None, None]).to(HALF)
    return torch.stack([Brightness(wide)(picture, 100.0).float() for picture in pictures])


def softplus(x: torch.Tensor, stable: bool) -> torch.Tensor:
    if stable:
        return x.clamp_min(0) + torch.log(1 + torch.exp(-x.abs()))
    return torch.log(1 + torch.exp(x))  # culprit: steps-by-softplus


class Selective(nn.Module):
    """A scan whose steps are the softplus of what a layer says, as it is lowered to simple ops."""

    def __init__(self, stable: bool) -> None:
        super().__init__()
        torch.manual_seed(6631)
        self.step, self.rates, self.stable = nn.Linear(8, 8), nn.Parameter(torch.linspace(0.001, 0.1, 8)), stable

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = softplus(self.step(x), self.stable)
        state, out = torch.zeros_like(x[0]), []
        for word in range(len(x)):
            state = torch.exp(-steps[word] * self.rates) * state + 0.1 * x[word]
            out.append(state)
        return torch.stack(out)


def scanned(stable: bool) -> torch.Tensor:
    """Twenty words in half, some of which ask for steps of thirty."""
    model = Selective(stable).to(HALF)
    x = normal(20, 8, seed=6632)
    x[::5] *= 25
    with torch.no_grad():
        return model(x.to(HALF)).float()


class Optimizer:
    """Adam over parameters of any dtype; its moments have the dtype of the parameter, or are float32."""

    def __init__(self, parameters: list[nn.Parameter], wide: bool, rate: float = 1e-2, epsilon: float = 1e-6) -> None:
        self.parameters, self.rate, self.epsilon, self.time = parameters, rate, epsilon, 0
        kinds = [SINGLE if wide else each.dtype for each in parameters]
        self.moments = [
            (torch.zeros_like(each, dtype=kind), torch.zeros_like(each, dtype=kind)) for each, kind in zip(parameters, kinds, strict=True)
        ]

    @torch.no_grad()
    def step(self) -> None:
        self.time += 1
        for parameter, (mean, square) in zip(self.parameters, self.moments, strict=True):
            gradient = parameter.grad.to(mean.dtype)
            mean.copy_(0.9 * mean + 0.1 * gradient)
            square.copy_(0.999 * square + 0.001 * gradient * gradient)  # culprit: texture-in-half
            debiased = mean / (1 - 0.9**self.time), square / (1 - 0.999**self.time)
            parameter -= (self.rate * debiased[0] / (debiased[1].sqrt() + self.epsilon)).to(parameter.dtype)
            parameter.grad = None


def optimised(wide: bool) -> torch.Tensor:
    """A texture in half after fifteen steps of a renderer, whose gradients are a few ten-thousandths."""
    texture = nn.Parameter((0.5 + 0.1 * normal(16, 16, seed=6641)).to(HALF))
    optimizer, goal = Optimizer([texture], wide), uniform(16, 16, seed=6642)
    for _ in range(15):
        (texture.float() - goal).square().mean().mul(0.2).backward()
        optimizer.step()
    return texture.detach().float() - 0.5


class Embedder(nn.Module):
    """Vectors of texts, of which a batch has several; what is not there is masked by a low number."""

    def __init__(self, off: float) -> None:
        super().__init__()
        torch.manual_seed(6651)
        self.mix, self.off = nn.Linear(24, 72), off

    def bias(self, lengths: torch.Tensor, words: int, dtype: torch.dtype) -> torch.Tensor:
        there = torch.arange(words) < lengths[:, None]
        both = there[:, None, :] & there[:, :, None]
        return torch.where(both, 0.0, self.off).to(dtype)  # culprit: batch-with-a-short-text

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(x).chunk(3, -1)
        scores = query @ key.transpose(1, 2) * 24**-0.5 + self.bias(lengths, x.shape[1], x.dtype)
        there = (torch.arange(x.shape[1]) < lengths[:, None])[..., None]
        mixed = scores.softmax(-1) @ value  # culprit: batch-with-a-short-text
        return (mixed * there).sum(1) / lengths[:, None]


def embedded(off: float) -> torch.Tensor:
    """Vectors of four texts of up to ten words, in half."""
    with torch.no_grad():
        return Embedder(off).to(HALF)(normal(4, 10, 24, seed=6652).to(HALF), torch.tensor([10, 6, 1, 3])).float()


BUGS = (
    Bug("pictures-of-whole-numbers", "huggingface/transformers#27249", ("nan", "integer-rounding", "vanished-constant"), "aten.div.Tensor",
        lambda: processed(mends=False), lambda: processed(mends=True),
        expected_miss="fractions that Python gives to a tensor of whole numbers are cut off, and integers have no shadow"),
    Bug("blocks-that-were-pruned", "InternLM/lmdeploy#3652", ("wrong-scale", "nan", "underflow"), "aten._to_copy.default",
        lambda: blocked(0.0), lambda: blocked(1e-12)),
    Bug("brightness-of-a-picture", "numpy/numpy#8133", ("overflow",), "aten.sum.default",
        lambda: brightened(wide=False), lambda: brightened(wide=True)),
    Bug("steps-by-softplus", "apple/coremltools#2814", ("overflow", "nan"), "aten.exp.default",
        lambda: scanned(stable=False), lambda: scanned(stable=True)),
    Bug("texture-in-half", "mitsuba-renderer/drjit#411", ("underflow", "amplified-rounding", "lost-update", "absorption"), "aten.mul.Tensor",
        lambda: optimised(wide=False), lambda: optimised(wide=True)),
    Bug("batch-with-a-short-text", "HabanaAI/vllm-fork#1441", ("overflow", "nan"), "aten._to_copy.default",
        lambda: embedded(-3e38), lambda: embedded(-63000.0)),
)  # fmt: skip
