"""What wrappers do around a model: casts that leave the graph or are forgotten, autocast where it was not expected, tapes kept in half."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform
from bugs.loops import Loop

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32
WIDER = "the numbers are right, and more of them than wanted: watch() compares numbers, and asks nobody which dtype they should have"
LEFT = "only copies of parameters are followed to where a gradient should have come back; this is an activation that left the graph"


class Wrapped(nn.Module):
    """Casts what comes in, under no_grad: what lies in front of it never learns."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.detached, self.weight = detached, nn.Parameter(normal(4, 8) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.detached):
            x = x.to(LOW)  # culprit: cast-without-graph
        return functional.linear(x, self.weight.to(LOW)).float()


def encoder_gradient(detached: bool) -> torch.Tensor:
    encoder, head = nn.Parameter(normal(8, 6, seed=1) / 3), Wrapped(detached)
    head(functional.linear(normal(32, 6, seed=2), encoder)).square().mean().backward()
    return torch.zeros(8, 6) if encoder.grad is None else encoder.grad


def packed(x: torch.Tensor, detached: bool) -> torch.Tensor:
    """Halves two by two, as a kernel wants them, copied by their data."""
    if not detached:
        return torch.stack([x, x])
    pair = torch.empty(2, *x.shape, dtype=x.dtype)
    pair[0], pair[1] = x.data, x.data  # culprit: packed-halves
    return pair


def kernel_gradient(detached: bool) -> torch.Tensor:
    length, points, values = nn.Parameter(torch.tensor([0.8])), normal(32, 3), normal(32, 1, seed=1)
    x = packed((points / length).half(), detached)
    smooth = torch.exp(-(x[0][:, None] - x[0]).abs().sum(-1)).float() @ values
    (smooth + 0.01 * length).square().mean().backward()
    assert length.grad is not None
    return length.grad


def gated(coin: torch.Tensor) -> torch.Tensor:
    """An augmentation by a coin of float32, for a batch of bfloat16: it leaves as float32."""
    pictures = uniform(4, 3, 8, 8).to(LOW)
    gate = coin[:, None, None, None]
    return gate * pictures.flip(-1) + (1 - gate) * pictures  # culprit: promoting-coin


class Residual(nn.Module):
    """Adds and normalises in float32, casts the result back, and forgets the residual; a layer of bfloat16 is to read it."""

    def __init__(self, forgets: bool) -> None:
        super().__init__()
        self.forgets, self.draft = forgets, nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        total = x.float() + residual.float()  # culprit: wide-residual
        return self.draft(total if self.forgets else total.to(x.dtype))  # culprit: wide-residual


class Experts(nn.Module):
    """Each token's expert answers into a table of the input's dtype; weights of a softmax in float32 make the answers float32."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide, self.experts = wide, nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        with torch.no_grad():
            for seed, weight in enumerate(self.parameters()):
                weight.copy_(normal(*weight.shape, seed=seed) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, share = torch.zeros_like(x), torch.softmax(x[:, :3].float(), -1)  # culprit: expert-answers
        share = share if self.wide else share.to(x.dtype)
        for place, expert in enumerate(self.experts):
            mine = (share.argmax(-1) == place).nonzero()[:, 0]
            out.index_add_(0, mine, expert(x[mine]) * share[mine, place, None])  # culprit: expert-answers
        return out


class Mixed(nn.Module):
    """Two scalars a layer that stay float32 promote the stream of activations: the network runs in float32 from there."""

    def __init__(self, cast: bool) -> None:
        super().__init__()
        self.cast, self.shares = cast, [torch.ones(3, 1), torch.full((3, 1), 0.1)]
        self.weights = nn.ParameterList(normal(16, 16, seed=seed) / 4 for seed in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for stay, again, weight in zip(*self.shares, self.weights, strict=True):
            if self.cast:
                stay, again = stay.to(first.dtype), again.to(first.dtype)
            x = stay * x + again * first  # culprit: promoting-scalars
            x = x + functional.linear(x, weight.to(x.dtype))
        return x


class Positions(nn.Module):
    """Angles of image tokens from 65536 on, by a product of matrices: autocast rounds its operands, .float() or not."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.by_hand, self.frequencies = by_hand, [5_000_000.0 ** (-torch.arange(0.0, 16.0, 2) / 16)]

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        if self.by_hand:
            angles = places.double()[:, None] * self.frequencies[0].double()
        else:
            angles = (self.frequencies[0][:, None].float() @ places[None].float()).T  # culprit: autocast-angles
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1).float()


