"""An eleventh batch, committed before the judge has seen any of it: wrappers, sparse gradients, quantised weights, kernels of torch.

Healthy pairs as people meet them when they change a library's options, each with a fault of that option where it has one.
Two were mended after they were tried: autocast lowered the products of a scaling, which was rightly called less accurate, and `net` makes a mask.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_tenth_parts import numbers, pair
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

W, WORDS, LENGTH = 24, 17, 6


class Sparse(nn.Module):
    """Words and a head. `sparse`: whether the table's gradient is a sparse tensor. `shift`: of words that are looked up."""

    def __init__(self, sparse: bool = False, shift: int = 0) -> None:
        super().__init__()
        self.shift, self.words, self.head = shift, nn.Embedding(WORDS, W, sparse=sparse), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = (x.float() * 3).long().abs().flatten(1) % WORDS
        return self.head(self.words((ids + self.shift) % WORDS).mean(1))


class Layers(nn.Module):
    """Torch's own layers of a transformer. `fast`: in eval without gradients torch runs them in one kernel. `hidden`: the form of the mask."""

    def __init__(self, hidden: str = "bool", first: bool = True, inverted: bool = False) -> None:
        super().__init__()
        self.hidden, self.inverted = hidden, inverted
        layer = nn.TransformerEncoderLayer(W, 3, 2 * W, 0.0, F.gelu, batch_first=True, norm_first=first)
        self.net = nn.TransformerEncoder(layer, 2, nn.LayerNorm(W), enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        later = later.T if self.inverted else later
        mask = later if self.hidden == "bool" else torch.zeros(later.shape, dtype=x.dtype).masked_fill(later, -math.inf)
        return self.net(x, mask=mask)  # type: ignore[no-any-return]


class Kernels(nn.Module):
    """Attention by one of torch's kernels."""

    def __init__(self, kernel: SDPBackend = SDPBackend.FLASH_ATTENTION, scale: float | None = None, grouped: bool = False) -> None:
        super().__init__()
        self.kernel, self.scale, self.grouped = kernel, scale, grouped
        self.q, self.kv, self.out = nn.Linear(W, W), nn.Linear(W, 2 * 8), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x).unflatten(-1, (3, 8)).transpose(1, 2)
        k, v = (each.unflatten(-1, (1, 8)).transpose(1, 2) for each in self.kv(x).chunk(2, -1))
        if not self.grouped:
            k, v = k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)
        with sdpa_kernel([self.kernel, SDPBackend.MATH]):
            made = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=self.grouped)
        return self.out(made.transpose(1, 2).flatten(2))


