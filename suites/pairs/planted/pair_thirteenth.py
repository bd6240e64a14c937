"""A thirteenth batch, committed before the judge has seen any of it, and after what the twelfth showed was mended: structured weights and attentions.

As in the twelfth, each network has two layers of one kind, and a fault is in the second layer alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import broken, healthy
from pair_twelfth import HEADS, LENGTH, SECOND, SIZE, W, two
from pair_twelfth_loops import heads
from pair_twelfth_losses import scored
from torch import nn


class Mixed(nn.Module):
    """Attention whose heads are mixed before and after the softmax, with relative places. `kind`: at once, or head by head with a gather."""

    def __init__(self, kind: str = "at once", turned: bool = False, late: int = 0) -> None:
        super().__init__()
        self.kind, self.turned, self.late = kind, turned, late
        self.qkv, self.out, self.far = nn.Linear(W, 3 * W), nn.Linear(W, W), nn.Parameter(torch.zeros(HEADS, 2 * LENGTH, SIZE))
        self.before, self.after = nn.Parameter(torch.zeros(HEADS, HEADS)), nn.Parameter(torch.zeros(HEADS, HEADS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(each) for each in self.qkv(x).chunk(3, -1))
        places, length = torch.arange(x.shape[1]), x.shape[1]
        if self.kind == "at once":
            near = q @ self.far.mT  # of query t, relative place p; what is wanted is p = u - t + length - 1
            near = near.flatten(-2)[..., : length * (2 * length - 1)].unflatten(-1, (length, 2 * length - 1))[..., length - 1 :]
            scores = torch.einsum("bhtu,hg->bgtu", ((q @ k.mT + near) / math.sqrt(SIZE)).float(), self.before.float())
            shares = torch.einsum("bhtu,hg->bgtu", scores.softmax(-1), self.after.float()).to(v.dtype)
            return self.out((shares @ v).transpose(1, 2).flatten(2))
        at = places - places[:, None] + length - 1 - self.late
        scores = [(q[:, h] @ k[:, h].mT + (q[:, h, :, None] * self.far[h][at]).sum(-1)).float() / math.sqrt(SIZE) for h in range(HEADS)]
        before, after = self.before.float(), (self.after.T if self.turned else self.after).float()
        shares = [sum(before[h, g] * scores[h] for h in range(HEADS)).softmax(-1) for g in range(HEADS)]  # type: ignore[union-attr]
        made = [sum(after[h, g] * shares[h] for h in range(HEADS)).to(v.dtype) @ v[:, g] for g in range(HEADS)]  # type: ignore[union-attr]
        return self.out(torch.cat(made, -1))


class Near(nn.Module):
    """Attention within blocks of two and to the block before. `kind`: one mask, or blocks unfolded."""

    def __init__(self, kind: str = "mask", before: bool = True, first: bool = True) -> None:
        super().__init__()
        self.kind, self.before, self.first, self.qkv, self.out = kind, before, first, nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(each) for each in self.qkv(x).chunk(3, -1))
        block = torch.arange(x.shape[1]) // 2
        if self.kind == "mask":
            seen = (block[:, None] - block >= 0) & (block[:, None] - block <= 1)
            made = ((q @ k.mT).float() / math.sqrt(SIZE)).masked_fill(~seen, -math.inf).softmax(-1).to(v.dtype) @ v
        else:
            k, v = (F.pad(each, (0, 0, 2, 0)).unfold(2, 4, 2).mT for each in (k, v))
            scores = (q.unflatten(2, (-1, 2)) @ k.mT).float() / math.sqrt(SIZE)
            hidden = torch.zeros(x.shape[1] // 2, 1, 4, dtype=torch.bool)
            hidden[0, :, :2] = self.first
            hidden[1:, :, :2] = not self.before
            made = (scores.masked_fill(hidden, -math.inf).softmax(-1).to(v.dtype) @ v).flatten(2, 3)
        return self.out(made.transpose(1, 2).flatten(2))


class Axes(nn.Module):
    """Attention along rows, then along columns, of a grid of 2 by 4. `kind`: turned, or by masks."""

    def __init__(self, kind: str = "turned", both: bool = True) -> None:
        super().__init__()
        self.kind, self.both = kind, both
        self.rows, self.columns = nn.Linear(W, 3 * W), nn.Linear(W, 3 * W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "turned":
            x = self.along(x.unflatten(1, (2, 4)), self.rows).transpose(1, 2)
            return self.along(x, self.columns).transpose(1, 2).flatten(1, 2)
        place = torch.arange(8)
        x = self.along(x, self.rows, place[:, None] // 4 == place // 4)
        same = place[:, None] % 4 == place % 4
        return self.along(x, self.columns, same if self.both else place[:, None] // 4 == place // 4)

    def along(self, x: torch.Tensor, product: nn.Module, seen: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = product(x).chunk(3, -1)
        scores = (q @ k.mT).float() / math.sqrt(W)
        return (scores if seen is None else scores.masked_fill(~seen, -math.inf)).softmax(-1).to(v.dtype) @ v


class Slots(nn.Module):
    """Four slots that tokens compete for, read back by the tokens. `kind`: products, or sums of einsum."""

    def __init__(self, kind: str = "products", evened: bool = True, axis: int = 1) -> None:
        super().__init__()
        self.kind, self.evened, self.axis = kind, evened, axis
        self.k, self.v, self.q, self.slots = nn.Linear(W, W), nn.Linear(W, W), nn.Linear(W, W), nn.Parameter(torch.zeros(4, W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k, v, q = self.k(x).float(), self.v(x).float(), self.q(self.slots).float()
        if self.kind == "products":
            shares = (q @ k.mT / math.sqrt(W)).softmax(1) + 1e-4
            made = (shares / shares.sum(-1, keepdim=True)) @ v
            return (shares.mT @ made).to(x.dtype)
        scores = torch.einsum("sd,btd->bst", q, k) / math.sqrt(W)
        shares = scores.softmax(self.axis) + 1e-4
        weighed = torch.einsum("bst,btd->bsd", shares, v)
        made = weighed / shares.sum(-1)[..., None] if self.evened else weighed
        return torch.einsum("bst,bsd->btd", shares, made).to(x.dtype)


class Kept(nn.Module):
    """Attention by decays. `kind`: at once, or step by step. Its heads are normed apart."""

    def __init__(self, kind: str = "at once", reverse: bool = False, apart: bool = True) -> None:
        super().__init__()
        self.kind, self.reverse, self.apart, self.qkv, self.norm = kind, reverse, apart, nn.Linear(W, 3 * W), nn.GroupNorm(HEADS, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(each).float() for each in self.qkv(x).chunk(3, -1))
        rate = 1 - 2.0 ** -(2 + torch.arange(HEADS))
        rate = rate.flip(0) if self.reverse else rate
        places = torch.arange(x.shape[1])
        if self.kind == "at once":
            decay = (rate[:, None, None] ** (places[:, None] - places).clamp(min=0)).tril()
            made = (q @ k.mT * decay) @ v
            return self.norm(made.transpose(1, 2).flatten(0, 1).flatten(1).to(x.dtype)).view_as(x)
        state, rows = torch.zeros(len(x), HEADS, SIZE, SIZE), []
        for place in range(x.shape[1]):
            state = rate[:, None, None] * state + k[:, :, place, :, None] * v[:, :, place, None, :]
            rows.append((q[:, :, place, None] @ state)[:, :, 0])
        made = torch.stack(rows, 1)
        mean, var = (
            getattr(made, each)((-1,) if self.apart else (-2, -1), keepdim=True, **more) for each, more in (("mean", {}), ("var", {"correction": 0}))
        )
        made = ((made - mean) / (var + 1e-5).sqrt()).flatten(2)
        return (made * self.norm.weight.float() + self.norm.bias.float()).to(x.dtype)


class Filters(nn.Module):
    """A long filter for each channel, then a short one that each token makes. `kind`: of the sums."""

    def __init__(self, kind: str = "sums", around: bool = False, shares: bool = True, turned: bool = False) -> None:
        super().__init__()
        self.kind, self.around, self.shares, self.turned = kind, around, shares, turned
        self.long, self.taps, self.out = nn.Parameter(torch.zeros(W, LENGTH)), nn.Linear(W, 3 * HEADS), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length, wide, places = x.shape[1], x.float().mT, torch.arange(x.shape[1])
        taps = self.taps(x).float().unflatten(-1, (HEADS, 3))
        if self.kind == "sums":
            far = places[:, None] - places
            whole = (self.long.float()[:, far.clamp(min=0)] * (far >= 0)).unsqueeze(0)
            made = (whole @ wide[..., None])[..., 0].mT
            before = torch.stack([F.pad(made, (0, 0, tap, 0))[:, :length] for tap in range(3)], -1)
            return self.out((before.unflatten(2, (HEADS, SIZE)) * taps.softmax(-1)[:, :, :, None]).sum(-1).flatten(2).to(x.dtype))
        size = length if self.around else 2 * length
        made = torch.fft.irfft(torch.fft.rfft(wide, n=size) * torch.fft.rfft(self.long.float(), n=size), n=size)[..., :length].mT
        taps = taps.softmax(-1) if self.shares else taps
        windows = F.pad(made, (0, 0, 2, 0)).unfold(1, 3, 1)  # the oldest first
        windows = windows if self.turned else windows.flip(-1)
        return self.out(torch.einsum("bthsk,bthk->bths", windows.unflatten(2, (HEADS, SIZE)), taps).flatten(2).to(x.dtype))


class Structured(nn.Module):
    """A product of structured weights: blocks with a transposition, a Kronecker product, reflections. `kind`: parts, or one matrix."""

    def __init__(self, kind: str = "parts", straight: bool = False, backwards: bool = False) -> None:
        super().__init__()
        self.kind, self.straight, self.backwards = kind, straight, backwards
        self.left, self.right = nn.Parameter(torch.zeros(4, 6, 6)), nn.Parameter(torch.zeros(6, 4, 4))
        self.a, self.b, self.mirrors = nn.Parameter(torch.zeros(4, 4)), nn.Parameter(torch.zeros(6, 6)), nn.Parameter(torch.zeros(3, W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "parts":
            y = torch.einsum("bsgi,gio->bsgo", x.unflatten(-1, (4, 6)), self.left).mT
            y = torch.einsum("bsgi,gio->bsgo", y, self.right).mT.flatten(-2)
            y = (self.a @ y.unflatten(-1, (4, 6)) @ self.b.T).flatten(-2)
            for mirror in F.normalize(self.mirrors.float(), dim=-1).to(x.dtype):
                y = y - 2 * (y @ mirror)[..., None] * mirror
            return y
        turn = torch.arange(W).view(4, 6).T.flatten()
        back = turn.argsort()
        first = torch.block_diag(*self.left)[:, torch.arange(W) if self.straight else turn]
        whole = first @ torch.block_diag(*self.right)[:, torch.arange(W) if self.straight else back]
        whole = whole @ torch.kron(self.a, self.b).T
        mirrors = F.normalize(self.mirrors, dim=-1)
        for mirror in mirrors.flip(0) if self.backwards else mirrors:
            whole = whole @ (torch.eye(W) - 2 * mirror[:, None] * mirror).to(x.dtype)
        return x @ whole


class Polynomials(nn.Module):
    """Polynomials of a graph's matrix, up to the third degree. `kind`: by their recursion, or by powers."""

    def __init__(self, kind: str = "recursion", twice: int = 2, rest: bool = True) -> None:
        super().__init__()
        self.kind, self.twice, self.rest, self.lines = kind, twice, rest, nn.ModuleList(nn.Linear(W, W, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[1])
        near = (((place[:, None] - place).abs() % 7 == 1) * 0.4).to(x.dtype)
        if self.kind == "powers":
            near2 = near @ near
            made = [x, near @ x, 2 * (near2 @ x) - x, 4 * (near2 @ near @ x) - 3 * (near @ x)]
        else:
            made = [x, near @ x]
            for _ in range(2):
                made.append(self.twice * (near @ made[-1]) - (made[-2] if self.rest else 0))
        return sum(line(each) for line, each in zip(self.lines, made, strict=True))  # type: ignore[return-value]


class Competing(nn.Module):
    """A channel gate by the mean of the sequence, and a norm over neighbouring channels. `kind`: torch's norm, or by hand."""

    def __init__(self, kind: str = "torch", summed: bool = False, whole: bool = False) -> None:
        super().__init__()
        self.kind, self.summed, self.whole, self.line, self.down, self.up = kind, summed, whole, nn.Linear(W, W), nn.Linear(W, 6), nn.Linear(6, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.line(x)
        mean = (x.float().sum(1) if self.summed else x.float().mean(1)).to(x.dtype)
        x = x * self.up(F.relu(self.down(mean))).sigmoid()[:, None]
        if self.kind == "torch":
            return F.local_response_norm(x.float().mT, 5, alpha=0.5, beta=0.75, k=1.0).mT.to(x.dtype)
        wide = x.float()
        sums = F.pad(wide.square(), (2, 2)).unfold(-1, 5, 1).sum(-1)
        return (wide / (1 + 0.5 * (sums if self.whole else sums / 5)) ** 0.75).to(x.dtype)


class Chained(nn.Module):
    """The loss of a chain of labels: by the recursion, or by products of matrices in pairs. `turned`: the wrong way of its steps."""

    def __init__(self, kind: str = "recursion", turned: bool = False, ends: bool = True) -> None:
        super().__init__()
        self.kind, self.turned, self.ends, self.steps = kind, turned, ends, nn.Parameter(torch.zeros(9, 9))

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        steps, wanted = self.steps.float(), (torch.arange(LENGTH) * 2) % 9
        hit = logits[:, torch.arange(LENGTH), wanted].sum(-1) + steps[wanted[:-1], wanted[1:]].sum()
        if self.kind == "recursion":
            state = logits[:, 0]
            for frame in logits[:, 1:].unbind(1):
                state = (state[:, :, None] + steps).logsumexp(1) + frame
            return (state.logsumexp(-1) - hit).mean()
        parts = list(((steps.T if self.turned else steps) + logits[:, 1:, None, :]).unbind(1))
        while len(parts) > 1:
            rest = parts[len(parts) // 2 * 2 :]
            parts = [(a[..., None] + b[:, None]).logsumexp(2) for a, b in zip(parts[::2], parts[1::2], strict=False)] + rest
        first = logits[:, 0] if self.ends else torch.zeros_like(logits[:, 0])
        return ((first[:, :, None] + parts[0]).flatten(1).logsumexp(-1) - hit).mean()


def all_of(*parts: Any) -> None:
    for family, name, part, ways in parts:
        bad = any(each.startswith("bad_") for each in ways)
        broken(family, name, two(part, **ways), SECOND) if bad else healthy(family, name, two(part, **ways))


all_of(
    ("mixed heads", "head by head", Mixed, {"kind": "heads"}),
    ("mixed heads", "a mixture turned round", Mixed, {"kind": "heads", "bad_turned": True}),
    ("mixed heads", "relative places one late", Mixed, {"kind": "heads", "bad_late": 1}),
    ("near blocks", "unfolded", Near, {"kind": "blocks"}),
    ("near blocks", "no block before", Near, {"kind": "blocks", "bad_before": False}),
    ("near blocks", "padding is seen", Near, {"kind": "blocks", "bad_first": False}),
    ("axes", "by masks", Axes, {"kind": "masks"}),
    ("axes", "rows twice", Axes, {"kind": "masks", "bad_both": False}),
    ("slots", "by einsum", Slots, {"kind": "einsum"}),
    ("slots", "not evened", Slots, {"kind": "einsum", "bad_evened": False}),
    ("slots", "shares over tokens", Slots, {"kind": "einsum", "bad_axis": 2}),
    ("kept by decays", "step by step", Kept, {"kind": "steps"}),
    ("kept by decays", "decays of other heads", Kept, {"kind": "steps", "bad_reverse": True}),
    ("kept by decays", "heads normed together", Kept, {"kind": "steps", "bad_apart": False}),
    ("long filters", "by transforms", Filters, {"kind": "fast"}),
    ("long filters", "around the end", Filters, {"kind": "fast", "bad_around": True}),
    ("long filters", "taps that are no shares", Filters, {"kind": "fast", "bad_shares": False}),
    ("long filters", "taps turned round", Filters, {"kind": "fast", "bad_turned": True}),
    ("structured", "the whole matrix", Structured, {"kind": "whole", "std": 0.5}),
    ("structured", "not transposed between blocks", Structured, {"kind": "whole", "bad_straight": True, "std": 0.5}),
    ("structured", "reflections backwards", Structured, {"kind": "whole", "bad_backwards": True, "std": 0.5}),
    ("polynomials", "by powers", Polynomials, {"kind": "powers"}),
    ("polynomials", "once and not twice", Polynomials, {"bad_twice": 1}),
    ("polynomials", "without the one before", Polynomials, {"bad_rest": False}),
    ("competing channels", "by hand", Competing, {"kind": "hand"}),
    ("competing channels", "a sum for the mean", Competing, {"kind": "hand", "bad_summed": True}),
    ("competing channels", "not divided by the neighbours", Competing, {"kind": "hand", "bad_whole": True}),
)
healthy("chain of labels", "in pairs", scored(Chained, kind="pairs"))
broken("chain of labels", "steps turned round", scored(Chained, kind="pairs", turned=True), "score")
broken("chain of labels", "without the first scores", scored(Chained, kind="pairs", ends=False), "score")
