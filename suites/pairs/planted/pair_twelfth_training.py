"""A twelfth batch, third part: routers, norms with sums, ranks by hand, ensembles, folded and parametrised weights, graphs, splines.

Faults as such rewrites have them: biased scores as weights, a bias that each rank adds, the wrong side of a degree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy
from pair_twelfth import LENGTH, SECOND, W, numbers, two
from torch import nn


class Router(nn.Module):
    """Two of four experts and a shared one; a bias helps to choose, and is no weight. `kind`: all tokens to all, each its own, or stacked weights."""

    def __init__(self, kind: str = "all", biased: bool = False, whole: bool = True, shared: bool = True, ranked: bool = False) -> None:
        super().__init__()
        self.kind, self.biased, self.whole, self.with_shared, self.ranked = kind, biased, whole, shared, ranked
        self.gate, self.shared = nn.Linear(W, 4), nn.Linear(W, W)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(W, 12), nn.SiLU(), nn.Linear(12, W)) for _ in range(4))
        self.register_buffer("bias", torch.tensor([0.3, -0.2, 0.1, -0.1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        scores = self.gate(flat).float().sigmoid()
        chosen = (scores + self.bias.float()).topk(2, -1).indices
        taken = (scores + self.bias.float() if self.biased else scores).gather(-1, chosen)
        taken = taken / taken.sum(-1, keepdim=True) if self.whole else taken
        if self.ranked:
            taken = taken.sort(-1).values
        shares = torch.zeros(scores.shape, dtype=taken.dtype).scatter(-1, chosen, taken)
        if self.kind == "all":
            made = torch.stack([expert(flat).float() for expert in self.experts], 1)
            made = (made * shares[..., None]).sum(1)
        elif self.kind == "own":
            made = torch.zeros(flat.shape, dtype=taken.dtype)
            for number, expert in enumerate(self.experts):
                rows, place = (chosen == number).nonzero(as_tuple=True)
                made = made.index_add(0, rows, expert(flat[rows]).float() * taken[rows, place, None])
        else:
            first, last = (torch.stack([expert[at].weight for expert in self.experts]) for at in (0, 2))
            low, high = (torch.stack([expert[at].bias for expert in self.experts]) for at in (0, 2))
            inner = F.silu(torch.einsum("nki,eoi->neko", flat[:, None], first)[:, :, 0] + low)
            made = ((torch.einsum("neo,eio->nei", inner, last) + high).float() * shares[..., None]).sum(1)
        made = made.to(x.dtype).view_as(x)
        return made + self.shared(x) if self.with_shared else made


class Root(torch.autograd.Function):
    """A norm by the root of the mean square, with a backward pass by hand. `short`: without the term of the root."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, short: bool) -> torch.Tensor:  # type: ignore[override]
        rate = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, weight, rate)
        ctx.short = short
        return x * rate * weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        x, weight, rate = ctx.saved_tensors
        inner = grad * weight
        along = 0 if ctx.short else (inner * x).mean(-1, keepdim=True)
        return rate * (inner - x * rate.square() * along), (grad * x * rate).flatten(0, -2).sum(0), None


class Summed(nn.Module):
    """A sum and its norm, of which the sum goes on. `kind`: what makes the norm."""

    def __init__(self, kind: str = "plain", one: bool = True, old: bool = False, short: bool = False) -> None:
        super().__init__()
        self.kind, self.one, self.old, self.short = kind, one, old, short
        self.first, self.last, self.scale = nn.Linear(W, W), nn.Linear(W, W), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = x + self.first(x)
        wide, weight = whole.float(), self.scale.float() + (1 if self.one else 0)
        if self.kind == "plain":
            made = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
        elif self.kind == "torch":
            made = F.rms_norm(wide, (W,), weight, 1e-6)
        else:
            made = Root.apply(wide, weight, self.short)
        return self.last(F.silu(made.to(x.dtype))) + (x if self.old else whole)


class Ranks(nn.Module):
    """Two layers whose weights lie on three ranks: columns of the first, rows of the second."""

    def __init__(self, kind: str = "one", often: bool = False, late: bool = False) -> None:
        super().__init__()
        self.kind, self.often, self.late, self.up, self.down = kind, often, late, nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "one":
            return self.down(F.gelu(self.up(x)))
        made = []
        for first, bias, last in zip(self.up.weight.chunk(3), self.up.bias.chunk(3), self.down.weight.chunk(3, 1), strict=True):
            inner = F.linear(x, first, bias)
            made.append(F.linear(inner if self.late else F.gelu(inner), last, self.down.bias if self.often else None))
        whole = sum(each.float() for each in made).to(x.dtype)  # type: ignore[union-attr]
        return whole if self.often else whole + self.down.bias  # type: ignore[return-value]


