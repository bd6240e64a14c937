"""Layers that remember or are stored: attention by halves, a state in small steps, a sharp focus, scales of blocks, steps of time, lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32
EIGHT = torch.float8_e4m3fn


class Entmax(torch.autograd.Function):
    """Sparse chances of 1.5-entmax, whose threshold is found by halving an interval; the way back needs no threshold."""

    @staticmethod
    def forward(context: Any, scores: torch.Tensor) -> torch.Tensor:
        halved = scores / 2
        largest = halved.amax(-1, keepdim=True)
        low, width = largest - 1, 1 - scores.shape[-1] ** -0.5  # culprit: attention-by-halves
        for _ in range(30):
            width = width / 2
            middle = low + width  # culprit: attention-by-halves
            total = (halved - middle).clamp(min=0).square().sum(-1, keepdim=True)  # culprit: attention-by-halves
            low = torch.where(total >= 1, middle, low)
        chances = (halved - low).clamp(min=0).square()  # culprit: attention-by-halves
        chances = chances / chances.sum(-1, keepdim=True)
        context.save_for_backward(chances)
        return chances

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (chances,) = context.saved_tensors
        root = chances.sqrt()
        along = root * gradients[0]
        return along - along.sum(-1, keepdim=True) / root.sum(-1, keepdim=True) * root


def sparse_attention(centred: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What 24 queries read by sparse attention in bfloat16, and the gradient of the values, for scores that share an offset."""
    scores = ((10 * normal(24, 40)).round() / 4 - 46).clamp(-63, -33).to(LOW)
    values = normal(40, 8, seed=1).to(LOW).requires_grad_()
    if centred:
        chances = Entmax.apply(scores.float() - scores.float().amax(-1, keepdim=True)).to(LOW)
    else:
        chances = Entmax.apply(scores)
    read = chances @ values
    return read.detach().float(), torch.autograd.grad(read.float().square().sum(), values)[0].float()


