"""The twenty-seventh batch, last part: a codec's decoder, a transducer, groups of answers, molecules with forces.

The issues: samples cut off on the left (mlx-audio 391, vllm-omni 1241), a residual of the wrong tensor (ParallelWaveGAN 276), answers that are
averaged otherwise (trl 2995, 6439), a divergence of groups without a signal (trl 5597), advantages that are normed twice (gem 113), forces that are
not the gradient (OpenEquivariance 211), a norm that is left out (graph-pes 95).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_twentyfourth import TOP, B, W, ported
from pair_twentyseventh import Causal, family
from torch import nn


class Snake(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.alpha, self.beta = wrong, nn.Parameter(torch.zeros(W, 1)), nn.Parameter(torch.zeros(W, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        alpha, beta = self.alpha if self.wrong == "log" else self.alpha.exp(), (self.alpha if self.wrong == "same" else self.beta).exp()
        return x + (x * alpha).sin().square() / beta


class Up(nn.Module):
    """Twice as many samples, of which each depends on earlier ones alone, and a filter with gaps."""

    def __init__(self, gap: int = 1) -> None:
        super().__init__()
        self.snake, self.wider, self.inner, self.filter = Snake(), nn.ConvTranspose1d(W, W, 4, 2), Snake(), nn.Conv1d(W, W, 3, dilation=gap)
        self.scale = nn.Parameter(torch.ones(W))
        self.gap = gap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.wider(self.snake(x))[..., :-2]
        return x + self.scale[:, None] * self.filter(F.pad(self.inner(x), (2 * self.gap, 0)))


class Phases(nn.Module):
    """The same in two phases, each a filter of two taps, with time before channels."""

    def __init__(self, gap: int = 1, wrong: str = "", snake: str = "", stuffed: bool = False) -> None:
        super().__init__()
        self.gap, self.stuffed, self.wrong, self.snake, self.inner = gap, stuffed, wrong, Snake(snake), Snake()
        self.wider, self.filter = nn.ConvTranspose1d(W, W, 4, 2), nn.Conv1d(W, W, 3, dilation=gap)
        self.scale = nn.Parameter(torch.ones(W))

    def widened(self, x: torch.Tensor) -> torch.Tensor:
        if self.stuffed:
            y = torch.stack([x, torch.zeros_like(x)], -1).flatten(2)
            return F.conv1d(F.pad(y, (3, 0)), self.wider.weight.transpose(0, 1).flip(-1), self.wider.bias)
        weight, before = self.wider.weight, F.pad(x, (0, 1) if self.wrong == "left" else (1, 0))
        a, b = (before[..., 1:], before[..., :-1])
        phases = [torch.einsum("bct,cd->bdt", a, weight[..., n]) + torch.einsum("bct,cd->bdt", b, weight[..., n + 2]) for n in (0, 1)]
        phases = phases[::-1] if self.wrong == "phases" else phases
        return torch.stack(phases, -1).flatten(2) + (0 if self.wrong == "bias" else self.wider.bias[:, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.widened(self.snake(x))
        y = self.inner(x)
        pad = (self.gap, self.gap) if self.wrong == "both" else (2 * self.gap, 0)
        padded = F.pad(y, pad, mode="replicate" if self.wrong == "edge" else "constant")
        made = F.conv1d(padded, self.filter.weight, self.filter.bias, dilation=self.gap)
        return (y if self.wrong == "bent" else x) + self.scale[:, None] * made


CODES = torch.randint(12, (2, 3, 6), generator=torch.Generator().manual_seed(9))


class Voice(nn.Module):
    """Sums of codes of three books, of which the first has a projection of its own, then samples."""

    def __init__(self, layers: list[nn.Module], top: str = "") -> None:
        super().__init__()
        self.top, self.books = top, nn.ModuleList([nn.Embedding(12, 8) for _ in range(3)])
        self.first, self.others, self.layers, self.head = nn.Linear(8, W), nn.Linear(8, W), nn.ModuleList(layers), nn.Conv1d(W, 1, 3)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        top, found = self.top, [book(codes[:, n]) for n, book in enumerate(self.books)]
        if top == "order":
            found = [found[0], self.books[1](codes[:, 2]), self.books[2](codes[:, 1])]
        rest = found[1] if top == "two" else found[1] + found[2]
        x = self.others(found[0] + rest) if top == "one" else self.first(found[0]) + self.others(rest)
        x = x.mT
        for layer in self.layers:
            x = layer(x)
        return self.head(F.pad(x, (2, 0))).clamp(-4, 4) if top == "clamped" else torch.tanh(self.head(F.pad(x, (2, 0))))


def voice(wrong: str = "", snake: str = "", stuffed: bool = False, **ways: str) -> Made:
    model, gaps = Voice([Up(n + 1) for n in range(3)]), (1, 2, 3)
    other = Voice([Phases(gap, wrong if n == 1 else "", snake if n == 1 else "", stuffed) for n, gap in enumerate(gaps)], **ways)
    return ported(model, other, CODES)


family("a codec's decoder", "two phases", voice, {
    "cut off on the left": ({"wrong": "left"}, B, ""), "phases exchanged": ({"wrong": "phases"}, B, ""), "no bias": ({"wrong": "bias"}, B, ""),
    "padded on both sides": ({"wrong": "both"}, B, ""), "the edge repeated": ({"wrong": "edge"}, B, ""),
    "a residual that is bent": ({"wrong": "bent"}, B, ""),
    "rates without exp": ({"snake": "log"}, ("layers.1.snake",), ""), "one rate for both": ({"snake": "same"}, ("layers.1.snake",), ""),
    "books in another order": ({"top": "order"}, TOP, ""), "a book left out": ({"top": "two"}, TOP, ""), "one projection": ({"top": "one"}, TOP, ""),
    "clamped for bent": ({"top": "clamped"}, TOP, ""),
}, zeros_between_samples={"stuffed": True})  # fmt: skip

LENGTHS = (12, 7)
FRAMES = numbers(2, 12, 6)
SAID = torch.randint(1, 9, (2, 4), generator=torch.Generator().manual_seed(4))


class Mixing(nn.Module):
    """Half of a feed, attention over what is there, a filter over what is there, half of a feed."""

    def __init__(self, wrong: str = "", once: bool = False) -> None:
        super().__init__()
        self.wrong, self.once, self.before, self.after = wrong, once, nn.Linear(W, W), nn.Linear(W, W)
        self.norm, self.qkv, self.out, self.last = nn.LayerNorm(W), nn.Linear(W, 3 * W), nn.Linear(W, W), nn.LayerNorm(W)
        self.into, self.taps, self.back = nn.Conv1d(W, 2 * W, 1), nn.Conv1d(W, W, 3, groups=W, padding=1), nn.Conv1d(W, W, 1)

    def forward(self, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        wrong = self.wrong
        x = x + F.silu(self.before(x)) * (1 if wrong == "whole" else 0.5)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        if self.once:
            mask = None if wrong == "unmasked" else there[:, None]
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        else:
            x = x + self.out((q @ k.mT / 4).masked_fill(~there[:, None], -math.inf).softmax(-1) @ v)
        y = self.into(x.mT)
        a, b = y.chunk(2, 1)
        y = b * a.sigmoid() if wrong == "halves" else F.glu(y, 1) if self.once else a * b.sigmoid()
        y = y if wrong == "padding" else y * there[:, None]
        x = x + self.back(F.silu(self.taps(y))).mT
        x = x + F.silu(self.after(x)) * 0.5
        return x if wrong == "last" else self.last(x)


class Guess(nn.Module):
    """What follows the words so far, by a recurrent network that begins with zeros."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.words, self.cell, self.out = wrong, nn.Embedding(9, W, padding_idx=0), nn.LSTM(W, W, batch_first=True), nn.Linear(W, W)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        begun = self.words.weight[0].expand(len(x), 1, -1) + (1 if self.wrong == "begun" else 0)
        x = torch.cat([x[:, :1] if self.wrong == "first" else begun, x], 1)
        if self.wrong == "late":
            x = torch.cat([x[:, 1:], begun], 1)
        return self.out(self.cell(x)[0])


