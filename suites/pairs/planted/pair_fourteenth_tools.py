"""A fourteenth batch, sixth part: what torch's tools make of a network, weights held in other ways, whole numbers for weights, optimizers by hand.

Faults as such rewrites have them: an average that starts at zero, one scale for all rows, an eps inside of a root, a correction left out.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_eleventh import stepped
from pair_fourteenth_scans import Stream, numbers
from torch import nn
from torch.nn.utils import fusion, parametrizations
from torch.utils.checkpoint import checkpoint_sequential

W = 16


class Plain(nn.Module):
    """A filter over time, a norm and a gated branch. `factor` scales what it returns, `shift` moves it in time."""

    def __init__(self, factor: float = 1.0, shift: int = 0) -> None:
        super().__init__()
        self.factor, self.shift = factor, shift
        self.taps, self.norm, self.up, self.down = nn.Conv1d(W, W, 3, padding=1, groups=4), nn.GroupNorm(4, W), nn.Linear(W, 2 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.norm(self.taps(x.mT)).mT
        return self.down(F.glu(self.up(made.roll(self.shift, 1)))) * self.factor


class Counted(nn.Module):
    """The same with norms of a batch, so that a model has statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.taps, self.norm, self.down = nn.Conv1d(W, W, 3, padding=1), nn.BatchNorm1d(W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.norm(self.taps(x.mT))).mT)


def plain(bad: Any = None, part: Callable[..., nn.Module] = Plain) -> tuple[Any, Any, torch.Tensor]:
    torch.manual_seed(0)
    model: Any = spread(Stream(part(), part()))
    other: Any = Stream(part(), part(**(bad or {})))
    for buffer in (each for name, each in model.named_buffers() if "running" in name):
        buffer.add_(torch.rand(W))
    other.load_state_dict(model.state_dict())
    return model, other, numbers(3, 7, W)


def made_by(tool: str, **bad: Any) -> Made:
    model, other, x = plain(bad)
    tools: dict[str, Callable[[], Any]] = {
        "compiled": lambda: torch.compile(other), "compiled by parts": lambda: Parts(other), "exported": lambda: torch.export.export(other, (x,)),
        "exported, lengths free": lambda: torch.export.export(other, (x,), dynamic_shapes=({1: torch.export.Dim("length", min=2, max=64)},)),
        "scripted": lambda: scripted(other, x), "traced": lambda: torch.fx.symbolic_trace(other),
        "called on other weights": lambda: lambda x: torch.func.functional_call(model, dict(other.named_parameters()), (x,)),
        "row by row": lambda: lambda x: torch.func.vmap(lambda row: other(row[None])[0])(x),
        "recomputed in two parts": lambda: Sequence(other),
        "without its first axis": lambda: lambda x: torch.stack([other(row[None])[0] for row in x]),
        "wrapped": lambda: nn.DataParallel(other),
    }  # fmt: skip
    return model, tools[tool](), x, dict(MEAN)


def scripted(net: nn.Module, x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of what a trace does not see
        return torch.jit.trace(net, (x,))


class Parts(Stream):
    """A stream whose layers are compiled."""

    def __init__(self, net: Any) -> None:
        super().__init__(*(torch.compile(layer) for layer in net.layers))
        self.inside, self.norm, self.head = net.inside, net.norm, net.head


class Sequence(Stream):
    """A stream whose layers are recomputed in the backward pass."""

    def __init__(self, net: Any) -> None:
        super().__init__(*net.layers)
        self.inside, self.norm, self.head = net.inside, net.norm, net.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = [lambda x, layer=layer: x + layer(x) for layer in self.layers]
        return self.head(self.norm(checkpoint_sequential(steps, 2, self.inside(x), use_reentrant=False)))


def held(kind: str, bad: bool = False) -> Made:
    """The weights of products by a parametrisation in `model`, and as they are in `other`."""
    model, other, x = plain()
    way: Any = {"lengths": parametrizations.weight_norm, "orthogonal": parametrizations.orthogonal, "spectral": parametrizations.spectral_norm}[kind]
    for number, (layer, plainly) in enumerate(zip(model.layers, other.layers, strict=True)):
        raw = layer.down.weight.detach().clone()
        way(layer.down)
        model.eval()
        if not (bad and number):
            plainly.down.weight.data.copy_(layer.down.weight)
        elif kind == "lengths":
            plainly.down.weight.data.copy_(raw / raw.norm(dim=1, keepdim=True))
    return model, other.eval(), x, dict(MEAN)


def averaged(zero: bool = False, rate: float = 0.9, buffers: bool = True) -> Made:
    """Moving averages of weights: by torch, or by hand. `zero`: the average begins at zero. `buffers`: statistics are taken over too."""
    model, _, x = plain(part=Counted)
    whole = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)
    mine = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in mine.named_parameters():
            if zero and name.startswith("layers.1.down"):
                value.zero_()
        for step in range(3):
            for number, value in enumerate(model.parameters()):
                value.add_(numbers(*value.shape) * 0.01 * (step + number % 3))
            for name, value in model.named_buffers():
                if "running" in name:
                    value.mul_(1.02 + 0.01 * step)
            own = dict(mine.named_parameters())
            for name, value in model.named_parameters():
                part = rate if name.startswith("layers.1.taps") else 0.9
                own[name].copy_(value if step == 0 and not (zero and name.startswith("layers.1.down")) else part * own[name] + (1 - part) * value)
            stats = {name: value for name, value in mine.named_buffers() if "running" in name}
            for name, value in model.named_buffers():
                if name in stats and (buffers or not name.startswith("layers.1")):
                    stats[name].copy_(value if step == 0 else 0.9 * stats[name] + 0.1 * value)
            whole.update_parameters(model)
    return whole.module.eval(), mine.eval(), x, dict(MEAN)


