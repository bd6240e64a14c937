"""Mills: boxes without a width, turns that widen what they turn, layers that push down, pictures on their way out, codes that are multiplied."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class BoxCoder:
    """Writes boxes as what they differ in from anchors."""

    def __init__(self, eps: float) -> None:
        self.eps = eps

    def encode(self, boxes: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        (middle, size), (near, span) = self.parts(boxes), self.parts(anchors)
        return torch.cat([(middle - near) / span, torch.log(size / span)], -1)  # culprit: boxes-without-a-width

    def parts(self, boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = boxes.chunk(2, -1)
        return (low + high) / 2, high - low + self.eps  # culprit: boxes-without-a-width


def encoded(eps: float) -> torch.Tensor:
    """Twelve boxes beside their anchors, in parts of the picture; the last three are only there to fill a batch. Infinite."""
    low = 0.1 + 0.4 * uniform(12, 2, seed=721)
    boxes = torch.cat([low, low + 0.1 + 0.3 * uniform(12, 2, seed=722)], -1)
    boxes[9:] = 0
    anchors = torch.cat([low - 0.05, low + 0.6 + 0.3 * uniform(12, 2, seed=723)], -1)
    return wider(BoxCoder(eps).encode(boxes.to(HALF), anchors.to(HALF)))


class Turned(nn.Module):
    """A vision model's attention, whose queries and keys are turned by a table of sines and cosines."""

    def __init__(self, size: int, patches: int, same: bool) -> None:
        super().__init__()
        torch.manual_seed(724)
        self.same = same
        self.pairs = nn.Linear(size, 3 * size)
        angles = torch.outer(torch.arange(patches).float(), 100.0 ** (-torch.arange(0, size, 2) / size)).repeat_interleave(2, -1)
        self.sin, self.cos = angles.sin(), angles.cos()

    def turn(self, values: torch.Tensor) -> torch.Tensor:
        sin, cos = (self.sin.to(values.dtype), self.cos.to(values.dtype)) if self.same else (self.sin, self.cos)
        across = torch.stack([-values[..., 1::2], values[..., ::2]], -1).view_as(values)
        return values * cos + across * sin  # culprit: turn-that-widens

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        query, key, value = self.pairs(patches).chunk(3, -1)
        return functional.scaled_dot_product_attention(self.turn(query), self.turn(key), value)  # culprit: turn-that-widens


def seen(same: bool) -> torch.Tensor:
    """What thirty patches of a picture say of each other, in bfloat16. torch refuses it."""
    with torch.no_grad():
        return wider(Turned(32, 30, same).to(LOW)(normal(1, 30, 32, seed=725).to(LOW)))


class FeedForward(nn.Module):
    """The wide layers of a text encoder, which add to what comes in."""

    def __init__(self, size: int, inner: int, scale: float) -> None:
        super().__init__()
        torch.manual_seed(726)
        self.scale = scale
        self.up, self.down = nn.Linear(size, inner, bias=False), nn.Linear(inner, size, bias=False)
        with torch.no_grad():
            self.up.weight.mul_(400)
            self.down.weight.mul_(4000 / scale)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.up((words / words.abs().amax()).to(self.up.weight.dtype)))
        pushed = self.down(hidden)  # culprit: layers-that-push-down
        if self.scale != 1:
            return words.float() + pushed.float() * self.scale
        return words + pushed  # culprit: layers-that-push-down


def pushed(scale: float) -> torch.Tensor:
    """What an encoder's last norm makes of sixteen words. Not a number."""
    words = (8 * normal(16, 48, seed=727)).to(HALF)
    with torch.no_grad():
        words = FeedForward(48, 192, scale).to(HALF)(words)
    return functional.layer_norm(words.float(), (48,))


