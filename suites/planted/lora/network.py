"""LoRA on a small transformer with 8-bit weights: adapters, a penalty on how far they go, a head whose loss is taken in chunks, and an optimizer that
keeps float32 masters and a moving average of the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
STEPS = 10
VOCABULARY, WIDTH, RANK, LENGTH, BATCH, CHUNK = 80, 48, 4, 32, 4, 64


class StraightThrough(torch.autograd.Function):
    """Rounds to whole numbers, and hands the gradient on as if it had not."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def quantised(weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Each row in 8 bits, by the largest number in it, as values again."""
    with torch.autocast(weight.device.type, enabled=False):
        values = weight.float()
        scale = values.abs().amax(-1, keepdim=True) / 127 + 1e-8
        return (StraightThrough.apply(values / scale).clamp(-127, 127) * scale).float()


def merged(base: torch.Tensor, change: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The weight with the adapter in it, as it is exported."""
    return base.float() + change.float()


def moved(merged_weight: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """What the adapter has changed in the exported weight."""
    return merged_weight.float() - base.float()


def mean_square(change: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """How far the adapter has gone; it begins at nearly nothing, and its squares at less."""
    change = change.float()
    return change.square().mean().float()


class AdaptedLinear(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outside, inside) * inside**-0.5, requires_grad=False)
        with torch.no_grad():
            self.weight[-1] = 0  # a row that pruning has emptied
        self.down = nn.Parameter(torch.randn(RANK, inside) * inside**-0.5)
        self.up = nn.Parameter(torch.randn(outside, RANK) * 1e-4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        base = quantised(self.weight, x)
        return functional.linear(x, base.to(x.dtype)) + functional.linear(functional.linear(x, self.down), self.up)

    def penalty(self, like: torch.Tensor) -> torch.Tensor:
        """The mean square of what the adapter changes in the exported weight."""
        with torch.autocast(like.device.type, enabled=False):
            change = self.up.float() @ self.down.float()
            apart = moved(merged(self.weight, change, like), self.weight)
            return mean_square(apart, like)


class ChunkedCrossEntropy(torch.autograd.Function):
    """Head and cross entropy together, a few tokens at a time, so that not all logits are held at once. Gradients are made on the way forward."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            low = weight.to(hidden.dtype)
            to_hidden, to_weight = torch.zeros_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
            total = torch.zeros((), device=hidden.device, dtype=torch.float32)
            for start in range(0, len(hidden), CHUNK):
                part, wanted = hidden[start : start + CHUNK], targets[start : start + CHUNK]
                logits = (part @ low.T).float()
                chances = logits.softmax(-1)
                total = total + functional.cross_entropy(logits, wanted, reduction="sum")
                chances[torch.arange(len(wanted)), wanted] -= 1
                to_hidden[start : start + CHUNK] = chances.to(hidden.dtype) @ low
                to_weight += (chances.to(hidden.dtype).T @ part).to(to_weight.dtype)
        ctx.save_for_backward(to_hidden / len(hidden), (to_weight / len(hidden)).to(weight.dtype))
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        to_hidden, to_weight = ctx.saved_tensors
        return (gradient * to_hidden).to(to_hidden.dtype), (gradient * to_weight).to(to_weight.dtype), None


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = AdaptedLinear(WIDTH, 3 * WIDTH), AdaptedLinear(WIDTH, WIDTH)
        self.wide, self.narrow = AdaptedLinear(WIDTH, 96), AdaptedLinear(96, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.qkv(self.first(hidden).to(hidden.dtype)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.narrow(functional.gelu(self.wide(self.second(hidden).to(hidden.dtype))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Parameter(torch.randn(VOCABULARY, WIDTH) * 0.2)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.enter(self.embedding(tokens))
        for block in self.blocks:
            hidden = block(hidden)
        penalties = [each.penalty(hidden) for each in self.modules() if isinstance(each, AdaptedLinear)]
        return ChunkedCrossEntropy.apply(hidden.flatten(0, 1), self.head, targets.flatten()), torch.stack(penalties).sum()


class MasterAdam(torch.optim.Optimizer):
    """Adam on float32 masters of the weights, with a moving average of them for evaluation."""

    def __init__(self, params: Any, lr: float = 2e-4, betas: tuple[float, float] = (0.9, 0.99), average: float = 0.999) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "average": average})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(group, weight, self.state[weight])

    def _update(self, group: dict[str, Any], weight: torch.Tensor, state: dict[str, Any]) -> None:
        if not state:
            state["step"] = 0
            state["master"] = weight.detach().clone().to(torch.float32)
            state["average"] = weight.detach().clone().to(torch.float32)
            state["first"], state["second"] = (torch.zeros_like(weight, dtype=torch.float32) for _ in range(2))
        first, second = group["betas"]
        gradient = weight.grad.to(state["first"].dtype)
        state["step"] += 1
        state["first"].lerp_(gradient, 1 - first)
        state["second"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (state["second"] / (1 - second ** state["step"])).sqrt()
        state["master"].sub_(group["lr"] * (state["first"] / (1 - first ** state["step"])) / (root + 1e-8))
        weight.copy_(state["master"])
        state["average"].lerp_(state["master"].to(state["average"].dtype), 1 - group["average"])


def make() -> nn.Module:
    torch.manual_seed(0)
    model = Transformer()
    for frozen in (model.embedding, model.enter, *(norm for block in model.blocks for norm in (block.first, block.second))):
        frozen.requires_grad_(False)
    return model


def batch() -> dict[str, torch.Tensor]:
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def loss(output: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return output[0] + 1000 * output[1]


def optimizer(params: Any) -> torch.optim.Optimizer:
    return MasterAdam(params)
