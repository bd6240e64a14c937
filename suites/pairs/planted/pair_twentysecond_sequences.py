"""The twenty-second batch, third part: recurrences of another library, caches, padding, packed rows, backends of attention, scans.

Three layers, of which the second has the fault. Faults as such ports have them: a candidate that is reset too early, a state taken at the padding, a
mask that begins at the other corner, a cache that drops its newest token.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, spread
from pair_fourteenth_scans import numbers
from pair_twentysecond import family
from torch import nn

W, LENGTH = 16, 9
ROWS = numbers(3, LENGTH, 6)
LENGTHS = torch.tensor([9, 4, 6])
KEPT = torch.arange(LENGTH) < LENGTHS[:, None]
B = ("layers.1",)


class Net(nn.Module):
    """Three layers of a kind. `second`: what the second alone is given."""

    def __init__(self, kind: Any, second: dict[str, Any] | None = None, **ways: Any) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(6, W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([kind(**ways), kind(**{**ways, **(second or {})}), kind(**ways)])

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for layer in self.layers:
            x = layer(x, *more)
        return self.head(x)


def ported(model: Any, other: Any, inputs: Any = ROWS, convert: Any = dict, loss: Any = None) -> Made:
    torch.manual_seed(0)
    model = spread(model())
    other.load_state_dict(convert(dict(model.state_dict())))
    return model, other, inputs, dict(MEAN) if loss is None else {"loss": loss}


class Gated(nn.Module):
    """A gated cell, with torch's layer or by hand. Its library has the update gate first, and a bias of the candidate inside of the reset."""

    def __init__(self, own: bool = False, early: bool = False, turned: bool = False, order: bool = False, behind: bool = False) -> None:
        super().__init__()
        self.own, self.early, self.turned, self.order, self.behind = own, early, turned, order, behind
        if own:
            self.given, self.held = nn.Linear(W, 3 * W), nn.Linear(W, 3 * W)
        else:
            self.cell = nn.GRU(W, W, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.own:
            return x + self.cell(x)[0]
        h, states = x.new_zeros(len(x), W), []
        for row in x.unbind(1):
            z, r, n = self.given(row).chunk(3, -1)
            uz, ur, un = self.held(h).chunk(3, -1)
            z, r = (z + uz).sigmoid(), (r + ur).sigmoid()
            z, r = (r, z) if self.order else (z, r)
            if self.early:
                un = F.linear(r * h, self.held.weight[2 * W :], self.held.bias[2 * W :])
            n = torch.tanh(n + (un if self.early else r * un))
            before, h = h, (z * n + (1 - z) * h if self.turned else (1 - z) * n + z * h)
            states.append(before if self.behind else h)
        return x + torch.stack(states, 1)


def gates(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {}
    for name, value in state.items():
        if ".cell." in name:
            r, z, n = value.chunk(3)
            new = name.replace("cell.weight_ih_l0", "given.weight").replace("cell.weight_hh_l0", "held.weight")
            found[new.replace("cell.bias_ih_l0", "given.bias").replace("cell.bias_hh_l0", "held.bias")] = torch.cat([z, r, n])
        else:
            found[name] = value
    return found


def gated(**second: Any) -> Made:
    return ported(lambda: Net(Gated), Net(Gated, second, own=True), convert=gates)


family("gated cells", "gates in another order", gated, {
    "reset before the product": ({"early": True}, B, ""), "the update turned round": ({"turned": True}, B, ""),
    "gates of torch": ({"order": True}, B, ""), "states one step late": ({"behind": True}, B, "shift|"),
})  # fmt: skip


class Both(nn.Module):
    """Two directions over rows of other lengths. `form`: torch's packed rows, each row alone, or all with a mask."""

    def __init__(self, form: str = "packed", whole: bool = False, summed: bool = False, swapped: bool = False, leaks: bool = False) -> None:
        super().__init__()
        self.form, self.whole, self.summed, self.swapped, self.leaks = form, whole, summed, swapped, leaks
        self.there, self.back, self.join = nn.LSTM(W, 8, batch_first=True), nn.LSTM(W, 8, batch_first=True), nn.Linear(16, W)

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        lengths = kept.sum(1)
        if self.form == "rows":
            parts = [self._both(row[None, :count], None) for row, count in zip(x, lengths.tolist(), strict=True)]
            y = torch.cat([F.pad(part, (0, 0, 0, x.shape[1] - part.shape[1])) for part in parts])
        else:
            y = self._both(x, lengths)
        y = self.join(y)
        return x + (y if self.leaks else y * kept[..., None])

    def _both(self, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        def turned(y: torch.Tensor) -> torch.Tensor:
            if lengths is None or self.whole:
                return y.flip(1)
            places = torch.arange(y.shape[1])
            where = torch.where(places < lengths[:, None], lengths[:, None] - 1 - places, places)
            return y.gather(1, where[..., None].expand(-1, -1, y.shape[2]))

        def run(layer: nn.Module, y: torch.Tensor) -> torch.Tensor:
            if self.form != "packed" or lengths is None:
                return layer(y)[0]
            packed = nn.utils.rnn.pack_padded_sequence(y, lengths, batch_first=True, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=y.shape[1])[0]

        there, back = run(self.there, x), turned(run(self.back, turned(x)))
        return torch.cat([there + back, there - back] if self.summed else [back, there] if self.swapped else [there, back], -1)


def both(form: str = "mask", **second: Any) -> Made:
    return ported(lambda: Net(Both), Net(Both, second, form=form), (ROWS, KEPT), loss=lambda out: (out * KEPT[..., None]).float().square().mean())


family("two directions", "a mask for packed rows", both, {
    "turned round with their padding": ({"whole": True}, B, ""), "the other direction first": ({"swapped": True}, B, ""),
    "sums for both": ({"summed": True}, B, ""),
}, each_row_alone={"form": "rows"})  # fmt: skip


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, scale: float = 8**-0.5) -> torch.Tensor:
    return ((q @ k.mT).float() * scale).masked_fill(~seen, -1e9).softmax(-1).to(v.dtype) @ v


class Cached(nn.Module):
    """Causal attention, with three tokens at a time and a cache, or one."""

    def __init__(self, size: int = 0, corner: bool = False, drops: bool = False, stale: bool = False, window: int = 0, keys: bool = False) -> None:
        super().__init__()
        self.size, self.corner, self.drops, self.stale, self.window, self.keys = size, corner, drops, stale, window, keys
        self.norm, self.qkv, self.out = nn.LayerNorm(W), nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made, kept = [], None
        for piece in x.split(self.size or x.shape[1], 1):
            y = self.norm(piece)
            q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(y).chunk(3, -1))
            if kept is not None:
                k, v = torch.cat([kept[0], k], 2), torch.cat([kept[1], kept[1][:, :, -1:].expand_as(v) if self.stale else v], 2)
            kept = (k[:, :, :-1], v[:, :, :-1]) if self.drops else (k, k) if self.keys else (k, v)
            count, all_ = q.shape[2], k.shape[2]
            seen = torch.ones(count, all_, dtype=torch.bool).tril(0 if self.corner else all_ - count)
            seen = seen.triu(all_ - count - self.window + 1) if self.window else seen
            made.append(self.out(attend(q, k, v, seen).transpose(1, 2).flatten(2)))
        return x + torch.cat(made, 1)


def cached(size: int = 3, **second: Any) -> Made:
    return ported(lambda: Net(Cached), Net(Cached, second, size=size))


family("a cache", "three tokens at a time", cached, {
    "a mask from the first corner": ({"corner": True}, B, "mask|"), "the newest token is dropped": ({"drops": True}, B, ""),
    "values of the token before": ({"stale": True}, B, ""), "a window of four": ({"window": 4}, B, "mask|window"),
    "keys kept as values": ({"keys": True}, B, ""),
}, one_at_a_time={"size": 1})  # fmt: skip


class Left(nn.Module):
    """Attention with rotary places over rows that are padded to the left, or to the right."""

    def __init__(self, left: bool = False, absolute: bool = False, sees: bool = False, shifted: bool = False, kernel: bool = False) -> None:
        super().__init__()
        self.left, self.absolute, self.sees, self.shifted, self.kernel = left, absolute, sees, shifted, kernel
        self.qkv, self.out, self.gain = nn.Linear(W, 3 * W), nn.Linear(W, W), nn.Parameter(torch.ones(LENGTH + 1, W))

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1]).expand(kept.shape) if self.absolute else (kept.cumsum(1) - 1).clamp(min=0)
        places = places + (1 if self.shifted else 0)
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x * self.gain[places]).chunk(3, -1))
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() & (torch.ones_like(kept) if self.sees else kept)[:, None, None]
        seen = seen | torch.eye(x.shape[1], dtype=torch.bool)
        made = F.scaled_dot_product_attention(q, k, v, seen) if self.kernel else attend(q, k, v, seen)
        return x + self.out(made.transpose(1, 2).flatten(2)) * kept[..., None]