def positions(by_hand: bool) -> dict[str, Any]:
    return {"model": Positions(by_hand), "inputs": (normal(48, 16).to(LOW).float(), 65536 + torch.arange(48)), "precision": "bf16-mixed"}


def turned(by_hand: bool) -> torch.Tensor:
    with torch.autocast("cpu", dtype=LOW):
        return Positions(by_hand)(*positions(by_hand)["inputs"])


def half_training(scale: float) -> torch.Tensor:
    """A model that is float16 throughout, and a loss over many outputs: each gets less than half can hold."""
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64)).half()
    with torch.no_grad():
        for seed, weight in enumerate(model.parameters()):
            weight.copy_(normal(*weight.shape, seed=seed) / 8)
    x, goal = normal(256, 8).half(), 0.001 * normal(256, 64, seed=9)
    out = model(x)  # culprit: half-training
    (scale * 1e-3 * (out.float() - out.float().detach() + goal).square().mean()).backward()  # culprit: half-training
    assert model[0].weight.grad is not None
    return model[0].weight.grad.float() / scale


class Tape(torch.autograd.Function):
    """A recurrence's backward pass in float32, whose states' gradients are kept for a product in the inputs' dtype."""

    @staticmethod
    def forward(ctx: Any, keys: torch.Tensor, start: torch.Tensor, tape: torch.dtype) -> torch.Tensor:
        ctx.save_for_backward(keys, start)
        ctx.tape = tape
        return (keys.float() @ start).sum(0)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        keys, _ = ctx.saved_tensors
        kept = upstream[0].to(ctx.tape)  # culprit: half-tape
        return None, keys.float().sum(0)[:, None] * kept.float(), None


class Recurrence(nn.Module):
    def __init__(self, tape: torch.dtype) -> None:
        super().__init__()
        self.tape, self.start = tape, nn.Parameter(normal(8, 4))

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        return Tape.apply(keys, self.start, self.tape)  # type: ignore[no-any-return, no-untyped-call]


def state_gradient(tape: torch.dtype) -> torch.Tensor:
    model = Recurrence(tape)
    (model(normal(16, 8, seed=1).half()) * 1e-8).sum().backward()
    assert model.start.grad is not None
    return model.start.grad * 1e8


def shared_maximum(count: torch.dtype) -> torch.Tensor:
    """The gradient of a maximum goes to all that attain it, over their number: 70000 in half is Inf, and over Inf is nothing."""
    attained = torch.ones(70_000).half().to(count)
    number = attained.sum()  # culprit: shared-maximum
    return 70_000 * (attained / number).float()


def logged_norms(unscaled: bool) -> torch.Tensor:
    """Norms of gradients that still carry their scale, kept in a list for a chart; nobody takes a number out of them here."""
    loop, norms = Loop(scale=64.0, growth=2), []
    for _ in range(4):
        loop.backward()
        if unscaled:
            loop.scaler.unscale_(loop.optimizer)
        norms.append(torch.cat([each.flatten() for each in loop.gradients]).norm())  # culprit: charted-norms
        loop.step()
    return torch.stack(norms)


