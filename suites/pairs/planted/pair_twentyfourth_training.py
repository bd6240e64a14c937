"""The twenty-fourth batch, third part: models whose code outside of the layers has a part in the gradient or in a state.

A world model that scales gradients, a fixed point with a gradient of its own, keys in a queue, features that steps share, tasks that share experts,
two domains.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_twentyfourth import TOP, B, W, family, ported
from torch import nn


class Part(torch.autograd.Function):
    """The same forward, a part of the gradient backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, part: float) -> torch.Tensor:
        ctx.part = part
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * ctx.part, None


def scaled(x: torch.Tensor, part: float, hook: bool) -> torch.Tensor:
    if not hook:
        return Part.apply(x, part)  # type: ignore[no-any-return, no-untyped-call]
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * part)
    return x


class Dynamics(nn.Module):
    """The next state from a state and what is done."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.norm, self.mix, self.out, self.reward = wrong, nn.LayerNorm(W), nn.Linear(W + 4, 24), nn.Linear(24, W), nn.Linear(24, 1)

    def forward(self, state: torch.Tensor, done: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = F.elu(self.mix(torch.cat([self.norm(state), F.one_hot(done, 4).to(state.dtype)], -1)))
        made = (state if self.wrong == "residual" else 0) + self.out(hidden)
        least, most = made.amin(-1, keepdim=True), made.amax(-1, keepdim=True)
        made = made / most if self.wrong == "range" else (made - least) / (most - least + 1e-5)
        return made, self.reward(hidden)


class World(nn.Module):
    """States of four steps, with rewards and values. The gradient is halved at each step. `hook`: by hooks on tensors."""

    def __init__(self, hook: bool = False, wrong: str = "", top: str = "") -> None:
        super().__init__()
        self.hook, self.top, self.inside, self.step, self.value = hook, top, nn.Linear(6, W), Dynamics(wrong), nn.Linear(W, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, made = torch.tanh(self.inside(x[:, 0])), []
        for number in range(4):
            done = (torch.arange(len(x)) + (number + 1 if self.top == "later" else number)) % 4
            state, reward = self.step(state.detach() if self.top == "cut" and number == 2 else state, done)
            value = self.value(state)
            part = {"whole": 1.0, "twice": 0.25}.get(self.top, 0.5)
            state = scaled(state.view_as(state), part, self.hook)
            made.append(torch.cat([reward, self.value(state) if self.top == "after" else value], -1))
        return torch.stack(made, 1)


family("a world model", "hooks on states", lambda **bad: ported(World(), World(**{"hook": True, **bad})), {
    "a whole gradient": ({"top": "whole"}, TOP, ""), "a quarter of the gradient": ({"top": "twice"}, TOP, ""),
    "a state cut off": ({"top": "cut"}, TOP, ""), "what is done one step later": ({"top": "later"}, TOP, ""),
    "a residual of the state": ({"wrong": "residual"}, ("step",), ""), "divided by the largest": ({"wrong": "range"}, ("step",), ""),
}, as_it_is={"hook": False})  # fmt: skip


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.given = nn.Linear(W, W, bias=False), nn.Linear(W, W)

    def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.own(z) * 0.15 + self.given(x))


class Fixed(nn.Module):
    """The fixed point of a cell, found without a gradient, and one step with one; its gradient by a second fixed point.

    `solve`: the second one is found by a linear system for each row.
    """

    def __init__(self, solve: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.solve, self.wrong, self.cell = solve, wrong, Cell()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(1 if self.wrong == "few" else 60):
                z = self.cell(z, x)
        z = self.cell(z, x)
        if self.wrong == "plain" or not z.requires_grad:
            return z
        start = z.detach().requires_grad_()
        again = self.cell(start, x.detach())

        def hook(gradient: torch.Tensor) -> torch.Tensor:
            found = gradient
            if self.solve:
                slope = (1 - again.detach().square())[..., None] * self.cell.own.weight * 0.15
                slope = slope if self.wrong == "turned" else slope.mT
                whole = torch.eye(W, dtype=slope.dtype) - slope
                return torch.linalg.solve(whole, gradient.to(slope.dtype)[..., None])[..., 0].to(gradient.dtype)
            for _ in range(60):
                found = torch.autograd.grad(again, start, found, retain_graph=True)[0] + gradient
            return found

        z.register_hook(hook)
        return z


class Onward(nn.Module):
    """Three layers, each of which gets the sum of all states before. `stacked`: the states are kept in a list."""

    def __init__(self, solve: bool = False, wrong: str = "", top: str = "", stacked: bool = False) -> None:
        super().__init__()
        self.top, self.stacked, self.inside, self.head = top, stacked, nn.Linear(6, W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Fixed(solve), Fixed(solve, wrong), Fixed(solve)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        found = [x]
        for number, layer in enumerate(self.layers):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not (self.top == "unrecorded" and number == 1)):
                found.append(layer(torch.stack(found).sum(0) if self.stacked else x))
            x = x + found[-1]
        return self.head(torch.stack(found).sum(0) if self.stacked else x)


family("a fixed point", "a linear system", lambda **bad: ported(Onward(), Onward(**{"solve": True, "stacked": True, **bad})), {
    "one step": ({"wrong": "few"}, B, ""), "a system that is turned": ({"wrong": "turned"}, B, ""),
    "the gradient of one step": ({"wrong": "plain"}, B, ""), "a layer without a gradient": ({"top": "unrecorded"}, TOP, ""),
}, as_it_is={"solve": False})  # fmt: skip


class Ring:
    """Keys of the last batches."""

    def __init__(self, keys: torch.Tensor) -> None:
        self.keys, self.place = keys, 0

    def put(self, rows: torch.Tensor) -> None:
        self.keys = torch.cat([self.keys[: self.place], rows.to(self.keys.dtype), self.keys[self.place + len(rows) :]])
        self.place = (self.place + len(rows)) % len(self.keys)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(6, 24), nn.Linear(24, W), nn.LayerNorm(W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.second(F.silu(self.first(x))))


class Scores(nn.Module):
    """The score of each query with its key, and with all keys in the queue. `joined`: all keys in one tensor."""

    def __init__(self, heat: float = 0.2, joined: bool = False) -> None:
        super().__init__()
        self.heat, self.joined = heat, joined

    def forward(self, q: torch.Tensor, k: torch.Tensor, ring: Ring) -> torch.Tensor:
        if self.joined:
            keys = torch.cat([k[:, None], ring.keys.to(k.dtype).expand(len(k), -1, -1)], 1)
            return (keys @ (q / self.heat)[..., None])[..., 0]
        return torch.cat([(q * k).sum(-1, keepdim=True), q @ ring.keys.to(q.dtype).T], -1) / self.heat


class Contrast(nn.Module):
    """Scores of three batches, one after the other, whose keys come from a slow copy of the encoder."""

    def __init__(self, heat: float = 0.2, wrong: str = "", joined: bool = False) -> None:
        super().__init__()
        self.wrong, self.encoder, self.slow, self.scores = wrong, Encoder(), Encoder(), Scores(heat, joined)
        self.register_buffer("start", F.normalize(numbers(12, W), dim=-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ring, made, wrong = Ring(self.start), [], self.wrong
        for number, rows in enumerate(x.unbind(0)):
            q = F.normalize(self.encoder(rows[:4]), dim=-1)
            with torch.set_grad_enabled(torch.is_grad_enabled() and wrong == "taught"):
                k = self.slow(rows[5:] if wrong == "rows" else rows[4:8])
                k = k if wrong == "sizes" and number == 1 else F.normalize(k, dim=-1)
            if wrong == "before":
                ring.put(k)
            made.append(self.scores(q, k, ring))
            if wrong != "before":
                ring.put(k.flip(0) if wrong == "other" else k)
            if wrong == "place":
                ring.place = 0
        return torch.stack(made)


def contrast(**bad: Any) -> Made:
    model, other, inputs, _ = ported(Contrast(), Contrast(**{"joined": True, **bad}))
    return model, other, inputs, {"loss": lambda out: F.cross_entropy(out.flatten(0, 1).float(), torch.zeros(12, dtype=torch.long))}


family("a queue of keys", "all keys in one tensor", contrast, {
    "keys that are taught": ({"wrong": "taught"}, TOP, ""), "keys not normed": ({"wrong": "sizes"}, TOP, ""),
    "put in before they are used": ({"wrong": "before"}, TOP, ""), "put in at the same place": ({"wrong": "place"}, TOP, ""),
    "keys of other rows": ({"wrong": "rows"}, TOP, ""), "another temperature": ({"heat": 0.07}, ("scores",), ""),
}, as_it_is={"joined": False})  # fmt: skip


class Ghost(nn.Module):
    """A norm by statistics of three rows at a time."""

    def __init__(self, rows: int = 3) -> None:
        super().__init__()
        self.rows, self.norm = rows, nn.BatchNorm1d(W, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.norm(each) for each in x.split(self.rows)])


class Whole(Ghost):
    """All groups at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float().unflatten(0, (-1, self.rows))
        y = (y - y.mean(1, keepdim=True)) / (y.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return (y.flatten(0, 1) * self.norm.weight + self.norm.bias).to(x.dtype)


class Chooser(nn.Module):
    def __init__(self, norm: Any, rows: int = 3, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.line, self.norm, self.change = wrong, nn.Linear(W, W, bias=False), norm(rows), nn.Linear(W, 2 * W)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor, left: torch.Tensor, share: nn.Linear) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scores = self.norm(self.line(hidden))
        mask = (scores if self.wrong == "unweighted" else scores * left).softmax(-1)
        left = left * ((1.0 if self.wrong == "whole" else 1.3) - mask)
        value, gate = share(x if self.wrong == "all" else mask * x).chunk(2, -1)
        value, gate = (gate, value) if self.wrong == "gate" else (value, gate)
        hidden = value * gate.sigmoid()
        value, gate = self.change(hidden).chunk(2, -1)
        return F.relu(hidden), (hidden + value * gate.sigmoid()) * 0.5**0.5, left


class Tabular(nn.Module):
    """Three steps that choose features, with one layer that all share. What one step has chosen is left to the next with less weight."""

    def __init__(self, norm: Any = Ghost, second: dict[str, Any] | None = None, top: str = "") -> None:
        super().__init__()
        self.top, self.inside, self.share, self.head = top, nn.Linear(6, W), nn.Linear(W, 2 * W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Chooser(norm), Chooser(norm, **(second or {})), Chooser(norm)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x.flatten(0, 1)[:24])
        hidden, left, made = x, torch.ones_like(x), 0
        for number, layer in enumerate(self.layers):
            chosen, hidden, after = layer(x, hidden, left, self.share)
            left = left if self.top == "left" and number == 0 else after
            hidden = hidden.detach() if self.top == "cut" and number == 1 else hidden
            made = made + (hidden if self.top == "hidden" and number == 1 else chosen)
        return self.head(made)


family("steps that choose features", "all groups at once", lambda **bad: ported(Tabular(), Tabular(**{"norm": Whole, **bad})), {
    "scores that forget": ({"second": {"wrong": "unweighted"}}, B, ""), "nothing chosen twice": ({"second": {"wrong": "whole"}}, B, ""),
    "all features": ({"second": {"wrong": "all"}}, B, ""), "the gate for the value": ({"second": {"wrong": "gate"}}, B, ""),
    "groups of four": ({"second": {"rows": 4}}, ("layers.1.norm",), ""), "what is left not handed on": ({"top": "left"}, TOP, ""),
    "a step that teaches nothing": ({"top": "cut"}, TOP, ""), "a sum of the hidden": ({"top": "hidden"}, TOP, ""),
}, as_it_is={"norm": Ghost})  # fmt: skip


class Cross(nn.Module):
    """Products of the input with a line of what came last."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.line = wrong, nn.Linear(W, W)

    def forward(self, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        made = first * self.line(x)
        return made if self.wrong == "alone" else made + x


class Tasks(nn.Module):
    """Two crosses, three experts, and two tasks with a gate each. `stacked`: all experts in one product."""

    def __init__(self, stacked: bool = False, wrong: str = "", top: str = "") -> None:
        super().__init__()
        self.stacked, self.top, self.inside = stacked, top, nn.Linear(6, W)
        self.layers = nn.ModuleList([Cross(), Cross(wrong), Cross()])
        self.experts, self.gates = nn.ModuleList([nn.Linear(W, 8) for _ in range(3)]), nn.ModuleList([nn.Linear(W, 3) for _ in range(2)])
        self.heads = nn.ModuleList([nn.Linear(8, 2) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = x = self.inside(x)
        for number, layer in enumerate(self.layers):
            x = layer(x if self.top == "last" and number == 1 else first, x)
        if self.stacked:
            weight = torch.cat([each.weight for each in self.experts])
            bias = torch.cat([each.bias for each in self.experts])
            made = F.linear(x, weight, bias).unflatten(-1, (3, 8))
        else:
            made = torch.stack([each(x) for each in self.experts], -2)
        made = F.relu(made)
        if self.top == "order":
            made = made.flip(-2)
        shares = [gate(x.detach() if self.top == "cut" else x).softmax(-1) for gate in self.gates]
        shares = [shares[0], shares[0]] if self.top == "gate" else shares
        one, two = ((made * share[..., None]).sum(-2) for share in shares)
        return self.heads[0](one), self.heads[1](two)


def tasks(**bad: Any) -> Made:
    return ported(Tasks(), Tasks(**{"stacked": True, **bad}), loss=lambda out: out[0].float().square().mean() + out[1].float().square().mean())


family("tasks that share experts", "one product", tasks, {
    "a cross alone": ({"wrong": "alone"}, B, ""), "what came last twice": ({"top": "last"}, TOP, ""),
    "experts in another order": ({"top": "order"}, TOP, ""),
    "one gate for both": ({"top": "gate"}, TOP, ""), "gates that teach nothing": ({"top": "cut"}, TOP, ""),
}, as_it_is={"stacked": False})  # fmt: skip


class Domains(nn.Module):
    """Words of a class, and of a domain whose gradient is turned. A table of domains is also the last layer. `hook`: turned by a hook."""

    def __init__(self, hook: bool = False, top: str = "", second: str = "") -> None:
        super().__init__()
        self.hook, self.top, self.inside, self.table = hook, top, nn.Linear(6, W), nn.Embedding(4, W)
        self.layers = nn.ModuleList([Tower(second if n == 1 else "") for n in range(3)])
        self.head, self.between = nn.Linear(W, 5), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kinds = torch.arange(len(x)) % 4
        x = self.inside(x) + self.table(kinds + (1 if self.top == "kinds" else 0))[:, None]
        for layer in self.layers:
            x = layer(x)
        sign = {"ahead": 0.7, "more": -1.0}.get(self.top, -0.7)
        given = x if self.top == "both" else x.view_as(x)
        hidden = torch.tanh(self.between(scaled(given, sign, self.hook)))
        weight = self.table.weight.detach() if self.top == "frozen" else self.table.weight
        return self.head(x), hidden @ weight.T.to(hidden.dtype)


class Tower(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.norm, self.line = wrong, nn.LayerNorm(W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.line(self.norm(x)))
        return x.detach() + y if self.wrong == "cut" else y + self.norm(x) if self.wrong == "normed" else x + y


def two(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return out[0].float().square().mean() + F.cross_entropy(out[1].flatten(0, 1).float(), torch.arange(27) % 4)


family("two domains", "turned by a hook", lambda **bad: ported(Domains(), Domains(**{"hook": True, **bad}), loss=two), {
    "a gradient that is not turned": ({"top": "ahead"}, TOP, ""), "a whole gradient turned": ({"top": "more"}, TOP, ""),
    "turned for both": ({"top": "both"}, TOP, ""), "a table that the last layer does not teach": ({"top": "frozen"}, TOP, ""),
    "the table of the next domain": ({"top": "kinds"}, TOP, ""), "a residual that teaches nothing": ({"second": "cut"}, B, ""),
    "a residual of the norm": ({"second": "normed"}, B, ""),
}, as_it_is={"hook": False})  # fmt: skip
