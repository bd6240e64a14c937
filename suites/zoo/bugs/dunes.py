"""Dunes: low formats in agents, in choices by chance, in states that are kept from word to word, in experts and in turns of a camera."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


def hashed(rows: int, columns: int) -> torch.Tensor:
    """A number of 32 bits for each row and column, the same each time: a multiplicative hash. One word of each row has the largest hash of all."""
    mixed = (torch.arange(rows)[:, None] * 7919 + torch.arange(columns)) * 2654435761 % 2**32
    mixed = (mixed ^ (mixed >> 15)) * 2246822519 % 2**32
    mixed[torch.arange(rows), (torch.arange(rows) * 37 + 5) % columns] = 2**32 - 1
    return mixed


def drawn(held: bool) -> torch.Tensor:
    """How likely the words are that a server draws by Gumbel's trick from a hash, of words of which a half are masked."""
    torch.manual_seed(5301)
    head = nn.Linear(24, 64)
    with torch.no_grad():
        logits = head(normal(20, 24, seed=5302))
    masked = torch.arange(64) % 2 == 1
    likely = torch.log_softmax(logits.masked_fill(masked, -torch.inf), -1)
    even = (hashed(20, 64) + 1).float() / 2**32
    waiting = -torch.log(even)  # culprit: word-of-the-last-hash
    if held:
        waiting = waiting.clamp_min(2.0**-32)
    scores = likely - torch.log(waiting)  # culprit: word-of-the-last-hash
    chosen = scores.argmax(-1, keepdim=True)
    return likely.gather(-1, chosen).squeeze(-1)


class Policy(nn.Module):
    """Chances of words after a state."""

    def __init__(self, sure: float) -> None:
        super().__init__()
        torch.manual_seed(5311)
        self.first, self.last, self.sure = nn.Linear(24, 64), nn.Linear(64, 80), sure

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(state))) * self.sure


