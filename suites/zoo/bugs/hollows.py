"""Hollows: animations in half, corridors in logic, checkpoints in half, papers that nobody cites, rollouts of an engine, words that keep apart."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class MotionModule(nn.Module):
    """Attention between the frames of an animation; only this is trained."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(7401)
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(frames)).chunk(3, -1)
        return frames + self.out(functional.scaled_dot_product_attention(query, key, value))


def animated(weight_dtype: torch.dtype) -> torch.Tensor:
    """The losses of five steps; frames are in half, and what is asked of them is near what the module does already."""
    module = MotionModule(24).to(weight_dtype)  # culprit: frames-that-move
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, eps=1e-8)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=weight_dtype == SINGLE)
    losses = []
    for step in range(5):
        frames = normal(6, 8, 24, seed=7402 + step).to(HALF)
        with torch.autocast("cpu", HALF, enabled=weight_dtype == SINGLE):
            guess = module(frames)
        loss = functional.mse_loss(guess.float(), frames.float() + 0.1 * normal(6, 8, 24, seed=7412 + step))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # culprit: frames-that-move
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses)


class Minish(nn.Module):
    """A smooth minimum, for the robustness of a formula over time."""

    def __init__(self, scale: float, inbuilt: bool) -> None:
        super().__init__()
        self.scale, self.inbuilt = scale, inbuilt

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.inbuilt:
            return -torch.logsumexp(-x * self.scale, -1) / self.scale
        return -torch.log(torch.exp(-x * self.scale).sum(-1)) / self.scale  # culprit: corridors-in-logic


def planned(inbuilt: bool) -> torch.Tensor:
    """Forces on a cart that is to stay in a corridor, after five steps uphill on how robustly it does."""
    always, times = Minish(30.0, inbuilt), torch.arange(1.0, 26)
    force = torch.full((25,), 0.4)
    for _ in range(5):
        force.requires_grad_()
        speed = (force * 0.2).cumsum(0)
        place = (speed * 0.2).cumsum(0) + 0.6 * torch.sin(times)
        robustness = always(torch.cat([1.5 - place, place + 4.5]))
        slope = torch.autograd.grad(robustness, force)[0]
        force = (force + 0.05 * slope).detach()
    return torch.cat([force, robustness.detach()[None]])


class Average(nn.Module):
    """A moving average of a layer's weights, which counts its updates."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", layer.weight.detach().clone())
        self.register_buffer("num_updates", torch.tensor(0, dtype=torch.int64))

    def update(self, layer: nn.Linear) -> None:
        self.num_updates += 1
        decay = torch.clamp((1 + self.num_updates) / (10 + self.num_updates), max=0.9999)
        self.weight = self.weight - (1 - decay) * (self.weight - layer.weight.detach())


def converted(state: dict[str, torch.Tensor], kind: torch.dtype) -> dict[str, torch.Tensor]:
    """A checkpoint as files of one format."""
    return {name: value.to(kind) for name, value in state.items()}  # culprit: checkpoint-in-files


def restored(kind: torch.dtype) -> torch.Tensor:
    """The averaged weights when a training of 875000 updates goes on for four more from files."""
    torch.manual_seed(7431)
    layer = nn.Linear(16, 8)
    average = Average(layer)
    average.num_updates += 875_000
    files = converted(average.state_dict(), kind)
    again = Average(layer)
    again.weight, again.num_updates = files["weight"].float(), files["num_updates"].float()
    for step in range(4):
        with torch.no_grad():
            layer.weight += 0.3 * normal(8, 16, seed=7432 + step)
        again.update(layer)
    return again.weight


class GraphAttention(nn.Module):
    """What a paper takes from those that it cites."""

    def __init__(self, inward: int, outward: int, bounded: bool) -> None:
        super().__init__()
        self.bounded = bounded
        self.kernel, self.own, self.others = nn.Linear(inward, outward, bias=False), nn.Linear(outward, 1), nn.Linear(outward, 1)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        features = self.kernel(x)
        dense = functional.leaky_relu(self.own(features) + self.others(features).T, 0.2)
        if self.bounded:
            mask = -6e4 * (1.0 - adjacency)
            mask = mask - mask.amax(-1, keepdim=True)
        else:
            mask = -10e9 * (1.0 - adjacency)  # culprit: papers-that-cite-none
        return functional.elu(torch.softmax(dense + mask, -1) @ features)


def cited(bounded: bool) -> torch.Tensor:
    """Two layers in half over thirty papers, of which three cite none."""
    torch.manual_seed(7441)
    first, last = GraphAttention(20, 16, bounded).to(HALF), GraphAttention(16, 4, bounded).to(HALF)
    adjacency = (uniform(30, 30, seed=7442) < 0.15).to(HALF)
    adjacency[[4, 11, 23]] = 0
    with torch.no_grad():
        return last(first(normal(30, 20, seed=7443).to(HALF), adjacency), adjacency).float()


class Actor(nn.Module):
    """A small language model in bfloat16, whose last layer a trainer computes in float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7451)
        self.embed, self.body, self.head = nn.Embedding(160, 48), nn.GRU(48, 64, batch_first=True), nn.Linear(64, 160, bias=False)
        with torch.no_grad():
            self.head.weight *= 60

    def hidden(self, words: torch.Tensor) -> torch.Tensor:
        return self.body(self.embed(words))[0]

    def trained(self, words: torch.Tensor) -> torch.Tensor:
        logits = self.hidden(words).float() @ self.head.weight.float().T
        return torch.log_softmax(logits, -1)

    def served(self, words: torch.Tensor, wide: bool) -> torch.Tensor:
        if wide:
            return self.trained(words)
        logits = self.head(self.hidden(words))  # culprit: rollouts-of-an-engine
        return torch.log_softmax(logits.float(), -1)