class Transducer(nn.Module):
    """Logits of each frame and each word so far. Two frames become one."""

    def __init__(self, once: bool = False, top: str = "", guess: str = "", wrong: str = "") -> None:
        super().__init__()
        self.once, self.top, self.sub = once, top, nn.Conv1d(6, W, 2, 2)
        self.layers = nn.ModuleList([Mixing(wrong if n == 1 else "", once) for n in range(3)])
        self.guess, self.hear, self.head = Guess(guess), nn.Linear(W, W), nn.Linear(W, 9)

    def forward(self, frames: torch.Tensor, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if self.top == "alone":
            rows = [self.joined(frames[n : n + 1, :count], words[n : n + 1], lengths[n : n + 1]) for n, count in enumerate(lengths.tolist())]
            return torch.cat([F.pad(each, (0, 0, 0, 0, 0, frames.shape[1] // 2 - each.shape[1])) for each in rows])
        return self.joined(frames, words, lengths)

    def joined(self, frames: torch.Tensor, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        top, x = self.top, self.sub(frames.mT).mT
        count = lengths if top == "lengths" else (lengths + 1) // 2 if top == "up" else lengths // 2
        there = torch.arange(x.shape[1]) < count[:, None]
        for layer in self.layers:
            x = layer(x, there)
        heard, said = self.hear(x), self.guess(words)
        joint = heard[:, :, None] + said[:, None]
        joint = joint.relu() if top == "relu" else torch.tanh(joint)
        logits = self.head(joint)
        return logits.log_softmax(1 if top == "frames" else -1) * there[:, :, None, None]


MIX = ("layers.1",)
family("a transducer", "the kernel of torch", lambda **bad: ported(
    Transducer(), Transducer(**{"once": True, **bad}), (FRAMES, SAID, torch.tensor(LENGTHS))), {
    "a whole feed for half": ({"wrong": "whole"}, MIX, ""), "padding is attended to": ({"wrong": "unmasked"}, MIX, ""),
    "halves of a gate exchanged": ({"wrong": "halves"}, MIX, ""), "padding in the filter": ({"wrong": "padding"}, MIX, ""),
    "no last norm": ({"wrong": "last"}, MIX, ""), "a start of ones": ({"guess": "begun"}, ("guess",), ""),
    "the first word twice": ({"guess": "first"}, ("guess",), ""), "words one early": ({"guess": "late"}, ("guess",), ""),
    "lengths of frames": ({"top": "lengths"}, TOP, ""), "lengths rounded up": ({"top": "up"}, TOP, ""), "relu for tanh": ({"top": "relu"}, TOP, ""),
    "shares of frames": ({"top": "frames"}, TOP, ""),
}, rows_alone={"top": "alone"})  # fmt: skip

ANSWERS = torch.randint(20, (4, 9), generator=torch.Generator().manual_seed(6))
REWARDS, PROMPT, ENDS, GROUP = torch.tensor([1.0, 0.0, 2.0, 0.5]), 3, torch.tensor([9, 7, 6, 9]), 2


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.attend, self.norm, self.head = nn.Embedding(20, W), Causal(), nn.LayerNorm(W), nn.Linear(W, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        return self.head(self.norm(x + self.attend(x)))


class Taught(nn.Module):
    """The loss of answers in groups of two, held near a fixed policy."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.fixed = Policy(), Policy()

    def forward(self, tokens: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            fixed = self.fixed(tokens)[:, :-1].float().log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
        logs = self.policy(tokens)[:, :-1].float().log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
        groups = rewards.view(-1, GROUP)
        gain = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
        ratio = (logs - fixed).exp()
        near = torch.minimum(ratio * gain[:, None], ratio.clamp(0.8, 1.2) * gain[:, None])
        apart = (fixed - logs).exp() - (fixed - logs) - 1
        places = torch.arange(1, tokens.shape[1])
        mask = (places >= PROMPT) & (places < ENDS[:, None])
        loss = (0.1 * apart - near) * mask
        return (loss.sum(1) / mask.sum(1)).mean()


class Trained(Taught):
    """The same by cross-entropies, with the gain of a ratio that is cut."""

    def __init__(self, top: str = "") -> None:
        super().__init__()
        self.top = top

    def logs(self, policy: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        if self.top == "alone":
            found = [policy(row[None, :end])[0, :-1].float().log_softmax(-1) for row, end in zip(tokens, ENDS.tolist(), strict=True)]
            found = [each.gather(-1, row[1 : len(each) + 1, None])[:, 0] for each, row in zip(found, tokens, strict=True)]
            return torch.stack([F.pad(each, (0, tokens.shape[1] - 1 - len(each))) for each in found])
        logits = policy(tokens)[:, :-1].float()
        logits = logits / 0.8 if self.top == "heat" and policy is self.policy else logits
        return -F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(len(tokens), -1)

    def forward(self, tokens: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
        top, logs = self.top, self.logs(self.policy, tokens)
        fixed = self.logs(self.fixed, tokens)
        fixed = fixed if top == "taught" else fixed.detach()
        groups = rewards.view(GROUP, -1).mT if top == "strided" else rewards.view(-1, GROUP)
        groups = rewards[None] if top == "batch" else groups
        spread = groups.std(1, keepdim=True, correction=0 if top == "biased" else 1) + 1e-4
        gain = (groups - groups.mean(1, keepdim=True)) / (1 if top == "plain" else spread)
        gain = (gain.mT if top == "strided" else gain).flatten()[:, None]
        ratio, down = (logs - fixed).exp(), fixed - logs if top != "sign" else logs - fixed
        cut = torch.where(gain > 0, ratio.clamp(max=1.2), ratio.clamp(min=0.8))
        cut = ratio.clamp(0.8, 1.2) if top == "cut" else cut
        mask = torch.arange(1, tokens.shape[1])
        first, ends = (PROMPT + 1 if top == "one late" else 1 if top == "prompt" else PROMPT), ENDS[:, None] + (1 if top == "end" else 0)
        mask = ((mask >= first) & (mask < ends)).to(logs.dtype)
        loss = mask * (0.1 * (torch.expm1(down) - down) - cut * gain)
        return loss.sum() / mask.sum() if top == "tokens" else (loss.sum(1) / mask.sum(1)).mean()


def trained(top: str = "") -> Made:
    model, other, inputs, given = ported(Taught(), Trained(top), (ANSWERS, REWARDS), loss=lambda out: out)
    if top != "taught":
        model.fixed.requires_grad_(False)
        other.fixed.requires_grad_(False)
    return model, other, inputs, given


family("groups of answers", "cross-entropies", trained, {
    "a mean of all tokens": ({"top": "tokens"}, TOP, ""), "groups of the whole batch": ({"top": "batch"}, TOP, ""),
    "groups by turns": ({"top": "strided"}, TOP, ""), "a biased spread": ({"top": "biased"}, TOP, ""), "no spread": ({"top": "plain"}, TOP, ""),
    "a divergence the other way": ({"top": "sign"}, TOP, ""), "the prompt counted": ({"top": "prompt"}, TOP, ""),
    "the first word left out": ({"top": "one late"}, TOP, ""), "the fixed policy is taught": ({"top": "taught"}, TOP, ""),
    "a heat": ({"top": "heat"}, TOP, ""), "a ratio cut on both sides": ({"top": "cut"}, TOP, ""),
}, answers_alone={"top": "alone"})  # fmt: skip
