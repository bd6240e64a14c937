"""Preferences: odds of answers, squashed actions, replayed surprises, tokens of a large vocabulary, beams, and noise that a sampler adds anew."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Tutor(nn.Module):
    """A small language model, and how likely it finds an answer, a token on average."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.embed, self.mix, self.head = nn.Embedding(40, 64), nn.Linear(64, 64), nn.Linear(64, 40)

    def forward(self, tokens: torch.Tensor, wide: bool) -> torch.Tensor:
        hidden = torch.tanh(self.mix(self.embed(tokens[:, :-1])))
        logits = 12 * self.head(hidden)
        logits = wider(logits) if wide else logits
        picked = torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)  # culprit: odds-of-an-answer
        return picked.mean(-1)


class Preference:
    """A turn of training towards chosen answers, by the ratio of odds."""

    def __init__(self, tutor: Tutor, wide: bool) -> None:
        self.tutor, self.wide = tutor, wide

    def log_odds(self, chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        if self.wide:
            return (chosen - rejected) - (torch.log(-torch.expm1(chosen)) - torch.log(-torch.expm1(rejected)))
        others, theirs = torch.log(1 - torch.exp(chosen)), torch.log(1 - torch.exp(rejected))  # culprit: odds-of-an-answer
        return (chosen - rejected) - (others - theirs)

    def step(self, chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        odds = self.log_odds(self.tutor(chosen, self.wide), self.tutor(rejected, self.wide))
        loss = -nn.functional.logsigmoid(0.1 * odds).mean()
        loss.backward()
        return wider(odds.detach())


def odds_of_an_answer(wide: bool, dtype: torch.dtype = LOW) -> torch.Tensor:
    """The log odds of twelve pairs, the chosen of which the model knows by heart. Inf."""
    tutor = Tutor()
    sure = torch.zeros(40, 40).scatter_(1, ((torch.arange(40) * 7 + 3) % 40)[:, None], 0.85)
    with torch.no_grad():
        tutor.head.weight.copy_(torch.linalg.lstsq(torch.tanh(tutor.mix(tutor.embed.weight)), sure).solution.T)
        tutor.head.bias.zero_()
    known = [torch.arange(12) * 3 % 40]
    for _ in range(6):
        known.append((known[-1] * 7 + 3) % 40)
    chosen = torch.stack(known, 1)
    rejected = chosen.clone()
    rejected[:, 3] = (rejected[:, 3] + 5) % 40
    return Preference(tutor.to(dtype), wide).step(chosen, rejected)


class Actor(nn.Module):
    """A policy of a robot's actions between minus one and one, and how likely each was."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(12)
        self.wide = wide
        self.body, self.mean, self.spread = nn.Linear(8, 32), nn.Linear(32, 3), nn.Linear(32, 3)

    def forward(self, states: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.body(states))
        mean, log_std = 3 * self.mean(hidden), self.spread(hidden).clamp(-5, 2)
        raw = mean + log_std.exp() * noise
        likely = -0.5 * noise.square() - log_std - 0.919
        if self.wide:
            raw, likely = wider(raw), wider(likely)
            return torch.tanh(raw), (likely - 2 * (0.6931471805599453 - raw - nn.functional.softplus(-2 * raw))).sum(-1)
        action = torch.tanh(raw)
        return action, (likely - torch.log(1 - action.square() + 1e-9)).sum(-1)  # culprit: likelihood-of-a-squashed-action


def squashed(wide: bool, dtype: torch.dtype = LOW) -> torch.Tensor:
    """The log-likelihoods of 80 actions and the loss of their temperature, some of the actions near one. Garbage."""
    actor = Actor(wide).to(dtype)
    log_alpha = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([log_alpha], 0.1)
    for turn in range(2):
        with torch.no_grad():
            _, likely = actor(normal(80, 8, seed=turn).to(dtype), normal(80, 3, seed=10 + turn).to(dtype))
        loss = -(log_alpha.exp() * (likely.float() + 3)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return wider(likely)


class Surprises:
    """Experiences by how much they surprised, in a tree of sums, from which they are drawn as often as that."""

    def __init__(self, size: int, sums: bool, dtype: torch.dtype) -> None:
        self.size, self.sums = size, sums
        self.tree = torch.zeros(2 * size, dtype=dtype)

    def update(self, place: int, priority: torch.Tensor) -> None:
        node = place + self.size
        change = priority - self.tree[node]
        self.tree[node] = priority
        while node > 1:
            node //= 2
            if self.sums:
                self.tree[node] = self.tree[2 * node] + self.tree[2 * node + 1]
            else:
                self.tree[node] = self.tree[node] + change  # culprit: replay-of-surprises

    def share(self) -> torch.Tensor:
        return self.tree[self.size :] / self.tree[1]  # culprit: replay-of-surprises


def surprises(sums: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How often each of sixteen is to be drawn, after all of them were as surprising as can be. Garbage."""
    buffer = Surprises(16, sums, dtype)
    for place in range(16):
        buffer.update(place, torch.tensor(1e5, dtype=dtype))
    for turn in range(2):
        for place, error in enumerate(uniform(16, seed=turn)):
            buffer.update(place, (0.001 + 0.004 * error).to(dtype))
    return buffer.share()


class Server(nn.Module):
    """Answers token by token from the best tokens that hold a share of the whole probability."""

    def __init__(self, share: float, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(13)
        self.share, self.wide = share, wide
        self.embed, self.cell, self.head = nn.Embedding(20_000, 16), nn.Linear(32, 16), nn.Linear(16, 20_000)

    def nucleus(self, logits: torch.Tensor) -> torch.Tensor:
        logits = wider(logits) if self.wide else logits
        weight = torch.exp(logits - logits.max())
        bins = ((logits.max() - logits).float() * 4).long().clamp(max=31)
        mass = torch.zeros(32, dtype=weight.dtype).index_add_(0, bins, weight)  # culprit: nucleus-of-a-large-vocabulary
        reached = mass.cumsum(0) >= self.share * mass.sum()  # culprit: nucleus-of-a-large-vocabulary
        last = int(reached.int().argmax())
        return wider(torch.softmax(logits, -1))[bins <= last].sum()

    def forward(self, token: int, turns: int) -> torch.Tensor:
        state, shares = torch.zeros(16, dtype=self.cell.weight.dtype), []
        for _ in range(turns):
            state = torch.tanh(self.cell(torch.cat([state, self.embed(torch.tensor(token))])))
            shares.append(self.nucleus(self.head(state)))
            token = int(self.head(state).argmax())
        return torch.stack(shares)


def nucleus(wide: bool, dtype: torch.dtype = LOW) -> torch.Tensor:
    """How much the tokens hold that are left to draw from in three turns, of 20 000. Too many are: rare ones are not counted. Off by 5 %."""
    with torch.no_grad():
        return Server(0.9, wide).to(dtype)(5, 3)


class Beams(nn.Module):
    """Keeps the answers that are the most likely so far."""

    def __init__(self, kept: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(14)
        self.kept = kept
        self.embed, self.head = nn.Embedding(30, 16), nn.Linear(16, 30)

    def forward(self, width: int, turns: int) -> torch.Tensor:
        score = torch.zeros(width, dtype=self.kept)
        last = torch.arange(width)
        for _ in range(turns):
            likely = torch.log_softmax(wider(self.head(torch.tanh(self.embed(last)))), -1)
            total = score[:, None] + likely.to(self.kept)  # culprit: beams-of-a-long-answer
            score, best = total.flatten().topk(width)
            last = best % 30
        return wider(score) / turns


def beams(kept: torch.dtype, dtype: torch.dtype = LOW) -> torch.Tensor:
    """The scores of four answers of 300 tokens, a token. They lose a part of each. Off by 7 %."""
    with torch.no_grad():
        return Beams(kept).to(dtype)(4, 300)


class Ancestral:
    """Samples by steps that go further down than they should, and add noise to come up again."""

    def __init__(self, steady: bool, dtype: torch.dtype) -> None:
        torch.manual_seed(15)
        self.steady, self.dtype = steady, dtype
        self.net = nn.Sequential(nn.Linear(7, 24), nn.Tanh(), nn.Linear(24, 6)).to(dtype)

    def denoise(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        scaled = x / (sigma.square() + 1).sqrt()
        return self.net(torch.cat([scaled, (0.25 * sigma.log()).expand(len(x), 1)], -1))

    def split(self, start: torch.Tensor, end: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        up = (end**2 * (start**2 - end**2) / start**2).sqrt()
        if self.steady:
            return end**2 / start, up
        return (end**2 - up**2).sqrt(), up  # culprit: noise-of-an-ancestor

    def sample(self, sigmas: torch.Tensor, count: int) -> torch.Tensor:
        x = sigmas[0] * normal(count, 6).to(self.dtype)
        for turn, (start, end) in enumerate(itertools.pairwise(sigmas)):
            clean = self.denoise(x, start)
            down, up = self.split(start, end)
            x = clean + (x - clean) * (down / start)
            x = x + up * normal(count, 6, seed=20 + turn).to(self.dtype)
        return self.denoise(x, sigmas[-1])


def ancestors(steady: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Ten samples by five steps from a noise of nineteen thousand. NaN."""
    with torch.no_grad():
        return Ancestral(steady, dtype).sample(torch.tensor([19_089.638671875, 1.2927498817443848, 0.9, 0.4, 0.1], dtype=dtype), 10)


BUGS = (
    Bug("odds-of-an-answer", "huggingface/trl#1491", ("underflow", "amplified-rounding", "cancellation"), "aten._log_softmax.default",
        lambda: odds_of_an_answer(False), lambda: odds_of_an_answer(True)),
    Bug("likelihood-of-a-squashed-action", "rlworkgroup/garage#1174", ("amplified-rounding", "cancellation"), "aten.rsub.Scalar",
        lambda: squashed(False), lambda: squashed(True)),
    Bug("replay-of-surprises", "JuliaReinforcementLearning/ReinforcementLearningCore.jl#83", ("cancellation", "absorption", "accumulated-drift"),
        "aten.add.Tensor", lambda: surprises(False), lambda: surprises(True), precision="32-true"),
    Bug("nucleus-of-a-large-vocabulary", "software-mansion/react-native-executorch#1232", ("local-drift", "absorption", "accumulated-drift"),
        "aten.index_add_.default", lambda: nucleus(False), lambda: nucleus(True)),
    Bug("beams-of-a-long-answer", "nod-ai/amd-shark-ai#1011", ("accumulated-drift", "absorption"), "aten.add.Tensor",
        lambda: beams(LOW), lambda: beams(SINGLE)),
    Bug("noise-of-an-ancestor", "huggingface/diffusers#14213", ("cancellation", "nan", "amplified-rounding"), "aten.sub.Tensor",
        lambda: ancestors(False), lambda: ancestors(True), precision="32-true", phase="data"),
)  # fmt: skip
