"""The twenty-ninth batch, second part: atoms that move, and rows of related sequences."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pair_fourteenth_scans import numbers
from pair_twentyfourth import TOP, W, ported
from pair_twentyninth import SECOND, family
from torch import nn

PAIRS = torch.tensor([(i, j) for i in range(6) for j in range(6) if i != j]).T


class Moves(nn.Module):
    """Messages by squares of distances; places move along what lies between them."""

    def __init__(self, wrong: str = "", listed: bool = False) -> None:
        super().__init__()
        self.wrong, self.listed = wrong, listed
        self.edge, self.mix = nn.Linear(2 * W + 1, W), nn.Linear(W, W)
        self.step, self.node = nn.Linear(W, 1), nn.Linear(2 * W, W)

    def told(self, a: torch.Tensor, b: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        square = (square + 1e-8).sqrt() if self.wrong == "root" else square
        return F.silu(self.mix(F.silu(self.edge(torch.cat([a, b, square.to(a.dtype)], -1)))))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wrong = self.wrong
        if self.listed:
            one, two = PAIRS
            gap = at[:, two] - at[:, one] if wrong == "turned" else at[:, one] - at[:, two]
            square = ((at[:, one] - at[:, one]) if wrong == "same" else gap).square().sum(-1, keepdim=True)
            message = self.told(x[:, one], x[:, two], square)
            unit = gap if wrong == "unit" else gap / ((square + 1e-8).sqrt() + 1)
            moved = torch.zeros_like(at).index_add(1, one, (unit * self.step(message).to(at.dtype)).to(at.dtype)) / (1 if wrong == "sum" else 5)
            got = torch.zeros_like(message[:, :6]).index_add(1, two if wrong == "ends" else one, message)
        else:
            gap = at[:, :, None] - at[:, None]
            square = gap.square().sum(-1, keepdim=True)
            n = x.shape[1]
            message = self.told(x[:, :, None].expand(-1, -1, n, -1), x[:, None].expand(-1, n, -1, -1), square)
            own = ~torch.eye(n, dtype=torch.bool)[..., None]
            moved = (gap / ((square + 1e-8).sqrt() + 1) * self.step(message) * own).sum(2) / (n - 1)
            got = (message * own).sum(2)
        return x + self.node(torch.cat([x, got], -1)), at + moved


class Atoms(nn.Module):
    def __init__(self, layers: list[nn.Module], top: str = "") -> None:
        super().__init__()
        self.top, self.first, self.layers, self.last = top, nn.Linear(5, W), nn.ModuleList(layers), nn.Linear(W, 3)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, first = self.first(x), at
        for number, layer in enumerate(self.layers):
            x, at = layer(x, first if self.top == "first" and number == 1 else at)
        return self.last(x), at


def both(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return out[0].float().square().mean() + out[1].float().square().mean()


family("atoms that move", "lists of pairs", lambda wrong="", top="": ported(
    Atoms([Moves() for _ in range(3)]), Atoms([Moves(wrong if n == 1 else "", True) for n in range(3)], top),
    (numbers(2, 6, 5), numbers(2, 6, 3)), loss=both), {
    "one index for both ends": ({"wrong": "same"}, SECOND, ""), "distances for squares": ({"wrong": "root"}, SECOND, ""),
    "gaps that are no unit": ({"wrong": "unit"}, SECOND, ""), "a sum of moves": ({"wrong": "sum"}, SECOND, ""),
    "messages at the other end": ({"wrong": "ends"}, SECOND, ""), "places before they moved": ({"top": "first"}, TOP, ""),
})  # fmt: skip


class Rows(nn.Module):
    """Attention along each sequence, with a bias of the pairs and a gate."""

    def __init__(self, wrong: str = "", kernel: bool = False) -> None:
        super().__init__()
        self.wrong, self.kernel, self.norm, self.bias = wrong, kernel, nn.LayerNorm(W), nn.Linear(8, 1, bias=False)
        self.qkv, self.gate, self.out = nn.Linear(W, 3 * W, bias=False), nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, pair: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y, wrong = self.norm(x), self.wrong
        q, k, v = self.qkv(y).chunk(3, -1)
        bias = self.bias(pair.transpose(1, 2) if wrong == "turned" else pair).squeeze(-1)[:, None]
        seen = torch.ones_like(mask) if wrong == "mask" else mask
        bias = bias.masked_fill(~seen[:, :, None], -math.inf)
        if self.kernel:
            made = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(-1, x.shape[1], -1, -1).to(q.dtype))
        else:
            made = (q @ k.mT / 4 + bias).softmax(-1).to(v.dtype) @ v
        gate = self.gate(x if wrong == "raw" else y)
        return x + self.out(made * (gate if wrong == "gate" else gate.sigmoid()))


class Outer(nn.Module):
    """The mean over sequences of products of two places."""

    def __init__(self, wrong: str = "", kernel: bool = False, loop: bool = False) -> None:
        super().__init__()
        self.loop, self.wrong, self.kernel, self.norm, self.ab, self.out = loop, wrong, kernel, nn.LayerNorm(W), nn.Linear(W, 8), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        wrong, here = self.wrong, mask[..., None].to(x.dtype)
        a, b = (self.ab(self.norm(x)) * (1 if wrong == "mask" else here)).chunk(2, -1)
        count = torch.einsum("bsi,bsj->bij", mask.to(x.dtype), mask.to(x.dtype))[..., None]
        if wrong == "outer":
            made = (a[:, :, :, None, :, None] + b[:, :, None, :, None]).sum(1)
        elif self.loop:
            made = sum(a[:, n, :, None, :, None] * b[:, n, None, :, None, :] for n in range(x.shape[1]))
        elif self.kernel:
            made = (a.flatten(2).mT @ b.flatten(2)).unflatten(1, (-1, 4)).unflatten(3, (-1, 4)).transpose(2, 3)
        else:
            made = torch.einsum("bsic,bsjd->bijcd", a, b)
        made = self.out((made.transpose(-1, -2) if wrong == "turned" else made).flatten(3))
        return made if wrong == "sum" else made / (x.shape[1] if wrong == "all" else count + 1e-3)


class Folds(nn.Module):
    def __init__(self, rows: str = "", outer: str = "", wrong: str = "", kernel: bool = False, loop: bool = False) -> None:
        super().__init__()
        self.wrong, self.rows, self.outer, self.feed = wrong, Rows(rows, kernel), Outer(outer, kernel, loop), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, pair: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.rows(x, pair, mask)
        pair = pair + self.outer(x if self.wrong == "before" else y, mask)
        return y, pair + F.relu(self.feed(pair))


class Related(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.first, self.pair, self.layers, self.last = nn.Linear(5, W), nn.Linear(5, 8), nn.ModuleList(layers), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pair = self.pair(x[:, 0])[:, :, None] + self.pair(x[:, 0])[:, None]
        x = self.first(x)
        for layer in self.layers:
            x, pair = layer(x, pair, mask)
        return self.last(pair), x


HERE = torch.ones(2, 4, 5, dtype=torch.bool)
HERE[0, 2:, 4], HERE[1, 3, 3:] = False, False
ROWS, OUTER = ("layers.1.rows",), ("layers.1.outer",)
family("related sequences", "products of rows", lambda loop=False, **bad: ported(
    Related([Folds() for _ in range(3)]), Related([Folds(**(bad if n == 1 else {}), kernel=True, loop=loop) for n in range(3)]),
    (numbers(2, 4, 5, 5), HERE), loss=both), {
    "an outer sum": ({"outer": "outer"}, OUTER, ""), "a sum over sequences": ({"outer": "sum"}, OUTER, ""),
    "gaps are counted": ({"outer": "all"}, OUTER, ""), "gaps are multiplied": ({"outer": "mask"}, OUTER, ""),
    "a gate without a sigmoid": ({"rows": "gate"}, ROWS, ""), "a mask of ones": ({"rows": "mask"}, ROWS, ""),
    "pairs turned round": ({"rows": "turned"}, ROWS, ""), "products of the rows before": ({"wrong": "before"}, SECOND, ""),
}, one_after_the_other={"loop": True})  # fmt: skip