class Ensemble(nn.Module):
    """The mean of three small networks. `kind`: one after another, or stacked weights by vmap. `same`: the first network's last layer for all."""

    def __init__(self, kind: str = "loop", same: bool = False) -> None:
        super().__init__()
        self.kind, self.same = kind, same
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(W, W), nn.Tanh(), nn.Linear(W, W)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "loop":
            return torch.stack([net(x) for net in self.nets]).float().mean(0).to(x.dtype)
        weights = {name: torch.stack([net.get_parameter(name) for net in self.nets]) for name, _ in self.nets[0].named_parameters()}
        if self.same:
            weights["2.weight"] = weights["2.weight"][:1].expand_as(weights["2.weight"])
        made = torch.vmap(lambda given: torch.func.functional_call(self.nets[0], given, (x,)))(weights)
        return made.float().mean(0).to(x.dtype)


class Folded(nn.Module):
    """A product and a norm of statistics, in eval. `kind`: the norm apart, or in the weights, as `ported` puts it there."""

    def __init__(self, kind: str = "apart", eps: float = 0.1, squared: bool = False) -> None:
        super().__init__()
        self.kind, self.eps, self.squared, self.line = kind, eps, squared, nn.Linear(W, W)
        if kind == "apart":
            self.norm = nn.BatchNorm1d(W, eps=0.1)
            self.norm.running_mean, self.norm.running_var = numbers(W) * 0.2, numbers(W, seed=7).abs() + 0.3

    def ported(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        var = state["norm.running_var"] + self.eps
        factor = state["norm.weight"] / (var if self.squared else var.sqrt())
        bias = (state["line.bias"] - state["norm.running_mean"]) * factor + state["norm.bias"]
        return {"line.weight": state["line.weight"] * factor[:, None], "line.bias": bias}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.line(x)
        return F.relu(self.norm(x.mT).mT if self.kind == "apart" else x)


def folded(**ways: Any) -> Callable[[], Made]:
    def made() -> Made:
        model, other, x, _ = two(Folded, kind="folded", **ways)()
        return model.eval().requires_grad_(False), other.eval().requires_grad_(False), x, {}

    return made


class Normed(nn.Module):
    """A weight that is a length times a direction. `kind`: torch's parametrisation, or by hand. `axis`: along which lengths are taken."""

    def __init__(self, kind: str = "torch", axis: int = 1) -> None:
        super().__init__()
        self.kind, self.axis, self.line = kind, axis, nn.Linear(W, W)
        if kind == "torch":
            nn.utils.parametrizations.weight_norm(self.line)
        else:
            self.length, self.direction = nn.Parameter(torch.zeros(W, 1)), nn.Parameter(torch.zeros(W, W))
            del self.line.weight
            self.line.weight = None  # type: ignore[assignment]

    def ported(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        held = "line.parametrizations.weight.original"
        return {"line.bias": state["line.bias"], "length": state[f"{held}0"], "direction": state[f"{held}1"]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "torch":
            return self.line(x)
        wide = self.direction.float()
        weight = self.length.float() * wide / wide.square().sum(self.axis, keepdim=True).sqrt()
        return F.linear(x, weight.to(x.dtype), self.line.bias)


class Graph(nn.Module):
    """Messages along the edges of a graph, divided by the roots of degrees. `kind`: a matrix, or edge by edge."""

    EDGES = torch.tensor([[0, 0, 1, 2, 3, 3, 5, 6, 7, 7], [1, 2, 3, 3, 4, 5, 6, 7, 0, 4]])

    def __init__(self, kind: str = "matrix", loops: bool = True, into: bool = True) -> None:
        super().__init__()
        self.kind, self.loops, self.into, self.line = kind, loops, into, nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, self_ = self.line(x), torch.arange(LENGTH)
        if self.kind == "matrix":
            near = torch.zeros(LENGTH, LENGTH).index_put((self.EDGES[1], self.EDGES[0]), torch.tensor(1.0)) + torch.eye(LENGTH)
            rate = near.sum(1).rsqrt()
            return ((rate[:, None] * near * rate) @ x.float()).to(x.dtype)
        source, target = torch.cat([self.EDGES, torch.stack([self_, self_])], 1) if self.loops else self.EDGES
        degree = torch.zeros(LENGTH).index_add(0, target if self.into else source, torch.ones(len(target))).clamp(min=1)
        share = (degree[source] * degree[target]).rsqrt()
        made = torch.zeros(x.shape).index_add(1, target, x.float()[:, source] * share[:, None])
        return made.to(x.dtype)


class Splines(nn.Module):
    """A learnt curve for each channel from four cubic pieces. `kind`: by the recursion of degrees, or by the formula of one piece."""

    def __init__(self, kind: str = "recursion", late: float = 0.0) -> None:
        super().__init__()
        self.kind, self.late, self.line, self.points = kind, late, nn.Linear(W, W), nn.Parameter(torch.zeros(W, 7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.line(x)
        at = x.float().tanh() * 1.9
        if self.kind == "recursion":
            knots = torch.arange(-5, 6).float() + self.late
            basis = ((at[..., None] >= knots[:-1]) & (at[..., None] < knots[1:])).to(at.dtype)
            for degree in range(1, 4):
                left = (at[..., None] - knots[: -degree - 1]) / degree
                right = (knots[degree + 1 :] - at[..., None]) / degree
                basis = left * basis[..., :-1] + right * basis[..., 1:]
        else:
            far = (at[..., None] - torch.arange(-3, 4) - self.late).abs()
            inner, outer = 2 / 3 - far.square() + far**3 / 2, (2 - far).clamp(min=0) ** 3 / 6
            basis = torch.where(far < 1, inner, outer)
        return (basis * self.points.float()).sum(-1).to(x.dtype)


healthy("chosen experts", "each its own tokens", two(Router, kind="own"))
healthy("chosen experts", "stacked weights", two(Router, kind="stacked"))
broken("chosen experts", "biased scores as weights", two(Router, kind="own", bad_biased=True), SECOND)
broken("chosen experts", "weights that do not sum to one", two(Router, kind="stacked", bad_whole=False), SECOND)
broken("chosen experts", "the shared one left out", two(Router, kind="own", bad_shared=False), SECOND)
broken("chosen experts", "weights in another order", two(Router, kind="own", bad_ranked=True), SECOND)
healthy("sum and norm", "torch's norm", two(Summed, kind="torch"))
healthy("sum and norm", "a backward pass by hand", two(Summed, kind="hand"))
broken("sum and norm", "a scale that is not plus one", two(Summed, kind="torch", bad_one=False), SECOND)
broken("sum and norm", "the old sum goes on", two(Summed, kind="hand", bad_old=True), SECOND)
broken("sum and norm", "a backward pass without the root", two(Summed, kind="hand", bad_short=True), SECOND, f"{SECOND}.first")
healthy("ranks by hand", "columns and rows", two(Ranks, kind="three"))
broken("ranks by hand", "a bias from each", two(Ranks, kind="three", bad_often=True), SECOND)
broken("ranks by hand", "no activation", two(Ranks, kind="three", bad_late=True), SECOND)
healthy("ensemble", "stacked weights", two(Ensemble, kind="vmap"))
broken("ensemble", "one last layer for all", two(Ensemble, kind="vmap", bad_same=True), SECOND)
healthy("folded norm", "in the weights", folded())
broken("folded norm", "another eps", folded(bad_eps=0.0), SECOND, f"{SECOND}.line")
broken("folded norm", "divided by the variance", folded(bad_squared=True), SECOND, f"{SECOND}.line")
healthy("length and direction", "by hand", two(Normed, kind="hand"))
broken("length and direction", "lengths of columns", two(Normed, kind="hand", bad_axis=0), SECOND)
healthy("edges", "edge by edge", two(Graph, kind="edges"))
broken("edges", "without loops", two(Graph, kind="edges", bad_loops=False), SECOND)
broken("edges", "the degree of sources", two(Graph, kind="edges", bad_into=False), SECOND)
healthy("curves", "the formula of a piece", two(Splines, kind="formula"))
broken("curves", "a grid that is late", two(Splines, kind="formula", bad_late=0.25), SECOND)
