"""Hives: half and bfloat16 in what is kept of models, drawn from them and learned: states, chances, critics, layers, slopes and tokens of robots."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


def probed(kept: torch.dtype) -> torch.Tensor:
    """What a probe says of states of a model that were kept in half, of which one channel is large. Not a number."""
    torch.manual_seed(4401)
    layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 48))
    scale = torch.where(torch.arange(48) == 7, 9e4, 1.0)
    with torch.no_grad():
        states = (layers(3 * normal(60, 32, seed=4402)) + 1) * scale
        stored = states.to(kept)  # culprit: states-that-are-kept
        back = stored.float()
        probe = nn.Linear(48, 1)
        return torch.sigmoid(probe((back - back.mean(0)) / (back.std(0) + 1e-6)))  # culprit: states-that-are-kept


class Writer(nn.Module):
    """The head of a model that writes programs: a large state, normed, and a vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4411)
        self.up, self.down, self.norm, self.words = nn.Linear(32, 128), nn.Linear(128, 32), nn.LayerNorm(32), nn.Linear(32, 40)
        nn.init.normal_(self.up.weight, std=30.0)
        nn.init.normal_(self.down.weight, std=30.0)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return self.words(self.norm(state + self.down(functional.gelu(self.up(state)))))  # culprit: programs-by-chance


def written(kind: torch.dtype) -> torch.Tensor:
    """The next words of twenty programs, by chance. Torch refuses chances that are no numbers."""
    with torch.no_grad():
        logits = Writer().to(kind)((2 * normal(20, 32, seed=4412)).to(kind))
    chances = torch.softmax(logits.float() / 0.2, -1)
    return torch.multinomial(chances, 1, generator=torch.Generator().manual_seed(4413)).float()  # culprit: programs-by-chance


def contested(asked: bool) -> torch.Tensor:
    """How far a painter of cells goes while its critic does not learn yet. The scaler has seen no slopes of the critic and refuses."""
    torch.manual_seed(4421)
    painter = nn.Sequential(nn.Linear(16, 24), nn.SiLU(), nn.Linear(24, 16))
    critic = nn.Linear(16, 1)
    start = nn.utils.parameters_to_vector(painter.parameters()).detach().clone()
    optimizers = [torch.optim.Adam(each.parameters(), lr=1e-2) for each in (painter, critic)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for turn in range(3):
        cells = normal(12, 16, seed=4422 + turn)
        with torch.autocast("cpu", HALF):
            loss = functional.mse_loss(painter(cells).float(), torch.sin(cells))
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            if not asked or any(each.grad is not None for group in optimizer.param_groups for each in group["params"]):
                scaler.step(optimizer)  # culprit: critic-that-waits
            optimizer.zero_grad()
        scaler.update()
    return nn.utils.parameters_to_vector(painter.parameters()).detach() - start


class Layer(nn.Module):
    """A layer of a translator in half, with a norm after what it adds."""

    def __init__(self, held: bool) -> None:
        super().__init__()
        torch.manual_seed(4431)
        self.held, self.first, self.last, self.norm = held, nn.Linear(48, 96), nn.Linear(96, 48), nn.LayerNorm(48)
        with torch.no_grad():
            self.last.weight.mul_(400)
            self.last.bias[5] = 65480.0

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        added = self.last(torch.relu(self.first(words)))  # culprit: words-of-a-translator
        if self.held:
            limits = torch.finfo(added.dtype)
            added = torch.clamp(added, limits.min, limits.max)
        return self.norm(words + added)  # culprit: words-of-a-translator


def translated(held: bool) -> torch.Tensor:
    """What a layer makes of words; one channel is at the end of half, and in some words beyond it. Not a number."""
    with torch.no_grad():
        return Layer(held).half()(normal(30, 48, seed=4432).half()).float()


def bent(kind: torch.dtype) -> torch.Tensor:
    """The slope of a softmax over two thousand words in bfloat16, whose sum is made word by word."""
    chances = torch.softmax(normal(6, 2000, seed=4441), -1).to(LOW)
    slopes = (1 + 0.3 * normal(6, 2000, seed=4442)).to(LOW)
    products, total = chances * slopes, torch.zeros(6, dtype=kind)
    for word in range(2000):
        total = total + products[:, word].to(kind)  # culprit: slopes-of-a-softmax
    return ((slopes - total.to(LOW)[:, None]) * chances).float()  # culprit: slopes-of-a-softmax


def rebuilt(kind: torch.dtype) -> torch.Tensor:
    """How far a coder of a robot's tokens goes in eight steps, with parameters in bfloat16."""
    torch.manual_seed(4451)
    coder = nn.Sequential(nn.Linear(24, 8), nn.LayerNorm(8), nn.Linear(8, 24)).to(kind)
    before = nn.utils.parameters_to_vector(coder.parameters()).detach().float().clone()
    optimizer = torch.optim.AdamW(coder.parameters(), lr=2e-5, weight_decay=0.0)
    for step in range(8):
        tokens = normal(32, 24, seed=4452 + step)
        with torch.autocast("cpu", LOW):
            loss = functional.mse_loss(coder(tokens.to(kind)).float(), tokens)
        loss.backward()
        optimizer.step()  # culprit: token-of-a-robot
        optimizer.zero_grad()
    return nn.utils.parameters_to_vector(coder.parameters()).detach().float() - before


BUGS = (
    Bug("states-that-are-kept", "EleutherAI/elk#208", ("overflow",), "aten._to_copy.default",
        lambda: probed(HALF), lambda: probed(LOW), phase="data"),
    Bug("programs-by-chance", "bigcode-project/bigcode-evaluation-harness#83", ("overflow", "nan"), "aten.addmm.default",
        lambda: written(HALF), lambda: written(LOW), raises=RuntimeError, module="down"),
    Bug("critic-that-waits", "AllenCell/cyto-dl#21", ("scaler-order",), "",
        lambda: contested(asked=False), lambda: contested(asked=True), raises=AssertionError, phase="scaler"),
    Bug("words-of-a-translator", "awslabs/sockeye#1051", ("overflow",), "aten.addmm.default",
        lambda: translated(held=False), lambda: translated(held=True), module="last"),
    Bug("slopes-of-a-softmax", "Intel-tensorflow/tensorflow#23", ("absorption",), "aten.add.Tensor",
        lambda: bent(LOW), lambda: bent(SINGLE)),
    Bug("token-of-a-robot", "RLinf/RLinf#1488", ("lost-update",), "",
        lambda: rebuilt(LOW), lambda: rebuilt(SINGLE), phase="optimizer", module="0"),
)  # fmt: skip
