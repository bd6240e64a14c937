"""The twenty-seventh batch, third part: experts in groups, and adapters whose magnitudes are learned.

The issues: shares of biased scores (flashinfer 3875), shares that are not normed (torchtitan 1448), groups that are masked by zero (transformers
45440), a bias that is not weighed (Automodel 2591), a router that learns nothing (minimind 859); norms along the other axis (peft 2348, 1588),
magnitudes that do not learn (torchtune 2250), alpha that is not divided by the rank (LLMs-from-scratch 821).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, spread
from pair_twentyfifth import WORDS
from pair_twentyfourth import State, W, ported
from pair_twentyseventh import Block, Causal, family
from torch import nn

COUNT, GROUPS, SCALE = 8, 4, 2.5


class Router(nn.Module):
    """Two experts of the best two groups of two, by scores with a bias; shares are of the scores without it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(COUNT, W))
        self.register_buffer("bias", torch.zeros(COUNT))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = F.linear(x, self.weight).float().sigmoid()
        choice = scores + self.bias
        groups = choice.unflatten(-1, (GROUPS, -1)).sum(-1).topk(2, -1).indices
        mask = torch.zeros(*x.shape[:-1], GROUPS, dtype=torch.bool).scatter(-1, groups, True).repeat_interleave(COUNT // GROUPS, -1)
        chosen = choice.masked_fill(~mask, -math.inf).topk(2, -1).indices
        shares = scores.gather(-1, chosen)
        return chosen, shares / shares.sum(-1, keepdim=True) * SCALE


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(W, 24), nn.Linear(12, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts, self.shared = Router(), nn.ModuleList([Expert() for _ in range(COUNT)]), Expert()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        chosen, shares = self.gate(rows)
        made = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            at, place = (chosen == number).nonzero(as_tuple=True)
            if len(at):
                made = made.index_add(0, at, (expert(rows[at]) * shares[at, place, None]).to(made.dtype))
        return made.view(x.shape) + self.shared(x)


class Chosen(Router):
    """The same, with all scores of all experts: (tokens, experts)."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wrong, logits = self.wrong, (x.float() @ self.weight.float().mT)
        scores = logits.softmax(-1) if wrong == "softmax" else logits.sigmoid()
        choice = scores if wrong == "plain" else scores + self.bias
        pairs = choice.unflatten(-1, (GROUPS, -1))
        best = (pairs.amax(-1) if wrong == "best" else pairs.sum(-1)).topk(2, -1).indices
        mask = F.one_hot(best, GROUPS).sum(-2).repeat_interleave(COUNT // GROUPS, -1).bool()
        choice = torch.where(mask, choice, 0.0 if wrong == "zero" else -math.inf)
        rank = F.one_hot(choice.topk(2, -1).indices, COUNT).sum(-2)
        shares = rank * (scores + self.bias if wrong == "biased" else scores)
        shares = shares.detach() if wrong == "dead" else shares
        total = 1 if wrong == "unnormed" else scores.sum(-1, keepdim=True) if wrong == "all" else shares.sum(-1, keepdim=True)
        return shares / total * (1 if wrong == "unscaled" else SCALE)


class Stacked(nn.Module):
    """The weights of all experts in one tensor. `sparse`: only rows that are chosen are multiplied."""

    def __init__(self, wrong: str = "", sparse: bool = False) -> None:
        super().__init__()
        self.wrong, self.sparse = wrong, sparse
        self.up, self.up_bias = nn.Parameter(torch.zeros(COUNT, W, 24)), nn.Parameter(torch.zeros(COUNT, 24))
        self.down, self.down_bias = nn.Parameter(torch.zeros(COUNT, 12, W)), nn.Parameter(torch.zeros(COUNT, W))

    def forward(self, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        if self.sparse:
            return self.sorted(x, shares)
        y = torch.einsum("nw,ewi->nei", x, self.up) + self.up_bias
        y = y * shares[..., None].to(y.dtype) if self.wrong == "early" else y
        gate, up = (y[..., ::2], y[..., 1::2]) if self.wrong == "turns" else y.chunk(2, -1)
        y = torch.einsum("nei,eiw->new", F.silu(up if self.wrong == "swapped" else gate) * (gate if self.wrong == "swapped" else up), self.down)
        if self.wrong == "bias":
            return (torch.einsum("new,ne->nw", y, shares.to(y.dtype)) + (shares > 0).to(y.dtype) @ self.down_bias).to(x.dtype)
        y = y + self.down_bias
        return (y.sum(1) if self.wrong == "early" else torch.einsum("new,ne->nw", y, shares.to(y.dtype))).to(x.dtype)

    def sorted(self, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        expert, row = (shares.mT > 0).nonzero(as_tuple=True)
        if self.wrong == "capacity":  # an expert takes five rows at most
            first = torch.cat([(expert == n).nonzero()[:5, 0] for n in range(COUNT)])
            expert, row = expert[first], row[first]
        y = torch.einsum("nw,nwi->ni", x[row], self.up[expert]) + self.up_bias[expert]
        gate, up = y.chunk(2, -1)
        y = torch.einsum("ni,niw->nw", F.silu(gate) * up, self.down[expert]) + self.down_bias[expert]
        share = shares[row.sort().values if self.wrong == "unsorted" else row, expert, None]
        return torch.zeros_like(x).index_add(0, row, (y * share).to(x.dtype))


class Together(nn.Module):
    def __init__(self, gate: str = "", experts: str = "", sparse: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.gate, self.experts, self.shared = wrong, Chosen(gate), Stacked(experts, sparse), Expert()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        made, shared = self.experts(rows, self.gate(rows)).view(x.shape), self.shared(x)
        return made + shared * SCALE if self.wrong == "scaled" else made if self.wrong == "alone" else made + shared


class Mixed(nn.Module):
    def __init__(self, feeds: list[nn.Module]) -> None:
        super().__init__()
        self.words, self.layers, self.head = nn.Embedding(20, W), nn.ModuleList([Block(Causal()) for _ in feeds]), nn.Linear(W, 20)
        for layer, feed in zip(self.layers, feeds, strict=True):
            layer.feed = feed

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def grouped(**ways: Any) -> Made:
    sparse = ways.get("sparse", False)
    model = spread(Mixed([Experts() for _ in range(3)]))
    other = Mixed([Together(**ways) if n == 1 else Together(sparse=sparse) for n in range(3)])
    bias = torch.tensor([-0.9, -0.3, -0.6, -0.8, -1.2, -1.1, -0.5, -0.9])

    def convert(state: State) -> State:
        found = {name: value for name, value in state.items() if ".experts." not in name}
        for n in range(3):
            at = f"layers.{n}.feed"
            found[f"{at}.gate.bias"] = bias
            for part in ("up", "down"):
                whole = [[state[f"{at}.experts.{e}.{part}.{kind}"] for e in range(COUNT)] for kind in ("weight", "bias")]
                found[f"{at}.experts.{part}"], found[f"{at}.experts.{part}_bias"] = torch.stack(whole[0]).mT, torch.stack(whole[1])
        return found

    for layer in model.layers:
        layer.feed.gate.bias.copy_(bias)
    return ported(model, other, WORDS, convert)


GATE, MANY, FEED = ("layers.1.feed.gate",), ("layers.1.feed.experts",), ("layers.1.feed",)
family("experts in groups", "stacked experts", grouped, {
    "shares of biased scores": ({"gate": "biased"}, GATE, ""), "shares that are not normed": ({"gate": "unnormed"}, GATE, ""),
    "shares of all scores": ({"gate": "all"}, GATE, ""), "shares not scaled": ({"gate": "unscaled"}, GATE, ""),
    "softmax for sigmoid": ({"gate": "softmax"}, GATE, ""), "no bias": ({"gate": "plain"}, GATE, ""),
    "groups by their best": ({"gate": "best"}, GATE, ""), "other groups masked by zero": ({"gate": "zero"}, GATE, ""),
    "a router that learns nothing": ({"gate": "dead"}, GATE, ""), "a bias that is not weighed": ({"experts": "bias"}, MANY, ""),
    "gates and values exchanged": ({"experts": "swapped"}, MANY, ""), "gates and values by turns": ({"experts": "turns"}, MANY, ""),
    "shares before the bend": ({"experts": "early"}, MANY, ""), "rows beyond the capacity": ({"experts": "capacity", "sparse": True}, MANY, ""),
    "shares of other rows": ({"experts": "unsorted", "sparse": True}, MANY, ""), "a shared expert that is scaled": ({"wrong": "scaled"}, FEED, ""),
    "no shared expert": ({"wrong": "alone"}, FEED, ""),
}, chosen_rows={"sparse": True})  # fmt: skip

RANK, ALPHA = 4, 6.0


class Adapted(nn.Module):
    """A fixed weight, a product of two small ones, and a magnitude for each row. The norm of the sum is no part of the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(W, W), nn.Parameter(torch.zeros(RANK, W)), nn.Parameter(torch.zeros(W, RANK))
        self.size = nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.base.weight + self.up @ self.down * (ALPHA / RANK)
        share = self.size / weight.norm(dim=1).detach()
        return F.linear(x, weight * share[:, None], self.base.bias)


class Added(nn.Module):
    """The same in three products. `across`: the fixed weight is kept with inputs first."""

    def __init__(self, across: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.across, self.wrong = across, wrong
        self.base, self.down, self.up = nn.Linear(W, W), nn.Linear(W, RANK, bias=False), nn.Linear(RANK, W, bias=False)
        self.size = nn.Parameter(torch.ones(W))
        if across:
            self.base = nn.ParameterDict({"weight": nn.Parameter(torch.zeros(W, W)), "bias": nn.Parameter(torch.zeros(W))})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wrong, weight = self.wrong, self.base["weight"].mT if self.across else self.base.weight
        bias = self.base["bias"] if self.across else self.base.bias
        scale = {"alpha": ALPHA, "root": ALPHA / math.sqrt(RANK)}.get(wrong, ALPHA / RANK)
        whole = weight if wrong == "base" else weight + scale * (self.up.weight @ self.down.weight)
        norm = whole.norm(dim=0 if wrong == "axis" else 1)
        norm = norm if wrong == "attached" else norm.detach()
        share = (self.size.detach() if wrong == "fixed" else self.size) / norm
        plain, more = F.linear(x, weight), self.up(self.down(x)) * scale
        if wrong == "bias":
            return (plain + bias + more) * share
        if wrong == "adapter":
            return plain * share + more + bias
        return plain + bias + (share - 1) * plain + (more if wrong == "second" else more * share)


class Tuned(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.words, self.head, self.layers = nn.Embedding(20, W), nn.Linear(W, 20), nn.ModuleList([Block(each) for each in layers])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def adapted(across: bool = False, wrong: str = "", load: str = "") -> Made:
    """Only the adapters learn."""

    def convert(state: State) -> State:
        found = {name.replace(".down", ".down.weight").replace(".up", ".up.weight"): value for name, value in state.items()}
        for n in range(3):
            name = f"layers.{n}.attend.base.weight"
            found[name] = found[name].mT if across and not (load == "across" and n == 1) else found[name]
        return found

    model, other = Tuned([Adapted() for _ in range(3)]), Tuned([Added(across, wrong if n == 1 else "") for n in range(3)])
    made = ported(model, other, WORDS, convert)
    for each in (model, other):
        for name, value in each.named_parameters():
            value.requires_grad_(name.endswith("size") or ".down" in name or ".up" in name)
    return made


ONE = ("layers.1.attend",)
family("adapters with magnitudes", "three products", adapted, {
    "norms along the other axis": ({"wrong": "axis"}, ONE, ""), "norms of the fixed weight": ({"wrong": "base"}, ONE, ""),
    "norms with a gradient": ({"wrong": "attached"}, ONE, ""), "magnitudes that do not learn": ({"wrong": "fixed"}, ONE, ""),
    "a bias with a magnitude": ({"wrong": "bias"}, ONE, ""), "an adapter without a magnitude": ({"wrong": "adapter"}, ONE, ""),
    "alpha not divided": ({"wrong": "alpha"}, ONE, ""), "alpha by the root of the rank": ({"wrong": "root"}, ONE, ""),
    "a fixed weight on its side": ({"load": "across", "across": True}, (*ONE, "layers.1.attend.base"), ""),
}, inputs_first={"across": True})  # fmt: skip