def rolled_out(wide: bool) -> torch.Tensor:
    """How much more likely the trainer finds each of 120 words than the engine did that drew them, with the same weights."""
    actor = Actor().to(LOW)
    words = (160 * uniform(4, 31, seed=7452)).long()
    with torch.no_grad():
        drawn = actor.served(words[:, :-1], wide).gather(-1, words[:, 1:, None])
        now = actor.trained(words[:, :-1]).gather(-1, words[:, 1:, None])
    return torch.exp(now - drawn)[..., 0]


class SkipGram(nn.Module):
    """Words that are near each other are to be alike, and others are not."""

    def __init__(self, inbuilt: bool) -> None:
        super().__init__()
        torch.manual_seed(7461)
        self.words, self.contexts, self.inbuilt = nn.Embedding(60, 32), nn.Embedding(60, 32), inbuilt
        with torch.no_grad():
            self.words.weight *= 4
            self.contexts.weight *= 4

    def likely(self, scores: torch.Tensor) -> torch.Tensor:
        if self.inbuilt:
            return functional.logsigmoid(scores)
        return torch.log(torch.sigmoid(scores))  # culprit: words-that-keep-apart

    def forward(self, word: torch.Tensor, near: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        known = self.words(word)
        good = self.likely((known * self.contexts(near)).sum(-1))
        bad = self.likely(-(known[:, None] * self.contexts(others)).sum(-1))
        return -(good + bad.sum(-1)).mean()


def worded(inbuilt: bool) -> torch.Tensor:
    """The losses of four steps, with five other words for each pair."""
    model, losses = SkipGram(inbuilt), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4):
        word, near, others = ((60 * uniform(*shape, seed=7462 + 3 * step + k)).long() for k, shape in enumerate([(24,), (24,), (24, 5)]))
        loss = model(word, near, others)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


BUGS = (
    Bug("frames-that-move", "jinxixiang/magic_animate_unofficial#6", ("vanished-constant", "underflow", "overflow", "nan"), "aten.add_.Tensor",
        lambda: animated(HALF), lambda: animated(SINGLE), phase="optimizer"),
    Bug("corridors-in-logic", "StanfordASL/stlcg#19", ("overflow",), "aten.exp.default",
        lambda: planned(inbuilt=False), lambda: planned(inbuilt=True), module="Minish", precision="32-true"),
    Bug("checkpoint-in-files", "google-ai-edge/mediapipe-samples#408", ("overflow", "integer-rounding", "nan"), "aten._to_copy.default",
        lambda: restored(HALF), lambda: restored(SINGLE),
        note="the thread does not say which number is beyond half; in checkpoints of Stable Diffusion the count of updates is"),
    Bug("papers-that-cite-none", "danielegrattarola/keras-gat#23", ("overflow", "nan", "vanished-constant"), "aten.mul.Tensor",
        lambda: cited(bounded=False), lambda: cited(bounded=True),
        note="the thread does not name a format; minus infinity, which it suspects, is what half makes of this mask"),
    Bug("rollouts-of-an-engine", "hallerite/ludic#19", ("amplified-rounding", "cancellation"), "aten.mm.default",
        lambda: rolled_out(wide=False), lambda: rolled_out(wide=True),
        expected_miss="each logit is right to a rounding, and the exponential of a difference has the error that this rounding makes"),
    Bug("words-that-keep-apart", "clab/dynet#1217", ("underflow", "overflow"), "aten.sigmoid.default",
        lambda: worded(inbuilt=False), lambda: worded(inbuilt=True), precision="32-true"),
)  # fmt: skip