class Padded(nn.Module):
    """A net on rows whose padding is moved to the left for it, and back."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        count = kept.sum(1, keepdim=True)
        there = (torch.arange(LENGTH) - LENGTH + count) % LENGTH
        back = (torch.arange(LENGTH) + LENGTH - count) % LENGTH

        def moved(y: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
            return y.gather(1, where[..., None].expand(-1, -1, y.shape[2]))

        return moved(self.net(moved(x, there), kept.gather(1, there)), back) * kept[..., None]


class Right(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        return self.net(x, kept) * kept[..., None]


def left(kernel: bool = True, **second: Any) -> Made:
    return ported(lambda: Right(Net(Left)), Padded(Net(Left, second, kernel=kernel)), (ROWS, KEPT))


N = ("net.layers.1",)
family("left padding", "by torch's kernel", left, {
    "places of the padded row": ({"absolute": True}, N, ""), "padding is seen": ({"sees": True}, N, "mask|"),
    "places from one": ({"shifted": True}, N, ""),
}, written={"kernel": False})  # fmt: skip


class Selective(nn.Module):
    """A scan with a state, step by step or as one matrix of decays."""

    def __init__(
        self, matrix: bool = False, bias: bool = True, skip: bool = True, late: bool = False, plain: bool = False, euler: bool = False
    ) -> None:
        super().__init__()
        self.matrix, self.bias, self.skip, self.late, self.plain, self.euler = matrix, bias, skip, late, plain, euler
        self.inside, self.out = nn.Linear(W, W + 4 + 4 + 1), nn.Linear(W, W)
        self.rate, self.shift, self.gain = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, b, c, step = self.inside(x).float().split([W, 4, 4, 1], -1)
        step = step + self.shift if self.bias else step
        step = step.exp() if self.plain else F.softplus(step)
        decay = -step * self.rate.float().exp()
        if self.matrix:
            total = decay[..., 0].cumsum(1)
            apart = total[:, :, None] - total[:, None] - (decay[..., 0][:, :, None] if self.late else 0)
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            weights = apart.masked_fill(hidden, -math.inf).exp() * (c @ b.mT)
            y = weights @ (u if self.euler else step * u)
        else:
            h, made = u.new_zeros(len(u), W, 4), []
            for at in range(x.shape[1]):
                h = decay[:, at, :, None].exp() * h + (step[:, at] * u[:, at])[..., None] * b[:, at, None]
                made.append((h @ c[:, at, :, None])[..., 0])
            y = torch.stack(made, 1)
        y = y + self.gain * u if self.skip else y
        return x + self.out(torch.tanh(y).to(x.dtype))


def selective(**second: Any) -> Made:
    return ported(lambda: Net(Selective), Net(Selective, second, matrix=True))


family("selective scan", "one matrix of decays", selective, {
    "no bias of the step": ({"bias": False}, B, ""), "no skip": ({"skip": False}, B, ""), "decays one step late": ({"late": True}, B, ""),
    "an exponential for softplus": ({"plain": True}, B, ""), "inputs without their step": ({"euler": True}, B, ""),
})  # fmt: skip