def folded(eps: float = 0, bias: bool = True) -> Made:
    """Norms of a batch in the filters before them."""
    model, other, x = plain(part=Counted)
    model.eval(), other.eval()
    for number, layer in enumerate(other.layers):
        layer.norm.eps = eps if eps and number else layer.norm.eps
        layer.taps = fusion.fuse_conv_bn_eval(layer.taps, layer.norm)
        layer.norm = nn.Identity()
        if not bias and number:
            layer.taps.bias.data.zero_()
    return model, other, x, dict(MEAN)


class Whole(nn.Module):
    """A linear layer whose weights are whole numbers of eight bits with a scale for each row. `kind`: made again first, or multiplied first."""

    def __init__(self, given: nn.Linear, kind: str, one: bool = False, shift: int = 0, by_columns: bool = False) -> None:
        super().__init__()
        weight = given.weight.detach()
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("codes", (weight / scale).round().to(torch.int8) + shift)
        self.register_buffer("scale", scale.mean().expand_as(scale).clone() if one else scale)
        self.kind, self.by_columns, self.bias = kind, by_columns, nn.Parameter(given.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes, scale = self.codes.to(x.dtype), self.scale.to(x.dtype)
        if self.kind == "again":
            return F.linear(x, codes * scale, self.bias)
        if self.by_columns:
            return F.linear(x * scale[: x.shape[-1], 0], codes, self.bias)
        return (x @ codes.T) * scale.T + self.bias


def whole(**bad: Any) -> Made:
    model, other, x = plain()
    for net, kind in ((model, "again"), (other, "first")):
        for number, layer in enumerate(net.layers):
            layer.up = Whole(layer.up, kind, **(bad if net is other and number else {}))
    return model, other, x, dict(MEAN)


class Rounded(nn.Module):
    """What comes in is rounded to whole steps. `kind`: torch's op, or by a detached difference."""

    def __init__(self, kind: str = "hand", step: float = 0.05, low: int = -128, away: bool = False, through: bool = True) -> None:
        super().__init__()
        self.kind, self.step, self.low, self.away, self.through, self.line = kind, step, low, away, through, nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        if self.kind == "torch":
            return self.line(torch.fake_quantize_per_tensor_affine(wide, self.step, 0, self.low, 127).to(x.dtype))
        steps = wide / self.step
        codes = (steps.trunc() if self.away else steps.round()).clamp(self.low, 127)
        inside = ((steps.round() >= self.low) & (steps.round() <= 127)).float() if self.through else torch.ones_like(steps)
        return self.line((wide * inside + (codes * self.step - wide * inside).detach()).to(x.dtype))


def rounded(**bad: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Stream(Rounded("torch", low=-20), Rounded("torch", low=-20)))
    other = Stream(Rounded(low=-20), Rounded(**{"low": -20, **bad}))
    other.load_state_dict(model.state_dict())
    return model, other, numbers(3, 7, W), dict(MEAN)


class Hand(torch.optim.Optimizer):
    """Optimizers by their formulas, each weight by itself."""

    def __init__(self, held: Any, kind: str, eps_inside: bool = False, corrected: bool = True, centred: bool = True, damped: float = 0.0,
        coupled: bool = False,
                 whole: bool = True, rate: float = 1e-2) -> None:  # fmt: skip
        super().__init__(held, {})
        self.kind, self.inside, self.corrected, self.centred, self.damped, self.coupled, self.whole, self.rate, self.count = (
            kind, eps_inside, corrected, centred, damped, coupled, whole, rate, 0)  # fmt: skip

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        held = self.param_groups[0]["params"]
        norms = [each.grad.norm() for each in held]
        norm = torch.stack(norms).norm()
        for each, own in zip(held, norms, strict=True):
            state = self.state[each]
            for name in ("one", "two", "three"):
                state.setdefault(name, torch.zeros_like(each))
            grad = each.grad * (0.01 / ((norm if self.whole else own) + 1e-6)).clamp(max=1) if self.kind == "clipped" else each.grad
            each.add_(getattr(self, self.kind)(each, grad, state), alpha=-self.rate)

    def rms(self, weight: torch.Tensor, grad: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        state["one"].mul_(0.9).addcmul_(grad, grad, value=0.1)
        state["two"].lerp_(grad, 0.1)
        spread_ = state["one"] - state["two"] ** 2 if self.centred else state["one"]
        return grad / ((spread_ + 1e-3).sqrt() if self.inside else spread_.sqrt() + 1e-3)

    def largest(self, weight: torch.Tensor, grad: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        state["one"].lerp_(grad, 0.1)
        state["two"].copy_(torch.maximum(0.99 * state["two"], grad.abs() + 1e-3))
        return state["one"] / state["two"] / (1 - 0.9**self.count if self.corrected else 1)

    def momentum(self, weight: torch.Tensor, grad: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        grad = grad + 0.1 * weight
        state["one"].mul_(0.9).add_(grad, alpha=1.0 if self.count == 1 else 1 - self.damped)
        return state["one"]

    def largest_square(self, weight: torch.Tensor, grad: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        grad = grad + 0.1 * weight if self.coupled else grad
        state["one"].lerp_(grad, 0.1)
        state["two"].mul_(0.9).addcmul_(grad, grad, value=0.1)
        state["three"].copy_(torch.maximum(state["three"], state["two"]))
        squares = (state["three"] if self.centred else state["two"]) / (1 - 0.9**self.count)
        return state["one"] / (1 - 0.9**self.count) / (squares.sqrt() + 1e-3) + (0 if self.coupled else 0.1 * weight)

    def clipped(self, weight: torch.Tensor, grad: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        return grad


class Clipped(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.01)
        super().step()


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "rms": lambda held: torch.optim.RMSprop(held, lr=1e-2, alpha=0.9, eps=1e-3, centered=True),
    "largest": lambda held: torch.optim.Adamax(held, lr=1e-2, betas=(0.9, 0.99), eps=1e-3),
    "momentum": lambda held: torch.optim.SGD(held, lr=1e-2, momentum=0.9, weight_decay=0.1, dampening=0.0),
    "clipped": lambda held: Clipped(held, lr=1e-2),
    "largest_square": lambda held: torch.optim.AdamW(held, lr=1e-2, betas=(0.9, 0.9), eps=1e-3, weight_decay=0.1, amsgrad=True),
}  # fmt: skip


for tool in ("compiled", "compiled by parts", "exported", "exported, lengths free", "scripted", "traced", "called on other weights", "row by row",
    "recomputed in two parts",
             "without its first axis", "wrapped"):  # fmt: skip
    healthy("tool", tool, lambda tool=tool: made_by(tool))  # type: ignore[misc]
for tool, modules in (("exported", ("layers.1",)), ("compiled by parts", ("layers.1",)), ("recomputed in two parts", ("layers.1",)),
    ("without its first axis", ("other.layers.1",))):
    broken("tool", f"{tool}, one late", lambda tool=tool: made_by(tool, shift=1), *modules)  # type: ignore[misc]
for kind in ("lengths", "orthogonal", "spectral"):
    healthy("held otherwise", kind, lambda kind=kind: held(kind))  # type: ignore[misc]
broken("held otherwise", "a norm that was left out", lambda: held("spectral", True), "layers.1.down")
broken("held otherwise", "directions for weights", lambda: held("lengths", True), "layers.1.down")
healthy("averages", "by hand", averaged)
broken("averages", "one that starts at zero", lambda: averaged(zero=True), "layers.1.down")
broken("averages", "another rate", lambda: averaged(rate=0.5), "layers.1.taps")
broken("averages", "statistics as they were", lambda: averaged(buffers=False), "layers.1.norm")
healthy("norms in filters", "torch's", folded)
broken("norms in filters", "another eps", lambda: folded(eps=0.1), "layers.1.taps", "layers.1")
broken("norms in filters", "a bias lost", lambda: folded(bias=False), "layers.1.taps", "layers.1")
healthy("whole weights", "multiplied first", whole)
for fault, bad in (("one scale for all rows", {"one": True}), ("codes of one more", {"shift": 1}), ("scales of columns", {"by_columns": True})):
    broken("whole weights", fault, lambda bad=bad: whole(**bad), "layers.1.up")  # type: ignore[misc]
healthy("rounded inputs", "by hand", rounded)
for fault, bad in (("cut, not rounded", {"away": True}), ("another range", {"low": -128}), ("a gradient beyond the range", {"through": False}),
    ("another step", {"step": 0.06})):
    broken("rounded inputs", fault, lambda bad=bad: rounded(**bad), "layers.1")  # type: ignore[misc]
for kind, bads in {
    "rms": (("an eps inside of the root", {"eps_inside": True}), ("not centred", {"centred": False})),
    "largest": (("not corrected", {"corrected": False}),),
    "momentum": (("damped", {"damped": 0.1}),),
    "largest_square": (("decay in the gradient", {"coupled": True}), ("the last square", {"centred": False})),
    "clipped": (("each by itself", {"whole": False}),),
}.items():  # fmt: skip
    healthy("by formulas", kind, lambda kind=kind: stepped(lambda held: Hand(held, kind), OPTIMIZERS[kind]))  # type: ignore[misc]
    for fault, bad in bads:
        broken("by formulas", f"{kind}, {fault}", lambda kind=kind, bad=bad: stepped(lambda held: Hand(held, kind, **bad), OPTIMIZERS[kind]), "",
            "last")  # type: ignore[misc]