class StateSpace(nn.Module):
    """A diagonal state space whose steps depend on the input and are held to a zero-order hold; the scan is checkpointed."""

    def __init__(self, width: int, states: int, single: bool) -> None:
        super().__init__()
        self.step, self.read_in, self.single = nn.Linear(width, width), nn.Linear(width, states, bias=False), single
        self.log_rate = nn.Parameter(torch.log(torch.arange(1.0, states + 1)))

    def held(self, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What a step leaves of a state, and what it adds of an input."""
        rate = -self.log_rate.exp()
        if self.single:
            step, rate = step.float(), rate.float()
            return torch.exp(step[..., None] * rate), torch.expm1(step[..., None] * rate) / rate
        kept = torch.exp(step[..., None] * rate)  # culprit: steps-of-a-slow-state
        return kept, (kept - 1) / rate  # culprit: steps-of-a-slow-state

    def scan(self, x: torch.Tensor) -> torch.Tensor:
        kept, added = self.held(functional.softplus(self.step(x)))
        inputs = added * (self.read_in(x)[..., None, :] * x[..., None])
        state, found = torch.zeros(inputs.shape[1:]), []
        for decay, each in zip(kept.float(), inputs.float(), strict=True):
            state = decay * state + each
            found.append(state.sum(-1))
        return torch.stack(found)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.scan, x, use_reentrant=False)
        return out


def state_space(single: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What a layer in bfloat16 makes of sixteen tokens, and the gradient of its steps."""
    model = StateSpace(8, 4, single)
    with torch.no_grad():
        model.step.weight.copy_(normal(8, 8) / 16)
        model.step.bias.copy_(torch.linspace(-7, -5, 8))
        model.read_in.weight.copy_(normal(4, 8, seed=1) / 2)
    made = model.to(LOW)(normal(16, 8, seed=2).to(LOW))
    made.square().sum().backward()
    assert model.step.weight.grad is not None
    return made.detach().float(), model.step.weight.grad.float()


class Addressing(nn.Module):
    """The focus of a head of a neural Turing machine: by content, shifted, and sharpened."""

    def __init__(self, width: int, by_logarithms: bool) -> None:
        super().__init__()
        self.key, self.shift, self.sharpness = nn.Linear(width, width), nn.Linear(width, 3), nn.Linear(width, 1)
        self.by_logarithms = by_logarithms

    def forward(self, hidden: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        likeness = functional.cosine_similarity(self.key(hidden)[:, None], memory, dim=-1)
        content, shifts = torch.softmax(likeness, -1), torch.softmax(self.shift(hidden), -1)
        focus = sum(shifts[:, way : way + 1] * content.roll(way - 1, -1) for way in range(3))
        gamma = 1 + functional.softplus(self.sharpness(hidden))
        if self.by_logarithms:
            return torch.softmax(gamma.float() * torch.log(focus.float()), -1)
        sharp = focus**gamma  # culprit: focus-of-a-head
        return sharp / (sharp.sum(-1, keepdim=True) + 1e-16)


def focused(by_logarithms: bool) -> torch.Tensor:
    """What six heads in half read from a memory of 128 places, when they have learnt to be sharp."""
    model, memory = Addressing(16, by_logarithms), normal(128, 16, seed=9)
    with torch.no_grad():
        for seed, each in enumerate(model.parameters()):
            each.copy_(normal(*each.shape, seed=seed) / 4)
        model.sharpness.weight.div_(4)
        model.sharpness.bias.fill_(3.0)
        weights = model.half()(normal(6, 16, seed=10).to(HALF), memory.to(HALF))
        return weights.float() @ memory


class FourBits(nn.Module):
    """Weights in blocks of sixteen numbers of four bits, with a scale of eight bits for each block and a scale of all of them."""

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        blocks = weight.float().view(-1, 16)
        self.scale = (blocks.abs().amax() / (6 * 448)).to(dtype)  # culprit: scales-of-blocks
        self.scales = (blocks.abs().amax(-1, keepdim=True) / 6 / self.scale.float()).to(EIGHT)  # culprit: scales-of-blocks
        steps = blocks / (self.scales.float() * self.scale.float())
        nearest = (steps.abs()[..., None] - grid).abs().argmin(-1)
        self.numbers, self.shape = grid[nearest] * steps.sign(), weight.shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.numbers * self.scales.float() * self.scale.float()
        return functional.linear(x, weight.view(self.shape))


def exported(dtype: torch.dtype) -> torch.Tensor:
    """What a layer with small weights makes of eight tokens, whose scale is kept in a format."""
    weight = normal(24, 32).clamp(-1.5, 1.5)
    weight = weight / weight.abs().amax() * (6 * 448 * 1.45 * 2**-24)
    return FourBits(weight, dtype)(normal(8, 32, seed=1))


class AdaptiveSolver:
    """Heun's method, whose steps grow and shrink with the difference from Euler's; clocks are kept in a format."""

    def __init__(self, tolerance: float, clock: torch.dtype) -> None:
        self.tolerance, self.clock = tolerance, clock

    def solve(self, slope: nn.Module, y: torch.Tensor, start: float, end: float) -> torch.Tensor:
        t, step = torch.tensor(start, dtype=self.clock), torch.tensor(0.01, dtype=self.clock)
        while t < end:
            assert t + step > t, f"underflow in dt {step.item()}"  # culprit: clock-that-stops
            first = slope(t, y)
            second = slope(t + step, y + step * first)
            error = (step * (second - first) / 2).abs().max() / self.tolerance
            if error <= 1:
                t, y = t + step, y + step * (first + second) / 2  # culprit: clock-that-stops
            step = (step * (0.9 / error.sqrt().clamp(0.3, 3))).to(self.clock)
        return y


class Pendulum(nn.Module):
    """The slope of a pendulum that is shaken."""

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        angle, speed = y.unbind(-1)
        return torch.stack([speed, 4 * torch.sin(20 * t.float()) - 5 * torch.sin(angle)], -1)


def pushed(clock: torch.dtype) -> torch.Tensor:
    """Where four pendulums are at the end of half a second that starts in the fourteenth."""
    return AdaptiveSolver(1e-4, clock).solve(Pendulum(), torch.stack([torch.linspace(0.1, 0.4, 4), torch.zeros(4)], -1), 14.0, 14.5)


class Positive(nn.Module):
    """Keeps a parameter positive: it is stored as what softplus makes it from."""

    def __init__(self, exact: bool) -> None:
        super().__init__()
        self.exact = exact

    def forward(self, raw: torch.Tensor) -> torch.Tensor:
        return functional.softplus(raw)

    def right_inverse(self, length: torch.Tensor) -> torch.Tensor:
        if self.exact:
            length = length.float()
            return length + torch.log(-torch.expm1(-length))
        return torch.log(torch.exp(length) - 1)  # culprit: lengths-that-begin-small


class Kernel(nn.Module):
    """A kernel of several length scales."""

    def __init__(self, lengths: torch.Tensor, exact: bool) -> None:
        super().__init__()
        self.lengths = nn.Parameter(torch.ones_like(lengths, dtype=WIDE if exact else lengths.dtype))
        parametrize.register_parametrization(self, "lengths", Positive(exact), unsafe=True)
        self.lengths = lengths

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        away = (x[:, None] - x)[..., None] / self.lengths.float()
        return torch.exp(-away.square() / 2).mean(-1)


def covariances(exact: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The covariance of twelve places by a kernel that is set up in bfloat16, and its lengths."""
    lengths = torch.tensor([0.0078125, 0.01171875, 0.017578125, 0.025390625]).to(LOW)
    kernel = Kernel(lengths, exact)
    with torch.no_grad():
        return kernel((uniform(12) / 8).to(LOW).float()), kernel.lengths.float()


BUGS = (
    Bug("attention-by-halves", "deep-spin/entmax#30", ("amplified-rounding", "cancellation"), "aten.sub.Tensor", lambda: sparse_attention(False),
        lambda: sparse_attention(True)),
    Bug("steps-of-a-slow-state", "srush/annotated-mamba#4", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: state_space(False),
        lambda: state_space(True)),
    Bug("focus-of-a-head", "camigord/Neural-Turing-Machine#3", ("underflow", "vanished-constant"), "aten.pow.Tensor_Tensor",
        lambda: focused(False), lambda: focused(True)),
    Bug("scales-of-blocks", "NVIDIA/Model-Optimizer#1633", ("underflow", "clipping", "overflow"), "aten._to_copy.default",
        lambda: exported(HALF), lambda: exported(WIDE),
        note="Scales of eight bits and numbers of four cost the twin 3 % as well; the thread has NaN, and a CPU's cast saturates."),
    Bug("clock-that-stops", "rtqichen/torchdiffeq#184", ("absorption",), "aten.add.Tensor", lambda: pushed(HALF), lambda: pushed(WIDE),
        raises=AssertionError),
    Bug("lengths-that-begin-small", "cornellius-gp/gpytorch#775", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: covariances(False), lambda: covariances(True)),
)  # fmt: skip
