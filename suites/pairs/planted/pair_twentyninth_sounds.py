"""The twenty-ninth batch, third part: a vocoder, a separator of sounds, attention that knows its past, durations.

The issues: slopes (hifi-gan 48, melgan 17), padding at the edges (melgan 17), a sum of branches (ParallelWaveGAN 276), a cumulative norm
(DNN-based_source_separation 101), gates of the encoder (DNN-based_source_separation 103), the mask's activation (pytorch/audio 2411), weights that
are summed (Tacotron-2 50), logarithms of durations (TensorFlowTTS 30), powers in places (speedyspeech 23).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pair_fourteenth_scans import numbers
from pair_twentyfifth import WORDS
from pair_twentyfourth import TOP, W, ported
from pair_twentyninth import SECOND, family
from torch import nn


class Branch(nn.Module):
    """Two dilated filters with a residual each."""

    def __init__(self, size: int, wrong: str = "") -> None:
        super().__init__()
        self.size, self.wrong, self.one, self.two = size, wrong, nn.Conv1d(8, 8, size), nn.Conv1d(8, 8, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step, conv in ((1, self.one), (2, self.two)):
            step = 1 if self.wrong == "dilation" else step
            side = (self.size - 1) * step // 2
            y = F.leaky_relu(x, 0.01 if self.wrong == "slope" else 0.1)
            y = F.pad(y, (side, side), mode="constant" if self.wrong == "zeros" else "reflect")
            x = x + F.conv1d(y, conv.weight, conv.bias, dilation=step)
        return x


class Vocoder(nn.Module):
    def __init__(self, stacked: bool = False, top: str = "", wrong: str = "") -> None:
        super().__init__()
        self.stacked, self.top, self.first, self.last = stacked, top, nn.Conv1d(6, 8, 3, padding=1), nn.Conv1d(8, 1, 3, padding=1)
        self.ups = nn.ModuleList([nn.ConvTranspose1d(8, 8, 4, 2, 1) for _ in range(2)])
        self.blocks = nn.ModuleList([Branch(3), Branch(5), Branch(3), Branch(5, wrong)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, top = self.first(x), self.top
        for number, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, 0.1))
            pair = self.blocks[2 * number : 2 * number + 2]
            if top == "chain" and number == 1:
                x = pair[1](pair[0](x)) / 2
            elif top == "sum" and number == 1:
                x = pair[0](x) + pair[1](x)
            else:
                x = torch.stack([each(x) for each in pair]).mean(0) if self.stacked else (pair[0](x) + pair[1](x)) / 2
        x = self.last(F.leaky_relu(x, 0.1 if top == "last" else 0.01))
        return x if top == "open" else x.tanh()


BRANCH = ("blocks.3",)
family("a vocoder", "branches in a stack", lambda **bad: ported(Vocoder(), Vocoder(True, **bad), numbers(2, 6, 9)), {
    "another slope of a branch": ({"wrong": "slope"}, BRANCH, ""), "zeros at the edge": ({"wrong": "zeros"}, BRANCH, ""),
    "no dilation": ({"wrong": "dilation"}, BRANCH, ""), "branches in a chain": ({"top": "chain"}, TOP, ""),
    "branches not divided": ({"top": "sum"}, TOP, ""), "another last slope": ({"top": "last"}, TOP, ""),
})  # fmt: skip


class Running(nn.Module):
    """A norm over all that was heard so far, of all channels."""

    def __init__(self, wrong: str = "", steps: bool = False) -> None:
        super().__init__()
        self.wrong, self.steps, self.gain, self.bias = wrong, steps, nn.Parameter(torch.ones(8, 1)), nn.Parameter(torch.zeros(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wrong, wide = self.wrong, x.to(torch.promote_types(x.dtype, torch.float32))
        if self.steps:
            parts = [wide[..., : n + 1] for n in range(x.shape[-1])]
            mean = torch.stack([each.mean((1, 2)) for each in parts], -1)[:, None]
            spread = torch.stack([each.var((1, 2), correction=1 if wrong == "one" else 0) for each in parts], -1)[:, None]
        else:
            count = 8 * torch.arange(1, x.shape[-1] + 1)
            mean = (wide.sum(1).cumsum(-1) / count)[:, None]
            spread = (wide.square().sum(1).cumsum(-1) / count)[:, None] - mean.square()
        if wrong == "whole":
            mean, spread = wide.mean((1, 2), keepdim=True), wide.var((1, 2), correction=0, keepdim=True)
        under = spread.sqrt() + 0.1 if wrong == "eps" else (spread + 0.1).sqrt()
        return ((wide - mean) / under * self.gain + self.bias).to(x.dtype)


class Separates(nn.Module):
    def __init__(self, wrong: str = "", norm: str = "", steps: bool = False, step: int = 1) -> None:
        super().__init__()
        self.wrong, self.step, self.norm = wrong, step, Running(norm, steps)
        self.into, self.depth, self.back = nn.Conv1d(8, 8, 1), nn.Conv1d(8, 8, 3, groups=8, dilation=step), nn.Conv1d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = 2 * self.step
        y = F.pad(self.norm(F.relu(self.into(x))), (side // 2, side // 2) if self.wrong == "later" else (side, 0))
        return x + self.back(self.depth(y))


class Separator(nn.Module):
    """Two sounds of one: masks of frames, which are added where they overlap."""

    def __init__(self, steps: bool = False, top: str = "", **second: str) -> None:
        super().__init__()
        self.steps, self.top = steps, top
        self.coder, self.gate, self.masks = nn.Conv1d(1, 8, 4, 2), nn.Conv1d(1, 8, 4, 2), nn.Conv1d(8, 16, 1)
        self.layers = nn.ModuleList([Separates(steps=steps, step=1 + n, **(second if n == 1 else {})) for n in range(3)])
        self.back = nn.ConvTranspose1d(8, 1, 4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top, made, gate = self.top, self.coder(x), self.gate(x)
        frames = made * gate if top == "gates" else F.relu(made) * gate.sigmoid()
        y = frames
        for layer in self.layers:
            y = layer(y)
        masks = self.masks(y)
        masks = masks.unflatten(1, (8, 2)).transpose(1, 2) if top == "order" else masks.unflatten(1, (2, 8))
        masks = masks.softmax(1) if top == "softmax" else F.relu(masks)
        made = masks * (y if top == "late" else frames)[:, None]
        if not self.steps:
            return self.back(made.flatten(0, 1)).unflatten(0, (len(x), 2))
        pieces = torch.einsum("bscf,ck->bskf", made, self.back.weight[:, 0])
        count = 2 * (pieces.shape[-1] - 1) + 4
        return F.fold(pieces.flatten(0, 1), (1, count), (1, 4), stride=(1, 2)).reshape(len(x), 2, 1, count) + self.back.bias


RUN = ("layers.1.norm",)
family("a separator", "frames that overlap", lambda **bad: ported(Separator(), Separator(True, **bad), numbers(2, 1, 20)), {
    "a norm of the whole": ({"norm": "whole"}, RUN, ""), "a spread of one less": ({"norm": "one"}, RUN, ""),
    "an eps outside the root": ({"norm": "eps"}, RUN, ""),
    "later frames are heard": ({"wrong": "later"}, SECOND, ""), "gates without functions": ({"top": "gates"}, TOP, ""),
    "shares for masks": ({"top": "softmax"}, TOP, ""), "masks of other frames": ({"top": "late"}, TOP, ""),
})  # fmt: skip


class Located(nn.Module):
    """Scores of the state, of the words and of where was looked before."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.state, self.words, self.place = wrong, nn.Linear(W, W), nn.Linear(W, W), nn.Linear(4, W, bias=False)
        self.filter, self.score = nn.Conv1d(2, 4, 3, padding=1, bias=False), nn.Linear(W, 1)

    def forward(self, state: torch.Tensor, words: torch.Tensor, last: torch.Tensor, all_before: torch.Tensor) -> torch.Tensor:
        pair = [all_before, last] if self.wrong == "order" else [last, all_before]
        places = self.place(self.filter(torch.stack(pair, 1).to(words.dtype)).mT)
        made = self.state(state)[:, None] + self.words(words) + places
        scores = self.score(made if self.wrong == "linear" else made.tanh()).squeeze(-1)
        return scores.sigmoid() if self.wrong == "sigmoid" else scores.softmax(-1)


