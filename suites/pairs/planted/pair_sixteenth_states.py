"""A sixteenth batch, third part: an adapter for each row, filters with a state, residuals passed on, recomputed dropout, gradients of words."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_fourteenth_scans import Stream, numbers
from pair_sixteenth import LAST, LENGTH, ROWS, entered
from torch import nn
from torch.utils.checkpoint import checkpoint

W, WORDS = 16, 19


class Adapted(nn.Module):
    """A layer with three adapters of low rank, of which each row of a batch has its own. `together`: chosen weights in one product."""

    def __init__(self, together: bool = False, backwards: bool = False, one: bool = False) -> None:
        super().__init__()
        self.together, self.backwards, self.one = together, backwards, one
        self.base = nn.Linear(W, W)
        self.into, self.out, self.scales = nn.Parameter(torch.zeros(3, 4, W)), nn.Parameter(torch.zeros(3, W, 4)), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        which = torch.tensor([2, 0])
        if not self.together:
            rows = [F.linear(F.linear(row, self.into[n]), self.out[n]) * self.scales[n] for row, n in zip(x, which.tolist(), strict=True)]
            return F.gelu(self.base(x) + torch.stack(rows))
        which = which.flip(0) if self.backwards else which
        into, out = self.into[which], self.out[which]
        scales = self.scales[:1] if self.one else self.scales[which]
        return F.gelu(self.base(x) + torch.bmm(torch.bmm(x, into.mT), out.mT) * scales[:, None, None].to(x.dtype))


entered(
    "an adapter for each row",
    Adapted,
    "chosen weights",
    {"together": True},
    {"of another row": {"backwards": True}, "one scale for all": {"one": True}},
)


class Kept(nn.Module):
    """A causal filter of four for each channel, and a gate. With a state it is called for a chunk of two, which is shorter than the filter."""

    def __init__(self, short: bool = False, before: bool = False) -> None:
        super().__init__()
        self.short, self.before = short, before
        self.inside, self.taps, self.out = nn.Linear(W, 2 * W), nn.Conv1d(W, W, 4, groups=W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, state: dict[str, Any] | None = None) -> torch.Tensor:
        mixed, gate = self.inside(x).chunk(2, -1)
        old = mixed.new_zeros(len(x), W, 3) if state is None else state.get("old", mixed.new_zeros(len(x), W, 3))
        whole = torch.cat([old, mixed.mT], -1)
        if state is not None:
            state["old"] = F.pad(mixed.mT, (1, 0))[..., -3:] if self.short and mixed.shape[1] == 2 else whole[..., -3:]
            state["old"] = F.silu(state["old"]) if self.before else state["old"]
        return self.out(F.silu(self.taps(whole)).mT * F.silu(gate))


class Pieces(Stream):
    """Five tokens first, then two at a time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states: list[dict[str, Any]] = [{} for _ in self.layers]
        made = []
        for chunk in x.split([5, 2, 2, 2], 1):
            chunk = self.inside(chunk)
            for layer, state in zip(self.layers, states, strict=True):
                chunk = chunk + layer(chunk, state)
            made.append(self.head(self.norm(chunk)))
        return torch.cat(made, 1)


entered("a filter with a state", Kept, "chunks shorter than the filter", {}, {
    "a short chunk is the whole state": {"short": True}, "a state that is bent": {"before": True}}, Pieces)  # fmt: skip


class Layer(nn.Module):
    """Two norms and two branches. `passed`: what comes in is a branch's result and a sum, and both go on to the next layer."""

    def __init__(self, passed: bool = False, normed: bool = False, twice: bool = False) -> None:
        super().__init__()
        self.passed, self.normed, self.twice = passed, normed, twice
        self.first, self.second = nn.RMSNorm(W, 1e-5), nn.RMSNorm(W, 1e-5)
        self.mix, self.up, self.down = nn.Conv1d(W, W, 3, groups=4), nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(F.pad(x.mT, (2, 0))).mT

    def forward(self, x: torch.Tensor, sums: torch.Tensor | None = None) -> Any:
        if not self.passed:
            x = x + self.mixed(self.first(x))
            return x + self.down(F.silu(self.up(self.second(x))))
        sums = x if sums is None else x + sums
        made = self.mixed(self.first(sums))
        sums = (self.first(sums) if self.normed else sums) + made
        sums = sums + made if self.twice else sums
        return self.down(F.silu(self.up(self.second(sums)))), sums


class Body(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inside, self.layers, self.norm, self.head = nn.Linear(W, W), nn.ModuleList(layers), nn.RMSNorm(W, 1e-5), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, sums = self.inside(x), None
        for layer in self.layers:
            x, sums = layer(x, sums) if layer.passed else (layer(x), None)
        return self.head(self.norm(x if sums is None else x + sums))


def passed_on(**bad: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Body(Layer(), Layer())), Body(Layer(True), Layer(True, **bad))
    other.load_state_dict(model.state_dict())
    return model, other, numbers(ROWS, LENGTH, W), dict(MEAN)


healthy("residuals passed on", "a sum beside each result", passed_on)
broken("residuals passed on", "a sum of what is normed", lambda: passed_on(normed=True), LAST)
broken("residuals passed on", "a branch added twice", lambda: passed_on(twice=True), LAST)


class Dropped(nn.Module):
    """A branch with dropout. `kind`: as it is, or recomputed in the backward pass. `kept`: the random numbers are the same in both."""

    def __init__(self, kind: str = "plain", kept: bool = True, off: bool = False) -> None:
        super().__init__()
        self.kind, self.kept, self.off, self.calls = kind, kept, off, 0
        self.up, self.down = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        rate = 0.6 if self.off and torch._C._current_graph_task_id() != -1 else 0.3
        return self.down(F.dropout(F.silu(self.up(x)), rate, self.training))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "plain":
            return self.branch(x)
        return checkpoint(self.branch, x, use_reentrant=False, preserve_rng_state=self.kept, determinism_check="none")


entered(
    "recomputed dropout",
    Dropped,
    "the same numbers",
    {"kind": "again"},
    {"other numbers": {"kept": False}, "another rate as it is recomputed": {"off": True}},
)


class Words(nn.Module):
    """Words of which the first is padding and learns nothing. `product`: looked up by a product."""

    def __init__(self, product: bool = False, padding: int | None = 0, shared: bool = False) -> None:
        super().__init__()
        self.product, self.padding = product, padding
        self.words = nn.Embedding(WORDS, W, padding, scale_grad_by_freq=shared)
        self.body, self.norm, self.head = nn.GRU(W, W, batch_first=True), nn.LayerNorm(W), nn.Linear(W, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.product:
            rows = torch.cat([self.words.weight[:1].detach(), self.words.weight[1:]])
            return self.head(self.norm(self.body(F.one_hot(ids, WORDS).to(rows.dtype) @ rows)[0]))
        return self.head(self.norm(self.body(self.words(ids))[0]))


def looked_up(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Words()), Words(**ways)
    other.load_state_dict(model.state_dict())
    return model, other, torch.randint(0, 6, (ROWS, LENGTH), generator=torch.Generator().manual_seed(5)), dict(MEAN)


healthy("words that learn", "a product", lambda: looked_up(product=True))
broken("words that learn", "padding learns", lambda: looked_up(padding=None), "words")
broken("words that learn", "shared among uses", lambda: looked_up(shared=True), "words")