class Convolution(nn.Module):
    """A convolution that lays its windows out in half and multiplies them there."""

    def __init__(self, channels: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(normal(channels, 9 * channels, seed=728).to(HALF) / 64, requires_grad=False)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        windows = functional.unfold(picture * self.scale, 3, padding=1).to(HALF)  # culprit: windows-of-a-large-picture
        return (self.weight.float() @ windows.float() / self.scale).view_as(picture)


def unfolded(scale: float) -> torch.Tensor:
    """One layer of a decoder of pictures, whose numbers have become large. Not a number."""
    return Convolution(4, scale)(45_000 * normal(1, 4, 8, 8, seed=729))


class Decoder(nn.Module):
    """Makes a picture out of what a painter has made."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(730)
        self.first, self.second, self.last = (nn.Conv2d(many, other, 3, padding=1) for many, other in ((4, 12), (12, 12), (12, 3)))
        with torch.no_grad():
            for layer in (self.first, self.second):
                layer.weight.mul_(320)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        hidden = functional.silu(self.first(latents))
        hidden = hidden + self.second(hidden)  # culprit: picture-within-autocast
        return self.last(functional.group_norm(hidden.float(), 3))


def edited(within: bool) -> torch.Tensor:
    """A picture after a painter's last step. It is black."""
    torch.manual_seed(731)
    painter, decoder, latents = nn.Conv2d(4, 4, 3, padding=1), Decoder(), normal(1, 4, 8, 8, seed=732)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        for _ in range(3):
            latents = latents + 0.3 * painter(latents).float()
        if within:
            return decoder(latents).float()  # culprit: picture-within-autocast
    with torch.no_grad():
        return decoder(latents)


class Codes:
    """Numbers as whole ones of eight bits, times a scale in half."""

    def __init__(self, values: torch.Tensor) -> None:
        self.scale = (values.abs().amax(-1, keepdim=True).float() / 127).to(HALF)
        self.data = (values.float() / self.scale.float()).round().clamp(-127, 127).to(torch.int8)

    def dequantize(self) -> torch.Tensor:
        return self.data.to(HALF) * self.scale


def product(first: Codes, second: Codes, scaled: bool) -> torch.Tensor:
    """What a layer of codes makes of codes."""
    if scaled:
        return first.dequantize() @ second.dequantize().T
    codes = first.data.to(HALF) @ second.data.to(HALF).T  # culprit: codes-that-are-multiplied
    return codes * first.scale * second.scale.T  # culprit: codes-that-are-multiplied


def multiplied(scaled: bool) -> torch.Tensor:
    """Answers of a layer of eight bits for ten words that are much alike. Infinite."""
    words = (1 + 0.4 * normal(10, 64, seed=733)).to(HALF)
    return wider(product(Codes(words), Codes((0.05 + 0.04 * normal(24, 64, seed=734)).to(HALF)), scaled))


BUGS = (
    Bug("boxes-without-a-width", "rwightman/efficientdet-pytorch#291", ("vanished-constant", "overflow", "underflow"), "aten.add.Tensor",
        lambda: encoded(1e-8), lambda: encoded(1e-7)),
    Bug("turn-that-widens", "huggingface/pytorch-image-models#2794", ("dtype-leak",), "aten.mul.Tensor",
        lambda: seen(same=False), lambda: seen(same=True), raises=RuntimeError),
    Bug("layers-that-push-down", "huggingface/optimum-graphcore#296", ("overflow",), "aten.mm.default",
        lambda: pushed(1.0), lambda: pushed(8.0), module="down"),
    Bug("windows-of-a-large-picture", "leejet/stable-diffusion.cpp#888", ("overflow",), "aten._to_copy.default",
        lambda: unfolded(1.0), lambda: unfolded(1 / 32), module="Convolution"),
    Bug("picture-within-autocast", "stepfun-ai/Step1X-Edit#53", ("overflow",), "aten.convolution.default",
        lambda: edited(within=True), lambda: edited(within=False), module="second"),
    Bug("codes-that-are-multiplied", "huggingface/optimum-quanto#42", ("overflow",), "aten.mm.default",
        lambda: multiplied(scaled=False), lambda: multiplied(scaled=True)),
)  # fmt: skip
