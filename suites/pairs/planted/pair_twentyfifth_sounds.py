"""The twenty-fifth batch, fourth part: sounds with shifted distances, a voice, words that are copied.

The issues: a mask that is turned round (torchTextClassifiers 92), a mask that is not handed on (mistral-inference 218), a stop of
the gradient in the wrong place (fql 8).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_twentyfifth import WORDS
from pair_twentyfourth import LENGTH, TOP, B, W, family, ported
from torch import nn


class Relative(nn.Module):
    """Attention by words and by distances. Scores of distances are shifted, or picked by `picks`."""

    def __init__(self, picks: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.picks, self.wrong, self.qkv, self.place, self.out = picks, wrong, nn.Linear(W, 3 * W), nn.Linear(W, W, bias=False), nn.Linear(W, W)
        self.u, self.v = nn.Parameter(torch.zeros(W)), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor, waves: torch.Tensor, padded: torch.Tensor | None) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        u, w = (self.v, self.u) if self.wrong == "biases" else (self.u, self.v)
        far = (q + w) @ self.place(waves).T
        n = x.shape[1]
        if self.picks:
            place = n - 1 + torch.arange(n) - torch.arange(n)[:, None]
            place = (place + 1).clamp(max=2 * n - 2) if self.wrong == "late" else place.flip(1) if self.wrong == "back" else place
            far = far.gather(2, place.expand(len(x), -1, -1))
        else:
            far = F.pad(far, (1, 0)).flatten(1)[:, n:].view(len(x), n, 2 * n - 1)[..., :n] if n else far
        scores = ((q + u) @ k.mT + far) / math.sqrt(W)
        if padded is not None and self.wrong != "mask":
            scores = scores.masked_fill(padded[:, None], -math.inf)
        return self.out(scores.softmax(-1) @ v)


class Taps(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.into, self.taps, self.norm, self.out = (
            wrong,
            nn.Linear(W, 2 * W),
            nn.Conv1d(W, W, 3, groups=W),
            nn.LayerNorm(W),
            nn.Linear(W, W),
        )

    def forward(self, x: torch.Tensor, padded: torch.Tensor | None) -> torch.Tensor:
        value, gate = self.into(x).chunk(2, -1)
        y = gate * value.sigmoid() if self.wrong == "gate" else value * gate.sigmoid()
        y = y if padded is None else y.masked_fill(padded[..., None], 0)
        y = self.taps(F.pad(y.mT, (2, 0) if self.wrong == "causal" else (1, 1))).mT
        return self.out(F.silu(self.norm(y)))


class Sandwich(nn.Module):
    """Half a layer, attention, taps, half a layer, and a norm."""

    def __init__(self, picks: bool = False, wrong: str = "", attend: str = "", taps: str = "") -> None:
        super().__init__()
        self.wrong, self.attend, self.taps, self.last = wrong, Relative(picks, attend), Taps(taps), nn.LayerNorm(W)
        self.norms, self.feeds = nn.ModuleList([nn.LayerNorm(W) for _ in range(4)]), nn.ModuleList([nn.Linear(W, W) for _ in range(2)])

    def forward(self, x: torch.Tensor, waves: torch.Tensor, padded: torch.Tensor | None) -> torch.Tensor:
        x = x + F.silu(self.feeds[0](self.norms[0](x))) * (1.0 if self.wrong == "half" else 0.5)
        x = x + self.attend(self.norms[1](x), waves, padded)
        x = x + self.taps(self.norms[2](x), None if self.wrong == "taps" else padded)
        x = x + F.silu(self.feeds[0 if self.wrong == "feed" else 1](self.norms[3](x))) * 0.5
        return x if self.wrong == "last" else self.last(x)


class Speech(nn.Module):
    def __init__(self, picks: bool = False, top: str = "", **second: str) -> None:
        super().__init__()
        self.top, self.inside, self.head = top, nn.Linear(6, W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Sandwich(picks), Sandwich(picks, **second), Sandwich(picks)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, lengths = x.shape[1], torch.tensor([x.shape[1], 6, 4])
        padded = torch.arange(n) >= lengths[:, None] - (1 if self.top == "shorter" else 0)
        distances = torch.arange(n - 1, -n, -1, dtype=x.dtype) * (-1 if self.top == "signs" else 1)
        rates = 20.0 ** (-torch.arange(W // 2, dtype=x.dtype) / (W // 2))
        waves = torch.cat([(distances[:, None] * rates).sin(), (distances[:, None] * rates).cos()], -1)
        x = self.inside(x) * (1 if self.top == "scale" else math.sqrt(W))
        for number, layer in enumerate(self.layers):
            x = layer(x, waves, None if self.top == "none" and number == 1 else padded)
        return self.head(x).masked_fill(torch.arange(n)[..., None] >= lengths[:, None, None], 0)


family("sounds by distances", "scores that are picked", lambda **bad: ported(Speech(), Speech(**{"picks": True, **bad})), {
    "one distance late": ({"attend": "late"}, ("layers.1.attend",), ""), "distances the other way": ({"attend": "back"}, ("layers.1.attend",), ""),
    "biases exchanged": ({"attend": "biases"}, ("layers.1.attend",), ""), "padding seen": ({"attend": "mask"}, ("layers.1.attend",), ""),
    "the gate for the value": ({"taps": "gate"}, ("layers.1.taps",), ""), "taps of the past": ({"taps": "causal"}, ("layers.1.taps",), ""),
    "a whole layer for half": ({"wrong": "half"}, B, ""), "padding in the taps": ({"wrong": "taps"}, B, ""),
    "one layer twice": ({"wrong": "feed"}, B, ""),
    "no last norm": ({"wrong": "last"}, B, ""), "signs of distances": ({"top": "signs"}, TOP, ""), "not scaled": ({"top": "scale"}, TOP, ""),
    "no padding in one layer": ({"top": "none"}, TOP, ""), "a sound too short": ({"top": "shorter"}, TOP, ""),
}, as_it_is={"picks": False})  # fmt: skip


class Heard(nn.Module):
    """Where a voice listens, by its state and by where it has listened."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.q, self.k, self.taps, self.far, self.score = (
            wrong,
            nn.Linear(W, W),
            nn.Linear(W, W),
            nn.Conv1d(2, 4, 3, padding=1),
            nn.Linear(4, W),
            nn.Linear(W, 1),
        )

    def forward(self, state: torch.Tensor, memory: torch.Tensor, last: torch.Tensor, all_: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
        where = self.far(
            self.taps(torch.stack([all_, last] if self.wrong == "order" else [last, last] if self.wrong == "last" else [last, all_], 1)).mT
        )
        scores = self.score(torch.tanh(self.q(state)[:, None] + self.k(memory) + where))[..., 0]
        return (scores if self.wrong == "mask" else scores.masked_fill(padded, -math.inf)).softmax(-1)


class Voice(nn.Module):
    """Frames one after the other from a memory of words. `hand`: cells by their formulas."""

    def __init__(self, hand: bool = False, listen: str = "", top: str = "") -> None:
        super().__init__()
        self.hand, self.top, self.words, self.before, self.listen = hand, top, nn.Embedding(20, W), nn.Linear(6, W), Heard(listen)
        self.first, self.second, self.frame, self.stop = nn.LSTMCell(2 * W, W), nn.LSTMCell(2 * W, W), nn.Linear(2 * W, 6), nn.Linear(2 * W, 1)
        self.after = nn.Conv1d(6, 6, 3, padding=1)

    def forward(self, tokens: torch.Tensor, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        memory, top = self.words(tokens), self.top
        padded = torch.arange(tokens.shape[1]) >= torch.tensor([LENGTH, 7, 5])[:, None]
        padded = ~padded if top == "mask" else padded
        given = F.relu(self.before(frames if top == "late" else F.pad(frames, (0, 0, 1, 0))[:, :-1]))
        zero = memory[:, 0] * 0
        h, c, h2, c2, context = zero, zero, zero, zero, zero
        last = all_ = torch.zeros(tokens.shape, dtype=memory.dtype)
        made = []
        for piece in given.unbind(1):
            h, c = self.run(self.first, torch.cat([context, piece] if top == "join" else [piece, context], -1), h, c)
            last = self.listen(h2 if top == "state" else h, memory, last, all_, padded).to(memory.dtype)
            all_ = last if top == "forgets" else all_ + last
            new = (last[:, None] @ memory)[:, 0]
            h2, c2 = self.run(self.second, torch.cat([h, context if top == "context" else new], -1), *((c2, h2) if top == "exchanged" else (h2, c2)))
            context = new
            made.append(torch.cat([h2, context], -1))
        out = torch.stack(made, 1)
        frame = self.frame(out)
        return (self.after(frame.mT).mT if top == "rest" else frame + self.after(frame.mT).mT), self.stop(out)

    def run(self, cell: nn.LSTMCell, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.hand:
            h, c = cell(x, (h, c))
            return h, c
        i, f, g, o = (F.linear(x, cell.weight_ih, cell.bias_ih) + F.linear(h, cell.weight_hh, cell.bias_hh)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


def spoken(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return out[0].float().square().mean() + F.softplus(out[1].float()).mean()


family("a voice", "cells by hand", lambda **bad: ported(Voice(), Voice(**{"hand": True, **bad}), (WORDS, numbers(3, 4, 6)), loss=spoken), {
    "the last place alone": ({"listen": "last"}, ("listen",), ""), "places exchanged": ({"listen": "order"}, ("listen",), ""),
    "padding heard": ({"listen": "mask"}, ("listen",), ""),
    "a mask turned round": ({"top": "mask"}, TOP, ""), "frames not shifted": ({"top": "late"}, TOP, ""),
    "joined the other way": ({"top": "join"}, TOP, ""),
    "the state of the second cell": ({"top": "state"}, TOP, ""), "where it listened is forgotten": ({"top": "forgets"}, TOP, ""),
    "the context before": ({"top": "context"}, TOP, ""), "both states exchanged": ({"top": "exchanged"}, TOP, ""),
    "no residual at the end": ({"top": "rest"}, TOP, ""),
    "a cell with its states exchanged": ({"top": "exchanged", "hand": False}, TOP, ""),
    "cells given the last context": ({"top": "context", "hand": False}, TOP, ""),
}, as_it_is={"hand": False})  # fmt: skip


class Copied(nn.Module):
    """Words that are said or copied: shares of a vocabulary, to which those of the source are added. `matrix`: by a product with their places."""

    def __init__(self, matrix: bool = False, second: str = "", top: str = "") -> None:
        super().__init__()
        self.matrix, self.top, self.words, self.read = matrix, top, nn.Embedding(20, W), nn.GRU(W, W, batch_first=True)
        self.layers, self.gate, self.head = (
            nn.ModuleList([Cover(second if n == 1 else "") for n in range(2)]),
            nn.Linear(2 * W, 1),
            nn.Linear(2 * W, 20),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        source, said = tokens[:, :5], tokens[:, 5:]
        memory, state = self.read(self.words(source))
        state = memory[:, 0] if self.top == "first" else state[0]
        covered, made = [memory[..., 0] * 0] * 2, []
        for word in self.words(said).unbind(1):
            x = state + word
            for number, layer in enumerate(self.layers):
                x, shares = layer(x, memory, covered[0] if self.top == "covered" else covered[number])
                covered = [each + shares if n == number and self.top != "forgets" else each for n, each in enumerate(covered)]
            both = torch.cat([x, state if self.top == "gate" else word], -1)
            gate, said_ = self.gate(both).sigmoid(), self.head(both).softmax(-1)
            gate = 1 - gate if self.top == "turned" else gate
            ids = source.roll(1, 1) if self.top == "ids" else source
            copied = (1 - gate) * shares
            if self.matrix:
                made.append(gate * said_ + (copied[:, None] @ F.one_hot(ids, 20).to(copied.dtype))[:, 0])
            else:
                made.append((gate * said_).scatter_add(1, ids, copied.to(torch.result_type(gate, said_))))
            state = x.detach() if self.top == "cut" else x
        return torch.stack(made, 1)


class Cover(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.q, self.k, self.cover, self.score, self.norm = (
            wrong,
            nn.Linear(W, W),
            nn.Linear(W, W),
            nn.Linear(1, W),
            nn.Linear(W, 1),
            nn.LayerNorm(W),
        )

    def forward(self, x: torch.Tensor, memory: torch.Tensor, covered: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        known = 0 if self.wrong == "cover" else self.cover(covered[..., None])
        scores = self.score(torch.tanh(self.q(x)[:, None] + self.k(memory) + known))[..., 0]
        shares = scores.sigmoid() / 5 if self.wrong == "each" else scores.softmax(-1)
        read = (shares[:, None] @ memory)[:, 0]
        return x + self.norm(x + read if self.wrong == "sum" else read), shares


def copied(**bad: Any) -> Made:
    return ported(Copied(), Copied(**{"matrix": True, **bad}), WORDS, loss=lambda out: -(out.float() + 1e-3).log()[..., 3].mean())


family("words that are copied", "by a product", copied, {
    "cover not read": ({"second": "cover"}, B, ""), "shares of each": ({"second": "each"}, B, ""), "a sum in the norm": ({"second": "sum"}, B, ""),
    "the first state": ({"top": "first"}, TOP, ""), "the cover of another layer": ({"top": "covered"}, TOP, ""),
    "no cover kept": ({"top": "forgets"}, TOP, ""),
    "a gate by the state": ({"top": "gate"}, TOP, ""), "a gate turned round": ({"top": "turned"}, TOP, ""),
    "the word before": ({"top": "ids"}, TOP, ""),
    "states that teach nothing": ({"top": "cut"}, TOP, ""),
}, as_it_is={"matrix": False})  # fmt: skip