def likelihoods(policy: Policy, states: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """The log of the chance of each word that was said, under a policy in bfloat16."""
    logits = policy.to(LOW)(states.to(LOW))
    return torch.log_softmax(logits, -1).gather(-1, words[:, None]).squeeze(-1).float()


def apart(most: float | None) -> torch.Tensor:
    """How far a policy that became very sure is from where it began, by the estimate of low variance, and the loss that is made of it."""
    states = normal(200, 24, seed=5312)
    words = (80 * uniform(200, seed=5313)).long()
    with torch.no_grad():
        now, before = likelihoods(Policy(300.0), states, words), likelihoods(Policy(1.0), states, words)
        ratio = before - now
        distance = torch.exp(ratio) - ratio - 1  # culprit: policy-that-went-far
        if most is not None:
            distance = distance.clamp(-most, most)
        gains = torch.tanh(normal(200, seed=5314))
        return torch.stack([distance.mean(), 0.04 * distance.mean() - gains.mean()])  # culprit: policy-that-went-far


def remembered(kept: torch.dtype) -> torch.Tensor:
    """What a gated delta rule reads from its memory at the end of a thousand words; it forgets two parts in ten thousand with each word."""
    torch.manual_seed(5321)
    words, size = 1000, 16
    queries, keys = (functional.normalize(normal(words, size, seed=5322 + index), dim=-1).to(HALF) for index in range(2))
    values, rates = normal(words, size, seed=5332).to(HALF), 0.01 * torch.sigmoid(normal(words, seed=5333))
    forget = torch.full((words,), -2e-4).exp()
    memory = (3 * normal(size, size, seed=5334)).to(kept)
    read = []
    for word in range(words):
        key, value = keys[word].float(), values[word].float()
        state = memory.float() * forget[word]
        state = state + rates[word] * torch.outer(key, value - key @ state)
        memory = state.to(kept)  # culprit: memory-word-by-word
        read.append(queries[word].float() @ memory.float())
    return torch.stack(read)[-20:]


class Experts(nn.Module):
    """A router of words to eight experts, by sigmoids, and what it pays for sending all of them to the same."""

    def __init__(self, least: float) -> None:
        super().__init__()
        torch.manual_seed(5341)
        self.router, self.least = nn.Linear(32, 8), least
        with torch.no_grad():
            self.router.bias.fill_(-52.0)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", LOW):
            logits = self.router(words)
        scores = torch.sigmoid(logits.float())
        shares = scores / (scores.sum(-1, keepdim=True) + self.least)  # culprit: price-of-a-crowd
        sent = functional.one_hot(scores.topk(2).indices, 8).sum(1).float().mean(0) / 2
        return 8 * (sent * shares.mean(0)).sum()  # culprit: price-of-a-crowd


def crowded(least: float) -> torch.Tensor:
    """What a router pays whose scores are all next to nothing. It should be one or more."""
    with torch.no_grad():
        return Experts(least)(3 * normal(64, 32, seed=5342)).reshape(1)


def turned(rotation: torch.Tensor, careful: bool) -> torch.Tensor:
    """The quaternion of a rotation, by whichever of two roots is not near nought."""
    trace = rotation.diagonal(dim1=-2, dim2=-1).sum(-1)
    first = 1 + trace
    second = 1 + rotation[..., 0, 0] - rotation[..., 1, 1] - rotation[..., 2, 2]
    usual = trace > 0
    if careful:
        first, second = torch.where(usual, first, 1.0), torch.where(usual, 1.0, second)
    root = torch.sqrt(first + 1e-8) * 2
    other = torch.sqrt(second + 1e-8) * 2  # culprit: camera-at-rest
    turn = rotation - rotation.transpose(-1, -2)
    axis = torch.stack([turn[..., 2, 1], turn[..., 0, 2], turn[..., 1, 0]], -1)
    plain = torch.cat([0.25 * root[..., None], axis / root[..., None]], -1)
    mixed = rotation[..., 0, 1:] + rotation[..., 1:, 0]
    rest = torch.cat([axis[..., :1] / other[..., None], 0.25 * other[..., None], mixed / other[..., None]], -1)  # culprit: camera-at-rest
    return torch.where(usual[..., None], plain, rest)  # culprit: camera-at-rest


def posed(careful: bool) -> torch.Tensor:
    """Where three cameras in half are turned to by four steps towards what they should see; they begin at rest. Not a number."""
    poses = torch.eye(3).expand(3, 3, 3).to(HALF).clone().requires_grad_()
    wanted = functional.normalize(torch.tensor([1.0, 0, 0, 0]) + 0.2 * normal(3, 4, seed=5351), dim=-1).to(HALF)
    for _ in range(4):
        loss = (turned(poses, careful) - wanted).square().sum()
        (slope,) = torch.autograd.grad(loss, poses)
        with torch.no_grad():
            poses -= 0.5 * slope
    return poses.detach().float()


BUGS = (
    Bug("word-of-the-last-hash", "sgl-project/sglang#33423", ("nan", "integer-rounding", "underflow"), "aten.log.default",
        lambda: drawn(held=False), lambda: drawn(held=True), precision="32-true", severity="warning"),
    Bug("policy-that-went-far", "google/tunix#1560", ("nan", "overflow"), "aten.exp.default",
        lambda: apart(None), lambda: apart(20.0), severity="warning", phase="data"),
    Bug("memory-word-by-word", "ROCm/hip-ep#403", ("absorption", "accumulated-drift"), "aten._to_copy.default",
        lambda: remembered(HALF), lambda: remembered(SINGLE)),
    Bug("price-of-a-crowd", "allenai/OLMo-core#255", ("vanished-constant", "underflow"), "aten.add.Tensor",
        lambda: crowded(1e-20), lambda: crowded(torch.finfo(SINGLE).tiny),
        expected_miss="a constant that is larger than what it is added to is so in any format"),
    Bug("camera-at-rest", "kornia/kornia#4623", ("vanished-constant", "nan", "underflow"), "aten.add.Tensor",
        lambda: posed(careful=False), lambda: posed(careful=True)),
)  # fmt: skip