class Speaks(nn.Module):
    def __init__(self, attend: nn.Module, top: str = "", whole: bool = False) -> None:
        super().__init__()
        self.top, self.whole, self.words, self.attend = top, whole, nn.Embedding(20, W), attend
        self.cell, self.out, self.before = nn.GRUCell(2 * W, W), nn.Linear(2 * W, 6), nn.Linear(6, W)

    def forward(self, tokens: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
        words, top = self.words(tokens), self.top
        state, seen = words.new_zeros(len(words), W), words.new_zeros(len(words), W)
        last = total = words.new_zeros(tokens.shape)
        made, all_of = [], F.relu(self.before(frames))
        for n in range(frames.shape[1]):
            given = all_of[:, n] if self.whole else F.relu(self.before(frames[:, n]))
            state = self.cell(torch.cat([given, seen], -1), state)
            last = self.attend(state, words, last, last if top == "last" else total)
            total = (total + last).detach() if top == "cut" else total + last
            seen = torch.einsum("bs,bsw->bw", last.to(words.dtype), words) if self.whole else (last[:, None].to(words.dtype) @ words).squeeze(1)
            made.append(torch.cat([state, seen.flip(0) if top == "batch" else seen], -1))
        return self.out(torch.stack(made, 1))


LOOK = ("attend",)
family("attention that knows its past", "frames at once", lambda wrong="", top="": ported(
    Speaks(Located()), Speaks(Located(wrong), top, True), (WORDS, numbers(3, 5, 6))), {
    "weights are not summed": ({"top": "last"}, TOP, ""), "sums that do not teach": ({"top": "cut"}, TOP, ""),
    "sums for weights": ({"wrong": "order"}, LOOK, ""), "no tanh": ({"wrong": "linear"}, LOOK, ""),
    "sigmoids for shares": ({"wrong": "sigmoid"}, LOOK, ""),
})  # fmt: skip


class Durations(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.conv, self.norm, self.out = wrong, nn.Conv1d(W, W, 3, padding=1), nn.LayerNorm(W), nn.Linear(W, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x.mT).mT
        y = F.relu(self.norm(y)) if self.wrong == "order" else self.norm(F.relu(y))
        return self.out(y).squeeze(-1)


TIMES = torch.tensor([[1, 2, 3, 1, 0, 2, 1, 1, 1], [2, 1, 1, 1, 2, 1, 1, 2, 1], [1, 1, 1, 1, 1, 1, 1, 1, 4]])


class Lengthens(nn.Module):
    """Words that last as long as their times say. The logarithm of a time and one is learned."""

    def __init__(self, placed: bool = False, top: str = "", wrong: str = "") -> None:
        super().__init__()
        self.placed, self.top, self.words, self.times = placed, top, nn.Embedding(20, W), Durations(wrong)
        self.level, self.mix, self.out = nn.Embedding(4, W), nn.Linear(W, W), nn.Linear(W, 6)

    def forward(self, tokens: torch.Tensor, times: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        top, x = self.top, self.words(tokens)
        told = self.times(x if top == "taught" else x.detach())
        x = x + self.level(times.clamp(max=3).flip(1) if top == "turned" else times.clamp(max=3))
        ends = times.cumsum(1)
        if self.placed:
            at = torch.searchsorted(ends, torch.arange(12).expand(len(ends), -1).contiguous(), right=top != "left").clamp(max=8)
            y = x.gather(1, at[..., None].expand(-1, -1, W))
        else:
            at = torch.arange(12)[None, :, None]
            y = ((at >= (ends - times)[:, None]) & (at < ends[:, None])).to(x.dtype) @ x
        powers = 50.0 ** (-torch.arange(W // 2) / (W // 2))
        powers = 50.0 ** -((torch.arange(W // 2) / W) ** 0.5) if top == "powers" else powers
        angles = torch.arange(12)[:, None] * powers
        y = y + torch.cat([angles.sin(), angles.cos()], -1).to(y.dtype)
        wanted = times.float() if top == "times" else times.float().log() if top == "log" else (times + 1).float().log()
        wanted = wanted.clamp(min=-1)
        return self.out(F.gelu(self.mix(y))), (told.float() - wanted).square()


def spoken(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return out[0].float().square().mean() + out[1].mean()


family("words that last", "places looked up", lambda **bad: ported(Lengthens(), Lengthens(True, **bad), (WORDS, TIMES), loss=spoken), {
    "no logarithm": ({"top": "times"}, TOP, ""), "a logarithm without one": ({"top": "log"}, TOP, ""),
    "another power": ({"top": "powers"}, TOP, ""), "times that teach the words": ({"top": "taught"}, TOP, ""),
    "a word too long": ({"top": "left"}, TOP, ""), "a norm before its function": ({"wrong": "order"}, ("times",), ""),
})  # fmt: skip
