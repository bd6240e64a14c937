"""Engines: flows of actions, losses of a flow, weights of atoms, noise of half, norms of large activations."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class Actions(nn.Module):
    """A flow from noise to actions, whose network is told how far the flow has come by waves of that number."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.wide = wide
        self.frequencies = 1000 * torch.exp(-0.25 * torch.arange(16))
        self.time, self.enter, self.leave = nn.Linear(32, 48), nn.Linear(6, 48), nn.Linear(48, 6)

    def waves(self, share: torch.Tensor) -> torch.Tensor:
        share = share if self.wide else share.to(self.time.weight.dtype)  # culprit: flow-of-actions
        angle = share.float()[:, None] * self.frequencies
        return torch.cat([torch.cos(angle), torch.sin(angle)], -1).to(self.time.weight.dtype)

    def forward(self, actions: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        gate = torch.nn.functional.silu(3 * self.time(self.waves(share)))
        return self.leave(torch.tanh(self.enter(actions)) * (1 + gate))


def flow_of_actions(wide: bool) -> torch.Tensor:
    """Where sixty actions flow to, which have come as far as chance says. Off by 28 %."""
    share, goal = uniform(60), normal(60, 6).to(LOW)
    actions = (share[:, None] * goal.float() + (1 - share[:, None]) * normal(60, 6, seed=1)).to(LOW)
    with torch.no_grad():
        return wider(Actions(wide).to(LOW)(actions, share))


class Voice(nn.Module):
    """A flow between what is said and how it sounds, with a prior that a text network gives."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.wide = wide
        self.text, self.sound = nn.Linear(12, 16), nn.Linear(20, 16)
        self.bend = nn.Linear(4, 8)

    def flow(self, z: torch.Tensor) -> torch.Tensor:
        left, right = z.chunk(2, -1)
        shift, scale = self.bend(left).chunk(2, -1)
        return torch.cat([left, right * torch.exp(0.3 * torch.tanh(scale)) + shift], -1)

    def forward(self, text: torch.Tensor, sound: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mean, log_scale = self.text(text).chunk(2, -1)
        log_scale = log_scale - 5.5
        middle, log_spread = self.sound(sound).chunk(2, -1)
        z = self.flow(middle + torch.exp(log_spread) * normal(*middle.shape, seed=5).to(middle.dtype))
        if self.wide:
            mean, log_scale, log_spread, z = mean.float(), log_scale.float(), log_spread.float(), z.float()
        loss = log_scale - log_spread - 0.5
        loss = loss + 0.5 * (z - mean).square() * torch.exp(-2 * log_scale)  # culprit: prior-of-a-voice
        return (loss * mask[:, None]).sum(-1) / 8


def prior_of_a_voice(wide: bool) -> torch.Tensor:
    """The loss of forty frames, the last ten of which are padding. Inf."""
    mask = (torch.arange(40) < 30).to(HALF)
    with torch.no_grad():
        return wider(Voice(wide).to(HALF)(normal(40, 12).to(HALF), normal(40, 20, seed=1).to(HALF), mask))


class Readout(nn.Module):
    """Sums the atoms of each molecule by weights that the atoms are given."""

    def __init__(self, steady: bool) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.steady = steady
        self.embed, self.score, self.out = nn.Linear(6, 24), nn.Linear(24, 1), nn.Linear(24, 3)

    def forward(self, atoms: torch.Tensor, molecule: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.embed(atoms))
        score = 60 * self.score(hidden).squeeze(-1)
        if self.steady:
            most = torch.full((int(molecule.max()) + 1,), -torch.inf, dtype=score.dtype)
            score = score - most.scatter_reduce(0, molecule, score, "amax")[molecule]
        weight = torch.exp(score)  # culprit: weights-of-atoms
        total = torch.zeros(int(molecule.max()) + 1, dtype=weight.dtype).index_add(0, molecule, weight)
        share = weight / total[molecule]
        return self.out(torch.zeros(len(total), 24, dtype=hidden.dtype).index_add(0, molecule, share[:, None] * hidden))


def weights_of_atoms(steady: bool) -> torch.Tensor:
    """Of twelve molecules of five atoms, some of which have atoms that stand out. NaN."""
    with torch.no_grad():
        return wider(Readout(steady).to(HALF)(normal(60, 6).to(HALF), torch.arange(60) // 5))


class Explorer(nn.Module):
    """A policy that adds noise of a double exponential to its scores, and takes the highest."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.wide = wide
        self.scores = nn.Linear(8, 20)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        scores = self.scores(states)
        drawn = torch.float32 if self.wide else scores.dtype
        draw = torch.rand(scores.shape, dtype=drawn, generator=torch.Generator().manual_seed(0))  # culprit: noise-from-nought
        return scores - torch.log(-torch.log(draw)).to(scores.dtype)  # culprit: noise-from-nought


def noise_from_nought(wide: bool) -> torch.Tensor:
    """Scores of 400 states. A draw of 2048 is nought in half, and its noise is infinite. Inf."""
    with torch.no_grad():
        return wider(Explorer(wide).to(HALF)(normal(400, 8).to(HALF)))


class Block(nn.Module):
    """A block of a language model, which scales its rows before attention and before its middle layers."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(10)
        self.wide = wide
        self.query, self.key, self.value = (nn.Linear(32, 32, bias=False) for _ in range(3))
        self.up, self.down = nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        inner = x.float() if self.wide else x
        return (inner * torch.rsqrt(inner.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)  # culprit: rows-with-an-outlier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.norm(x)
        x = x + nn.functional.scaled_dot_product_attention(self.query(seen), self.key(seen), self.value(seen))
        return self.down(nn.functional.silu(self.up(self.norm(x))))


def rows_with_an_outlier(wide: bool) -> torch.Tensor:
    """Of 20 tokens, the first of which has one activation of 400, as large models have. Its row becomes nought."""
    x = normal(20, 32)
    x[0, 5] = 400
    with torch.no_grad():
        return wider(Block(wide).to(HALF)(x.to(HALF)))


BUGS = (
    Bug("flow-of-actions", "valeoai/VideoActionModel#35", ("amplified-rounding",), "aten._to_copy.default",
        lambda: flow_of_actions(False), lambda: flow_of_actions(True)),
    Bug("prior-of-a-voice", "hcy71o/SC-CNN#4", ("overflow",), "aten.exp.default",
        lambda: prior_of_a_voice(False), lambda: prior_of_a_voice(True)),
    Bug("weights-of-atoms", "chemprop/chemprop#714", ("overflow", "nan"), "aten.exp.default",
        lambda: weights_of_atoms(False), lambda: weights_of_atoms(True)),
    Bug("noise-from-nought", "Theano/Theano#6096", ("underflow", "overflow", "vanished-constant"), "aten.rand.generator",
        lambda: noise_from_nought(False), lambda: noise_from_nought(True)),
    Bug("rows-with-an-outlier", "meta-llama/llama#1048", ("overflow",), "aten.pow.Tensor_Scalar",
        lambda: rows_with_an_outlier(False), lambda: rows_with_an_outlier(True)),
)  # fmt: skip
