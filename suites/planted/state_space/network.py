"""A small Mamba language model: a causal convolution, a selective scan and a gate, two blocks over 200 tokens of four packed documents.

Each segment of a text begins with the states that the segment before it left."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
STEPS = 1
VOCABULARY, WIDTH, INNER, STATE, LENGTH, DOCUMENTS = 96, 32, 32, 8, 200, 4


def step_sizes(raw: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """How far each channel's clock moves at each token: a softplus, of float32 since most steps are near 0.002."""
    with torch.autocast(raw.device.type, enabled=False):
        raw = raw.float() + bias.float()
        return functional.softplus(raw)


def discretised(step: torch.Tensor, rate: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The continuous system at the given steps: what of the state is kept, and what of the input is let in."""
    with torch.autocast(x.device.type, enabled=False):
        keep = torch.exp(step.unsqueeze(-1) * rate)
        drive = (step * x.float()).unsqueeze(-1) * b.float().unsqueeze(2)
        return keep, drive


def scan(keep: torch.Tensor, drive: torch.Tensor, c: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Carries the state along the sequence and reads it at each token."""
    with torch.autocast(c.device.type, enabled=False):
        state = state.float()
        states = []
        for now_keep, now_drive in zip(keep.unbind(1), drive.unbind(1), strict=True):
            state = now_keep * state + now_drive
            states.append(state)
        return torch.einsum("btdn,btn->btd", torch.stack(states, 1).float(), c.float())


def document_losses(token_losses: torch.Tensor, document: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The mean loss of each packed document, so that long documents do not outweigh short ones."""
    token_losses = token_losses.float()
    totals = torch.zeros(DOCUMENTS, dtype=token_losses.dtype, device=like.device).index_add(0, document, token_losses)
    lengths = torch.bincount(document, minlength=DOCUMENTS)
    return totals / lengths


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_proj = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.conv = nn.Conv1d(INNER, INNER, 4, groups=INNER, padding=3)
        self.select = nn.Linear(INNER, INNER + 2 * STATE)
        self.out_proj = nn.Linear(INNER, WIDTH, bias=False)
        steps = torch.exp(torch.linspace(-8.0, -4.0, INNER))
        self.step_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus
        self.rate_log = nn.Parameter(torch.log(torch.arange(1, STATE + 1).float()).repeat(INNER, 1))
        self.skip = nn.Parameter(torch.ones(INNER))

    def forward(self, hidden: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        x, gate = self.in_proj(hidden).chunk(2, -1)
        x = functional.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        raw, b, c = self.select(x).split([INNER, STATE, STATE], -1)
        step = step_sizes(raw, self.step_bias)
        rate = -torch.exp(self.rate_log.float())
        keep, drive = discretised(step, rate, b, x)
        y = scan(keep, drive, c, state).to(x.dtype) + self.skip.to(x.dtype) * x
        return self.out_proj(y * functional.silu(gate))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mixer = Mixer()

    def forward(self, hidden: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return hidden + self.mixer(self.norm(hidden), state)


class Mamba(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor, document: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for block, state in zip(self.blocks, states, strict=True):
            hidden = block(hidden, state)
        logits = self.head(self.norm(hidden))
        token_losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
        return document_losses(token_losses, document.flatten(), logits)


def make() -> nn.Module:
    torch.manual_seed(0)
    model = Mamba()
    for block in model.blocks:
        with torch.no_grad():  # inputs and their gates have a mean, as trained ones do
            block.mixer.select.bias[INNER:].add_(1.0)
    return model


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (2, LENGTH + 1), generator=generator)
    document = torch.zeros(2, LENGTH, dtype=torch.long)
    document[1, :180], document[1, 180:190], document[1, 190:] = 1, 2, 3
    states = 2 * torch.rand(2, 2, INNER, STATE, generator=generator)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "document": document, "states": states}


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.mean()


optimizer = None