class Cast(torch.autograd.Function):
    """A gated unit with a backward pass by hand. `wrong`: a backward pass without the gate's slope."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: torch.Tensor, gate: torch.Tensor, wrong: bool) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, gate)
        ctx.wrong = wrong
        return (x.float() * torch.sigmoid(gate.float())).to(x.dtype)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        x, gate = ctx.saved_tensors
        share, wide = torch.sigmoid(gate.float()), grad.float()
        slope = share if ctx.wrong else share * (1 - share)
        return (wide * share).to(x.dtype), (wide * x.float() * slope).to(gate.dtype), None


class Gated(nn.Module):
    def __init__(self, kind: str = "plain", wrong: bool = False, saved: bool | None = None) -> None:
        super().__init__()
        self.kind, self.wrong, self.saved, self.up, self.down = kind, wrong, saved, nn.Linear(W, 2 * W), nn.Linear(W, W)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.up(x).chunk(2, -1)
        return (
            F.glu(self.up(x), -1)
            if self.kind == "glu"
            else Cast.apply(value, gate, self.wrong)
            if self.kind == "by hand"
            else value * torch.sigmoid(gate)
        )  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.inner(x) if self.saved is None else checkpoint(self.inner, x, use_reentrant=self.saved)
        return self.down(made)


class Sorted(nn.Module):
    """A projection onto shares of which many are zero: by sorting, or by halving an interval."""

    def __init__(self, kind: str = "sorted", late: bool = False) -> None:
        super().__init__()
        self.kind, self.late, self.scores, self.head = kind, late, nn.Linear(W, 10), nn.Linear(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.scores(x).float()
        if self.kind == "sorted":
            ordered, _ = z.sort(-1, descending=True)
            place = torch.arange(1, z.shape[-1] + 1)
            kept = (1 + place * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
        else:
            with torch.no_grad():
                low, high = z.amax(-1, keepdim=True) - 1, z.amax(-1, keepdim=True)
                for _ in range(60):
                    middle = (low + high) / 2
                    more = (z - middle).clamp(min=0).sum(-1, keepdim=True) > 1
                    low, high = torch.where(more, middle, low), torch.where(more, high, middle)
                kept = (z > high).sum(-1, keepdim=True)
            ordered, _ = z.topk(z.shape[-1], -1)
        sums = ordered.cumsum(-1).gather(-1, kept - 1)
        level = (sums - 1) / (kept + 1 if self.late else kept)
        return self.head((z - level).clamp(min=0).to(x.dtype))


class Transport(nn.Module):
    """Shares that balance rows and columns: in logarithms, or by scaling."""

    def __init__(self, kind: str = "logs", turns: int = 12) -> None:
        super().__init__()
        self.kind, self.turns, self.first, self.second = kind, turns, nn.Linear(W, 8), nn.Linear(W, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cost = torch.cdist(self.first(x).float(), self.second(x).float(), compute_mode="donot_use_mm_for_euclid_dist")
        if self.kind == "logs":
            logs = -cost
            for _ in range(self.turns):
                logs = logs - logs.logsumexp(-1, keepdim=True)
                logs = logs - logs.logsumexp(-2, keepdim=True)
            return logs.exp()
        shares = torch.exp(-cost)
        rows = columns = torch.ones(shares.shape[:-1])
        for _ in range(self.turns):
            rows = 1 / (shares * columns[..., None, :]).sum(-1)
            columns = 1 / (shares * rows[..., None]).sum(-2)
        return rows[..., None] * shares * columns[..., None, :]


class Averages(nn.Module):
    """A running mean of features that a buffer keeps, taken off. `kind`: lerp, or a sum of two products."""

    def __init__(self, kind: str = "lerp", rate: float = 0.1) -> None:
        super().__init__()
        self.kind, self.rate, self.inside = kind, rate, nn.Linear(W, W)
        self.register_buffer("mean", torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        seen = x.detach().float().mean((0, 1))
        if self.kind == "lerp":
            self.mean.lerp_(seen.to(self.mean.dtype), self.rate)
        else:
            self.mean = (1 - self.rate) * self.mean + self.rate * seen.to(self.mean.dtype)
        return x - self.mean.to(x.dtype)


class Wave(nn.Module):
    """Features turned by a cosine transform: by a product, or by a fast transform."""

    def __init__(self, kind: str = "product", late: bool = False) -> None:
        super().__init__()
        self.kind, self.late, self.inside, self.out = kind, late, nn.Linear(W, W), nn.Linear(W, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, place = self.inside(x), torch.arange(W)
        if self.kind == "product":
            made = x.float() @ torch.cos(math.pi * (2 * place[:, None] + 1) * place / (2 * W))
        else:
            ordered = torch.cat([x[..., ::2], x[..., 1::2].flip(-1)], -1).float()
            turn = torch.polar(torch.ones(W), -math.pi * (place + (1 if self.late else 0)) / (2 * W))
            made = (torch.fft.fft(ordered) * turn).real
        return self.out(F.silu(made).to(x.dtype))


def stepped(theirs: Callable[[Any], torch.optim.Optimizer], ours: Callable[[Any], torch.optim.Optimizer]) -> Made:
    """Three steps of two optimizers. The second model has its first weight transposed, by which they are told apart."""
    torch.manual_seed(0)
    model = spread(nn.Sequential(nn.Linear(6, W), nn.Tanh(), nn.Linear(W, 3)))
    other = Turned(model)

    def optimizer(held: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        held = list(held)
        return theirs(held) if held[0].shape == (6, W) else ours(held)

    return model, other, numbers(9, 6), {**MEAN, "optimizer": optimizer, "steps": 3}


class Turned(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.last = (
            nn.Parameter(model[0].weight.detach().T.clone()),
            nn.Parameter(model[0].bias.detach().clone()),
            copy.deepcopy(model[2]),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(x @ self.weight + self.bias))


def adam(**ways: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda held: torch.optim.AdamW(held, lr=1e-2, **ways)


def quantised(rounded: bool = True) -> Made:
    """Weights of eight bits that torchao keeps, beside the numbers they stand for."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    torch.manual_seed(0)
    model = spread(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)))
    other = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_(other, Int8WeightOnlyConfig())
    if rounded:
        for place in (0, 2):
            model[place].weight.data = other[place].weight.dequantize().detach().clone()  # type: ignore[index]
    return model.requires_grad_(False), other.requires_grad_(False), numbers(5, 32), {}


