"""A fourteenth batch, fourth part: scans, sorted experts, low-rank and sharded weights, norms in weights, averages, several tools at once.

Faults as such rewrites have them: a gate after its norm, groups tiled, rows that are not put back, a shard's padding, an average that starts at zero.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_fourteenth_sights import renamed
from pair_tenth import Only
from torch import nn

W = 16


class Scan(nn.Module):
    """A state-space mixer whose steps have a rate for each head. `kind`: step by step, one matrix, or chunks of three."""

    def __init__(self, kind: str = "steps", rate_bias: bool = True, tiled: bool = False, late_gate: bool = False, whole: bool = False,
        skip: bool = True,
                 centred: bool = False, act: bool = True, order: bool = False, sign: bool = True, plain_rate: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.kind, self.rate_bias, self.tiled, self.late_gate, self.whole, self.skipped = kind, rate_bias, tiled, late_gate, whole, skip
        self.centred, self.act, self.order, self.sign, self.plain_rate = centred, act, order, sign, plain_rate
        self.inside, self.out = nn.Linear(W, 2 * 32 + 2 * 2 * 6 + 4, bias=False), nn.Linear(32, W, bias=False)
        self.taps, self.tap_bias = nn.Parameter(torch.zeros(56, 4)), nn.Parameter(torch.zeros(56))
        self.bias, self.rates, self.skip, self.gain = (nn.Parameter(torch.zeros(size)) for size in (4, 4, 4, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, mixed, rate = self.inside(x).split([32, 56, 4], -1)
        padded = F.pad(mixed, (0, 0, 2, 1) if self.centred else (0, 0, 3, 0))
        mixed = sum(padded[:, tap : tap + x.shape[1]] * self.taps[:, tap] for tap in range(4)) + self.tap_bias
        mixed = F.silu(mixed) if self.act else mixed
        v, b, c = mixed.float().split([32, 12, 12], -1)
        b, c = (c, b) if self.order else (b, c)
        v, b, c = v.unflatten(-1, (4, 8)), b.unflatten(-1, (2, 6)), c.unflatten(-1, (2, 6))
        b, c = (each.repeat(1, 1, 2, 1) if self.tiled else each.repeat_interleave(2, 2) for each in (b, c))
        rate = rate.float() + self.bias.float() if self.rate_bias else rate.float()
        rate = rate.exp() if self.plain_rate else F.softplus(rate)
        decay = -rate * (self.rates.float().exp() if self.sign else self.rates.float().abs())
        made = getattr(self, self.kind)(v * rate[..., None], b, c, decay)
        made = (made + v * self.skip.float()[:, None] if self.skipped else made).flatten(-2)
        gate = F.silu(gate.float())
        made = made if self.late_gate else made * gate
        grouped = made if self.whole else made.unflatten(-1, (2, 16))
        normed = grouped / (grouped.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        made = (normed if self.whole else normed.flatten(-2)) * self.gain.float()
        return self.out((made * gate if self.late_gate else made).to(x.dtype))

    def steps(self, v: torch.Tensor, b: torch.Tensor, c: torch.Tensor, decay: torch.Tensor, state: Any = None) -> torch.Tensor:
        state, made = torch.zeros(len(v), 4, 6, 8), []
        for place in range(v.shape[1]):
            state = state * decay[:, place, :, None, None].exp() + b[:, place, ..., None] * v[:, place, :, None]
            made.append((c[:, place, :, None] @ state)[:, :, 0])
        return torch.stack(made, 1)

    def matrix(self, v: torch.Tensor, b: torch.Tensor, c: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
        along = decay.cumsum(1).mT
        far = (along[..., :, None] - along[..., None, :]).masked_fill(torch.ones(v.shape[1], v.shape[1]).triu(1).bool(), -math.inf).exp()
        return torch.einsum("bthn,bshn,bhts,bshd->bthd", c, b, far, v)

    def chunks(self, v: torch.Tensor, b: torch.Tensor, c: torch.Tensor, decay: torch.Tensor, kept: bool = True) -> torch.Tensor:
        state, made = torch.zeros(len(v), 4, 6, 8), []
        for parts in zip(*(each.split(3, 1) for each in (v, b, c, decay)), strict=True):
            along = parts[3].cumsum(1)
            made.append(self.matrix(*parts) + torch.einsum("bthn,bth,bhnd->bthd", parts[2], along.exp(), state))
            rest = (along[:, -1:] - along).exp()
            state = state * (along[:, -1].exp()[..., None, None] if kept else 1) + torch.einsum("bthn,bth,bthd->bhnd", parts[1], rest, parts[0])
        return torch.cat(made, 1)

    def undecayed(self, *given: torch.Tensor) -> torch.Tensor:
        return self.chunks(*given, kept=False)


class Scans(nn.Module):
    def __init__(self, kind: str = "steps", bad: Any = None, eps: float = 1e-5) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(19, W), nn.ModuleList([Scan(kind), Scan(**{"kind": kind, **(bad or {})})])
        self.norms, self.last = nn.ModuleList([nn.RMSNorm(W, 1e-5), nn.RMSNorm(W, eps)]), nn.RMSNorm(W, 1e-5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.last(x)


def scanned(**ways: Any) -> Made:
    import transformers

    torch.manual_seed(0)
    model = spread(transformers.Mamba2Model(transformers.Mamba2Config(
        vocab_size=19, hidden_size=W, num_hidden_layers=2, num_heads=4, head_dim=8, expand=2, state_size=6, n_groups=2, conv_kernel=4, chunk_size=4,
        use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, residual_in_fp32=False))).eval()  # fmt: skip
    other = Scans(**ways).eval()
    state = renamed(dict(model.state_dict()), ("embeddings", "words"), ("norm_f", "last"), ("mixer.norm.weight", "gain"), ("mixer.", ""),
        ("in_proj", "inside"),
                    ("out_proj", "out"), ("conv1d.weight", "taps"), ("conv1d.bias", "tap_bias"), ("dt_bias", "bias"), ("A_log", "rates"),
                    (".D", ".skip"))  # fmt: skip
    found = {name: value.squeeze(1) if "taps" in name else value for name, value in state.items()}
    other.load_state_dict({f"norms.{name.split('.')[1]}.weight" if ".norm." in name else name: value for name, value in found.items()})
    ids = torch.randint(3, 19, (2, 8), generator=torch.Generator().manual_seed(1))
    return Only(model, "last_hidden_state"), other, ids, dict(MEAN)


EXPERTS, WIDE = 4, 24


class Experts(nn.Module):
    """Two of four experts for each token. `kind`: one by one, sorted by expert, or by padded slots. `room`: how many tokens an expert takes."""

    def __init__(self, kind: str = "one", sorted_back: bool = True, weighed: bool = True, room: int = 99, first: bool = False, late: bool = False,
                 scaled: float = 2.5, grouped: bool = True, act: Callable[..., torch.Tensor] = F.silu) -> None:  # fmt: skip
        super().__init__()
        self.kind, self.back, self.weighed, self.room, self.first, self.late, self.scaled, self.grouped, self.act = (
            kind, sorted_back, weighed, room, first, late, scaled, grouped, act)  # fmt: skip
        self.router = nn.Linear(W, EXPERTS, bias=False)
        self.up, self.down = nn.Parameter(torch.zeros(EXPERTS, 2 * WIDE, W)), nn.Parameter(torch.zeros(EXPERTS, W, WIDE))
        self.lift = nn.Parameter(torch.zeros(EXPERTS))

    def expert(self, number: int, x: torch.Tensor) -> torch.Tensor:
        gate, up = (x @ self.up[number].mT).chunk(2, -1)
        return (self.act(gate) * up) @ self.down[number].mT

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        scores = self.router(rows).float().sigmoid()
        chosen = (scores + self.lift.detach().float() if self.grouped else scores).topk(2, -1).indices
        shares = scores.gather(-1, chosen)
        shares = (shares / shares.sum(-1, keepdim=True) * self.scaled).to(x.dtype)
        return getattr(self, self.kind)(rows, chosen, shares).view_as(x)

    def one(self, rows: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        made = torch.zeros_like(rows)
        for number in range(EXPERTS):
            row, place = (chosen == number).nonzero(as_tuple=True)
            made = made.index_add(0, row, self.expert(number, rows[row]) * shares[row, place, None])
        return made

    def sorted(self, rows: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = flat.bincount(minlength=EXPERTS).tolist()
        sent = rows[order // 2]
        sent = sent * shares.flatten()[order, None] if self.first else sent
        made = torch.cat([self.expert(number, part) for number, part in enumerate(sent.split(counts))])
        if not self.weighed:
            made = made * shares.flatten()[:, None]  # which are in the order of tokens
        elif not self.first:
            made = made * shares.flatten()[order, None]
        back = torch.empty_like(made).index_copy(0, order if self.back else order.argsort(), made)
        return back.unflatten(0, (-1, 2)).sum(1)

    def slots(self, rows: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        hot = F.one_hot(chosen.flatten(), EXPERTS)
        place = ((hot.cumsum(0) - (0 if self.late else 1)) * hot).sum(-1)
        size = min(self.room, 2 * len(rows)) + 1
        kept = place < self.room
        slot = torch.where(kept, chosen.flatten() * size + place, 0)
        held = torch.zeros(EXPERTS * size, W, dtype=rows.dtype).index_add(0, slot, rows.repeat_interleave(2, 0) * kept[:, None])
        gate, up = torch.einsum("esi,eoi->eso", held.view(EXPERTS, size, W), self.up).chunk(2, -1)
        made = torch.einsum("esi,eoi->eso", self.act(gate) * up, self.down).flatten(0, 1)
        return (made[slot] * (shares.flatten() * kept)[:, None]).unflatten(0, (-1, 2)).sum(1)


class Stream(nn.Module):
    """Parts in a residual stream."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inside, self.layers, self.norm, self.head = nn.Linear(W, W), nn.ModuleList(layers), nn.LayerNorm(W), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x))


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def chosen(bad: Any = None, **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Stream(Experts(), Experts())), Stream(Experts(**ways), Experts(**{**ways, **(bad or {})}))
    other.load_state_dict(model.state_dict())
    return model, other, numbers(2, 7, W), dict(MEAN)


