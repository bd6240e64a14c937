"""An xLSTM language model: matrix memories with exponential gates, read all at once, after a learned smoothing of the tokens.

The smoothing is a recurrence with a backward pass of its own. Input gates begin at -12 to -9, as they do in the published model, so memories
start out nearly empty, and each head's output is normalised.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
VOCABULARY, WIDTH, HEADS, LENGTH = 64, 48, 4, 224
DEEP = WIDTH // HEADS


class Smoothed(torch.autograd.Function):
    """Each channel keeps a share of what it was and adds what comes: s = keep * s + x. The gradient is the same sum, taken backwards."""

    @staticmethod
    def forward(ctx, keep: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state, states = torch.zeros_like(x[:, 0]).float(), []
        for now in x.float().unbind(1):
            state = keep.float() * state + now
            states.append(state)
        ctx.save_for_backward(keep, torch.stack(states, 1))
        return torch.stack(states, 1).to(x.dtype)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keep, states = ctx.saved_tensors
        grad_keep = torch.zeros_like(keep).float()
        grad_x, running = [], torch.zeros_like(grad[:, 0]).float()
        for now in reversed(range(grad.shape[1])):
            running = running * keep.float() + grad[:, now].float()
            grad_x.append(running)
            if now:
                grad_keep = grad_keep + (running * states[:, now - 1]).sum(0)
        return grad_keep.to(keep.dtype), torch.stack(grad_x[::-1], 1).to(grad.dtype)


def gate_matrix(forget: torch.Tensor, enter: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What each token still holds of each token before it, over the largest of them, and the logarithm of that largest one."""
    log_keep = functional.logsigmoid(forget.float())
    total = log_keep.cumsum(-1)
    held = total.unsqueeze(-1) - total.unsqueeze(-2) + enter.float().unsqueeze(-2)
    held = held.masked_fill(torch.ones_like(held, dtype=torch.bool).triu(1), float("-inf"))
    peak = held.amax(-1, keepdim=True)
    return torch.exp(held - peak), peak


def readout(scores: torch.Tensor, weights: torch.Tensor, peak: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The memories' answers. Their normaliser is at least what one would be in the units of the largest gate."""
    mixed = scores.float() * weights
    bound = torch.exp(-peak)
    return (mixed / torch.maximum(mixed.sum(-1, keepdim=True).abs(), bound)) @ values.float()


def head_norm(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Each head's answer over its root mean square."""
    x = x.float()
    return x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-7)


class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.smooth = nn.Parameter(torch.linspace(0.98, 0.999, WIDTH))
        self.qkv, self.gates = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 2 * HEADS)
        self.open, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        x = self.norm(hidden)
        batch, length, _ = x.shape
        smooth = functional.silu(Smoothed.apply(self.smooth, self.open(x)) * 0.05)
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, DEEP).permute(2, 0, 3, 1, 4)
        with torch.autocast(x.device.type, enabled=False):
            gates = functional.linear(x.float(), self.gates.weight.float(), self.gates.bias.float())
            forget, enter = gates.transpose(1, 2).chunk(2, 1)
            weights, peak = gate_matrix(forget, enter, q)
            scores = q.float() @ k.float().transpose(-1, -2) / DEEP**0.5
            heads = head_norm(readout(scores, weights, peak, v), q)
        heads = heads.to(x.dtype).transpose(1, 2).reshape(batch, length, WIDTH)
        return hidden + self.out(heads * smooth)


class XLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Memory() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def make() -> nn.Module:
    torch.manual_seed(0)
    model = XLSTM()
    for block in model.blocks:
        with torch.no_grad():
            block.gates.bias[:HEADS] = torch.linspace(4.0, 7.0, HEADS)
            block.gates.bias[HEADS:] = torch.linspace(-12.0, -9.0, HEADS)
    return model


def batch() -> torch.Tensor:
    return torch.randint(VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def loss(logits: torch.Tensor) -> torch.Tensor:
    targets = torch.randint(VOCABULARY, logits.shape[:2], generator=torch.Generator().manual_seed(2))
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


optimizer = None