def wrapped(kind: str) -> Made:
    model, other, x, given = pair(Layers(), Layers(), 2, LENGTH, W)
    made = nn.DataParallel(other) if kind == "parallel" else torch.optim.swa_utils.AveragedModel(other)
    return model, made, x, given


def clipped(**ways: Any) -> Made:
    model, other, x, _ = pair(Layers(), Layers(**ways), 2, LENGTH, W)
    return model.eval(), other.eval(), x, {}


healthy("sparse table", "gradients as sparse tensors", lambda: pair(Sparse(), Sparse(True), 3, 2, 4))
broken("sparse table", "words looked up one late", lambda: pair(Sparse(), Sparse(True, 1), 3, 2, 4), "", "words")
healthy("torch's layers", "a mask that is added", lambda: pair(Layers(), Layers("added"), 2, LENGTH, W))
healthy("torch's layers", "in eval, where torch has kernels for whole layers", lambda: clipped(hidden="added"))
healthy(
    "torch's layers",
    "norms after sums, in eval",
    lambda: (lambda m: (m[0].eval(), m[1].eval(), m[2], {}))(pair(Layers(first=False), Layers("added", False), 2, LENGTH, W)),
)
broken(
    "torch's layers",
    "a mask that shows what comes later",
    lambda: pair(Layers(), Layers(inverted=True), 2, LENGTH, W),
    "net",
    "net.layers.0",
    "",
)
healthy("wrapped", "for several devices", lambda: wrapped("parallel"))
healthy("wrapped", "for averages of weights", lambda: wrapped("averaged"))
healthy("kernels", "scores written out", lambda: pair(Kernels(), Kernels(SDPBackend.MATH), 2, LENGTH, W))
healthy("kernels", "heads that share keys, by torch", lambda: pair(Kernels(), Kernels(grouped=True), 2, LENGTH, W))
broken("kernels", "another scale", lambda: pair(Kernels(), Kernels(scale=24**-0.5), 2, LENGTH, W), "", "out")
healthy("gated", "a backward pass by hand", lambda: pair(Gated(), Gated("by hand"), 3, W))
healthy("gated", "torch's unit", lambda: pair(Gated(), Gated("glu"), 3, W))
healthy("gated", "recomputed", lambda: pair(Gated(), Gated(saved=False), 3, W))
healthy(
    "gated", "recomputed as torch did at first", lambda: (lambda m: (m[0], m[1], m[2].requires_grad_(), m[3]))(pair(Gated(), Gated(saved=True), 3, W))
)
broken("gated", "a backward pass without a slope", lambda: pair(Gated(), Gated("by hand", True), 3, W), "", "up", "down")
healthy("many zeros", "by halving", lambda: pair(Sorted(), Sorted("halved"), 5, W))
broken("many zeros", "divided by one more", lambda: pair(Sorted(), Sorted(late=True), 5, W), "", "head")
healthy("transport", "by scaling", lambda: pair(Transport(), Transport("scaled"), 2, LENGTH, W))
broken("transport", "one turn less", lambda: pair(Transport(turns=2), Transport(turns=1), 2, LENGTH, W), "")
healthy("running mean", "a sum of two products", lambda: pair(Averages(), Averages("sum"), 2, LENGTH, W))
broken("running mean", "another rate", lambda: pair(Averages(), Averages("sum", 0.2), 2, LENGTH, W), "")
healthy("cosines", "by a fast transform", lambda: pair(Wave(), Wave("fast"), 3, W))
broken("cosines", "angles one late", lambda: pair(Wave(), Wave("fast", True), 3, W), "", "out")
healthy("kernels of AdamW", "fused", lambda: stepped(adam(fused=True), adam()))
healthy("kernels of AdamW", "lists of tensors", lambda: stepped(adam(foreach=True), adam(foreach=False)))
healthy("kernels of AdamW", "a rate that is a tensor", lambda: stepped(adam(), lambda held: torch.optim.AdamW(held, lr=torch.tensor(1e-2))))
broken("kernels of AdamW", "another eps", lambda: stepped(adam(eps=1e-3), adam()), "", "last")
healthy("eight bits kept", "the numbers they stand for", quantised)
broken("eight bits kept", "weights that were not rounded", lambda: quantised(False), "0")