class Feed(nn.Module):
    """A gated branch. `kind` is how its weights are held: plain, by low-rank sums, in shards, by lengths, in whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(W, WIDE), nn.Linear(W, WIDE), nn.Linear(WIDE, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Low(nn.Module):
    """A linear layer with a product of low rank beside it. `merged`: in the weight."""

    def __init__(self, given: nn.Linear, merged: bool, scale: float = 0.5, turned: bool = False, bias: bool = True, generator: int = 5) -> None:
        super().__init__()
        self.merged, self.scale = merged, scale
        a, b = numbers(4, given.in_features) * 0.3, numbers(given.out_features, 4) * 0.3
        if turned:
            b = b.flip(1)
        self.weight, self.bias = nn.Parameter(given.weight.detach().clone(), requires_grad=False), nn.Parameter(given.bias.detach().clone(), bias)
        if not bias:
            self.bias.data.zero_()
        self.a, self.b = nn.Parameter(a), nn.Parameter(b)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.merged:
            return F.linear(x, self.weight + self.scale * self.b @ self.a, self.bias)
        return F.linear(x, self.weight, self.bias) + self.scale * ((x @ self.a.T) @ self.b.T)


def lowered(bad: Any = None, merged: bool = True) -> Made:
    torch.manual_seed(0)
    model: Any = spread(Stream(Feed(), Feed()))
    other = copy.deepcopy(model)
    for net, way in ((model, False), (other, merged)):
        for number, layer in enumerate(net.layers):
            for name in ("up", "down"):
                setattr(layer, name, Low(getattr(layer, name), way, **((bad or {}) if number and net is other and name == "down" else {})))
    return model, other, numbers(2, 7, W), dict(MEAN)


class Sharded(nn.Module):
    """A branch whose weights lie in one vector on four ranks, each with as many numbers. `lost`: the last rank's part is left out."""

    def __init__(self, given: Feed, order: tuple[int, ...] = (0, 1, 2, 3), turned: bool = False, shift: int = 0) -> None:
        super().__init__()
        self.shapes = [(name, each.shape) for name, each in given.named_parameters()]
        whole = torch.cat([each.detach().flatten() for each in given.parameters()])
        self.size, self.order, self.turned, self.shift = len(whole), order, turned, shift
        self.shards = nn.ParameterList(F.pad(whole, (0, -len(whole) % 4 + 4)).chunk(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = torch.cat([self.shards[number] for number in self.order])[self.shift :][: self.size]
        parts = whole.split([shape.numel() for _, shape in self.shapes])
        held = {name: part.view(shape) for part, (name, shape) in zip(parts, self.shapes, strict=True)}
        gate = F.linear(x, held["gate.weight"], held["gate.bias"])
        up = F.linear(x, held["up.weight"], held["up.bias"])
        return F.linear((F.silu(up) * gate) if self.turned else F.silu(gate) * up, held["down.weight"], held["down.bias"])


def sharded(**bad: Any) -> Made:
    torch.manual_seed(0)
    model: Any = spread(Stream(Feed(), Feed()))
    other = copy.deepcopy(model)
    other.layers[0], other.layers[1] = Sharded(model.layers[0]), Sharded(model.layers[1], **bad)
    return model, other, numbers(2, 7, W), dict(MEAN)


for kind in ("steps", "matrix", "chunks"):
    healthy("mamba", kind, lambda kind=kind: scanned(kind=kind))  # type: ignore[misc]
for fault, bad in (
    ("no bias of rates", {"rate_bias": False}), ("groups tiled", {"tiled": True}), ("the gate after the norm", {"late_gate": True}),
    ("one norm for both groups", {"whole": True}),
    ("no direct path", {"skip": False}), ("taps centred", {"centred": True}), ("nothing after the taps", {"act": False}),
    ("B and C swapped", {"order": True}),
    ("rates not by exp", {"sign": False}), ("exp for softplus", {"plain_rate": True}), ("no decay between chunks", {"kind": "undecayed"}),
):  # fmt: skip
    broken("mamba", fault, lambda bad=bad: scanned(bad=bad), "layers.1")  # type: ignore[misc]
broken("mamba", "an eps of 1e-2", lambda: scanned(eps=1e-2), "norms.1")
for kind in ("one", "sorted", "slots"):
    healthy("sorted experts", kind, lambda kind=kind: chosen(kind=kind))  # type: ignore[misc]
for fault, bad in (
    ("rows not put back", {"sorted_back": False}), ("weights in the order of tokens", {"weighed": False}),
    ("weights before experts", {"first": True}),
    ("the offset left out of the choice", {"grouped": False}), ("shares not scaled", {"scaled": 1.0}), ("gelu for silu", {"act": F.gelu}),
    ("room for five tokens", {"kind": "slots", "room": 5}),
):  # fmt: skip
    broken("sorted experts", fault, lambda bad=bad: chosen(kind="sorted", bad=bad), "layers.1")  # type: ignore[misc]
healthy("low rank", "merged", lowered)
healthy("low rank", "both apart", lambda: lowered(merged=False))
broken("low rank", "another scale", lambda: lowered({"scale": 1.0}), "layers.1.down")
broken("low rank", "rows of one factor turned round", lambda: lowered({"turned": True}), "layers.1.down")
broken("low rank", "a bias lost as it was merged", lambda: lowered({"bias": False}), "layers.1.down")
healthy("four ranks", "one vector", sharded)
broken("four ranks", "two shards swapped", lambda: sharded(order=(0, 2, 1, 3)), "layers.1")
broken("four ranks", "one number late", lambda: sharded(shift=1), "layers.1")
broken("four ranks", "gate and up swapped", lambda: sharded(turned=True), "layers.1")