class Process(nn.Module):
    """A Gaussian process' mean: squared distances of numbers near 110 by a² + b² - 2ab, of which tf32 rounds the product."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def kernel(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if self.how == "by hand":
            square = (a[:, None] - b).square().sum(-1)
        else:
            x, y = (coarse(a), coarse(b)) if self.how == "emulated" else (a, b)
            square = a.square().sum(-1)[:, None] + b.square().sum(-1) - 2 * x @ y.T  # culprit: expanded-distances
        return torch.exp(-square / 18)

    def forward(self, x: torch.Tensor, y: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        weights = torch.linalg.solve(self.kernel(x, x) + 2e-3 * torch.eye(len(x)), y)
        return (self.kernel(new, x)[..., None] * weights).sum(1)


def coarse(x: torch.Tensor) -> torch.Tensor:
    """x as a tensor core takes it in, by arithmetic on integers."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(WIDE)


def process(how: str) -> torch.Tensor:
    x, new = 100 + 20 * uniform(48, 1), 101 + 18 * uniform(16, 1, seed=1)
    return Process(how)(x, torch.sin(x / 4), new)


BUGS = (
    Bug("cast-without-graph", "facebookresearch/fairscale#1191", ("missing-gradient",), "aten._to_copy.default", lambda: encoder_gradient(True),
        lambda: encoder_gradient(False), expected_miss=LEFT),
    Bug("packed-halves", "getkeops/keops#214", ("missing-gradient",), "aten.copy_.default", lambda: kernel_gradient(True),
        lambda: kernel_gradient(False), expected_miss=LEFT),
    Bug("promoting-coin", "kornia/kornia#4210", ("dtype-leak",), "aten.mul.Tensor", lambda: gated(torch.tensor([1.0, 0.0, 1.0, 1.0])),
        lambda: gated(torch.tensor([1.0, 0.0, 1.0, 1.0]).to(LOW)), harm=0, expected_miss=WIDER),
    Bug("wide-residual", "vllm-project/vllm#43242", ("dtype-leak",), "aten.addmm.default",
        lambda: Residual(True).to(LOW)(normal(3, 32).to(LOW), normal(3, 32, seed=1).to(LOW)),
        lambda: Residual(False).to(LOW)(normal(3, 32).to(LOW), normal(3, 32, seed=1).to(LOW)), module="draft", raises=RuntimeError),
    Bug("expert-answers", "unslothai/unsloth-zoo#349", ("dtype-leak",), "aten.mul.Tensor",
        lambda: Experts(True).to(LOW)(normal(12, 8).to(LOW)), lambda: Experts(False).to(LOW)(normal(12, 8).to(LOW)), raises=RuntimeError),
    Bug("promoting-scalars", "trevin-creator/autoresearch-mlx#3", ("dtype-leak",), "aten.mul.Tensor",
        lambda: Mixed(False).to(LOW)(normal(4, 16).to(LOW)),
        lambda: Mixed(True).to(LOW)(normal(4, 16).to(LOW)), severity="warning", harm=0),
    Bug("autocast-angles", "huggingface/diffusers#13922", ("integer-rounding",), "aten._to_copy.default", lambda: turned(False),
        lambda: turned(True), module="Positions", measured=positions),
    Bug("half-training", "warner-benjamin/optimi#15", ("gradient-underflow",), "aten._to_copy.default", lambda: half_training(1.0),
        lambda: half_training(2.0**16), phase="backward"),
    Bug("half-tape", "meta-pytorch/attention-gym#464", ("gradient-underflow",), "aten._to_copy.default", lambda: state_gradient(HALF),
        lambda: state_gradient(WIDE), phase="backward"),
    Bug("shared-maximum", "tinygrad/tinygrad#15363", ("overflow",), "aten.sum.default", lambda: shared_maximum(HALF),
        lambda: shared_maximum(WIDE)),
    Bug("charted-norms", "languini-kitchen/languini-kitchen#7", ("scaler-order",), "", lambda: logged_norms(False), lambda: logged_norms(True),
        phase="scaler", severity="warning", expected_miss="a scaled number is told where Python reads it; these stay tensors to the end"),
    Bug("expanded-distances", "cornellius-gp/gpytorch#1960", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: process("emulated"), lambda: process("by hand"), precision="32-true", module="Process"),
)  # fmt: skip
