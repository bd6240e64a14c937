"""Networks that choose: a mixture of experts, a graph network, a recommender; what is gathered and added up in another order."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from torch import nn

W, E = 16, 4


class Experts(nn.Module):
    """A loop over experts, each on its own tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(W, E, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(W, 2 * W), nn.SiLU(), nn.Linear(2 * W, W)) for _ in range(E))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chances = self.router(x).float().softmax(-1)
        values, places = chances.topk(2, -1)
        values = (values / values.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, which = (places == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, (expert(x[rows]) * values[rows, which, None]).to(out.dtype))
        return out


class Batched(nn.Module):
    """All experts' weights in two tensors, tokens sorted by expert or computed by all."""

    def __init__(self, source: Experts, **ways: Any) -> None:
        super().__init__()
        self.ways, self.gate = ways, nn.Linear(W, E, bias=False)
        self.gate.load_state_dict(source.router.state_dict())
        self.w1, self.b1 = (nn.Parameter(torch.stack([getattr(e[0], kind).detach() for e in source.experts])) for kind in ("weight", "bias"))
        self.w2, self.b2 = (nn.Parameter(torch.stack([getattr(e[2], kind).detach() for e in source.experts])) for kind in ("weight", "bias"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, scores = self.ways, self.gate(x)
        if ways.get("after"):
            values, places = scores.float().topk(2, -1)
            values = values.softmax(-1)
        else:
            values, places = (scores.float().sigmoid() if ways.get("sigmoid") else scores.float().softmax(-1)).topk(ways.get("most", 2), -1)
            values = values if ways.get("unnormalised") else values / values.sum(-1, keepdim=True)
        if ways.get("detached"):
            values = values.detach()
        gates = torch.zeros_like(scores, dtype=torch.float32).scatter(1, places, values)
        gates = gates.roll(1, 1) if ways.get("rolled") else gates
        hidden = F.silu(torch.einsum("nw,ehw->neh", x, self.w1) + self.b1)
        each = torch.einsum("neh,ewh->new", hidden, self.w2) + (0 if ways.get("unbiased") else self.b2)
        return torch.einsum("ne,new->nw", gates.to(each.dtype), each)


class Sparse(nn.Module):
    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, W), middle, nn.Linear(W, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        return self.last(x + self.middle(x))


def moe(**ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Sparse(Experts()))
    other = Sparse(Batched(model.middle, **ways))  # type: ignore[arg-type]
    other.first.load_state_dict(model.first.state_dict())  # type: ignore[union-attr, operator]
    other.last.load_state_dict(model.last.state_dict())  # type: ignore[union-attr, operator]
    return model, other, torch.randn(40, 8), MEAN


class Graph(nn.Module):
    """Messages along edges, by index or by a matrix; weighted by degrees."""

    def __init__(self, form: str, bad: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.form, self.ways = form, bad or {}
        self.one, self.two = nn.Linear(6, W), nn.Linear(W, 4)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.two(self.spread(F.relu(self.one(self.spread(x, edges, {}))), edges, self.ways))

    def spread(self, x: torch.Tensor, edges: torch.Tensor, ways: dict[str, Any]) -> torch.Tensor:
        count, (source, target) = len(x), edges.flip(0) if ways.get("reversed") else edges
        if not ways.get("alone"):
            source, target = (torch.cat([each, torch.arange(count)]) for each in (source, target))
        degree = torch.zeros(count).index_add(0, target, torch.ones(len(target))).clamp(min=1)
        left, right = (degree, torch.ones_like(degree)) if ways.get("one_sided") else (degree.sqrt(), degree.sqrt())
        if self.form == "matrix":
            matrix = torch.zeros(count, count).index_put((target, source), torch.tensor(1.0), accumulate=True)
            return ((matrix / left[:, None] / right) @ x.float()).to(x.dtype)
        weights = (1 / (left[target] * right[source]))[:, None].to(x.dtype)
        if ways.get("maximum"):
            return torch.full_like(x, -1e4).index_reduce(0, target, x[source] * weights, "amax")
        return torch.zeros_like(x).index_add(0, target, (x[source] * weights).to(x.dtype))


def graph(form: str = "matrix", **bad: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Graph("edges")), Graph(form, bad)
    other.load_state_dict(model.state_dict())
    edges = torch.stack([torch.arange(15), torch.randint(0, 15, (15,))])
    edges = torch.cat([edges, torch.randint(0, 15, (2, 20))], 1).unique(dim=1)
    return model, other, (torch.randn(15, 6), edges), MEAN


class Ranker(nn.Module):
    """Bags of categories, crossed with one another."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.dense = nn.EmbeddingBag(30, 8, mode="mean"), nn.Linear(5, 8)
        self.top = nn.Sequential(nn.Linear(8 + 3, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, items: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        parts = torch.stack([self.dense(numbers), self.bags(items[:, :3]), self.bags(items[:, 3:])], 1)
        crossed = parts @ parts.mT
        rows, columns = torch.tril_indices(3, 3, -1)
        return self.top(torch.cat([parts[:, 0], crossed[:, rows, columns]], 1))[:, 0]


class OtherRanker(nn.Module):
    def __init__(self, source: Ranker, **ways: Any) -> None:
        super().__init__()
        self.ways, self.table, self.numbers = ways, nn.Parameter(source.bags.weight.detach().clone()), source.dense
        self.hidden, self.score = source.top[0], source.top[2]

    def forward(self, items: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        looked = F.one_hot(items, 30).to(self.table.dtype) @ self.table if ways.get("hot") else self.table[items]
        first, second = looked[:, :3], looked[:, 3:]
        one, two = (first.sum(1), second.sum(1)) if ways.get("sums") else (first.mean(1), second.mean(1))
        a = self.numbers(numbers)
        pairs = [(one, a), (two, one), (two, a)] if ways.get("order") else [(one, a), (two, a), (two, one)]
        crossed = torch.stack([(x * y).sum(-1) for x, y in pairs], 1)
        given = torch.cat([crossed, a] if ways.get("crossed_first") else [a, crossed], 1)
        return self.score(F.relu(self.hidden(given))).squeeze(-1 if not ways.get("kept") else 0)


def ranker(**ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Ranker(), 0.5)
    assert isinstance(model, Ranker)
    return model, OtherRanker(model, **ways), (torch.randint(0, 30, (6, 5)), torch.randn(6, 5)), MEAN


healthy("moe", "all experts in one product", moe)
healthy("moe", "softmax after the choice", lambda: moe(after=True))
broken("moe", "sigmoid for softmax", lambda: moe(sigmoid=True), "middle")
broken("moe", "weights not normalised", lambda: moe(unnormalised=True), "middle")
broken("moe", "one expert more", lambda: moe(most=3), "middle")
broken("moe", "router without a gradient", lambda: moe(detached=True), "middle", "middle.gate")
broken("moe", "experts off by one", lambda: moe(rolled=True), "middle")
broken("moe", "bias of experts dropped", lambda: moe(unbiased=True), "middle")
healthy("graph", "a matrix for edges", graph)
broken("graph", "edges the other way round", lambda: graph(reversed=True), "")
broken("graph", "no edges of nodes to themselves", lambda: graph(alone=True), "")
broken("graph", "weights of one side", lambda: graph(one_sided=True), "")
broken("graph", "maximum for sum", lambda: graph("edges", maximum=True), "")
healthy("ranker", "a table by index", ranker)
healthy("ranker", "a table by product", lambda: ranker(hot=True))
broken("ranker", "sums for means", lambda: ranker(sums=True), "")
broken("ranker", "crosses in another order", lambda: ranker(order=True), "")
broken("ranker", "crosses before numbers", lambda: ranker(crossed_first=True), "")
