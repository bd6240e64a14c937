"""A language model with heads that draft the words after the next one, and the sampler that takes drafts or turns them down.

The loss is a cross-entropy with a backward pass of its own, chunk by chunk, which never holds the gradients of all logits.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
VOCABULARY, WIDTH, HEADS, LENGTH, AHEAD, CHUNK = 384, 48, 2, 96, 2, 16


class Squashed(torch.autograd.Function):
    """A hyperbolic tangent that keeps its input alone."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.float().tanh().to(x.dtype)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        slope = 1 - x.float().tanh().square()
        return (grad.float() * slope).to(grad.dtype)


class Squash(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Squashed.apply(x)


class ChunkedLoss(torch.autograd.Function):
    """The mean cross-entropy of hidden states against a head's weight. Gradients are made in the forward pass, a chunk of words at a time."""

    @staticmethod
    def forward(ctx, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), device=hidden.device)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        grad_hidden = []
        for words, wanted in zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True):
            logits = (words @ weight.T).float()
            lse = torch.logsumexp(logits, -1)
            total = total + (lse - logits.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)).sum()
            grad = torch.exp(logits - lse.unsqueeze(-1)) / len(hidden)
            grad.scatter_add_(-1, wanted.unsqueeze(-1), torch.full_like(wanted.unsqueeze(-1), -1 / len(hidden), dtype=grad.dtype))
            grad_hidden.append(grad.to(weight.dtype) @ weight)
            grad_weight += (grad.T.to(words.dtype) @ words).float()
        ctx.save_for_backward(torch.cat(grad_hidden), grad_weight)
        return total / len(hidden)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return (grad * grad_hidden.float()).to(grad_hidden.dtype), grad * grad_weight, None


def leftover(chances: torch.Tensor, drafted: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What is drawn from when a draft is turned down: what the model thinks more likely than the draft did."""
    more = (chances.float() - drafted.float()).clamp_min(0)
    return (more / more.sum(-1, keepdim=True).clamp_min(1e-20)).float()


def taken(log_chances: torch.Tensor, log_drafted: torch.Tensor, words: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """How likely each drafted word is to be taken."""
    ours, theirs = (each.gather(-1, words.unsqueeze(-1)).squeeze(-1).float() for each in (log_chances, log_drafted))
    return torch.exp(ours - theirs).clamp(max=1.0).float()


def margin(log_chances: torch.Tensor, log_drafted: torch.Tensor, words: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """How much likelier each text is to the model than to the draft."""
    ours, theirs = (each.gather(-1, words.unsqueeze(-1)).squeeze(-1).float().sum(-1) for each in (log_chances, log_drafted))
    return (ours - theirs).float()


def nucleus(chances: torch.Tensor, share: float, like: torch.Tensor) -> torch.Tensor:
    """The likeliest words that make up a share together."""
    ordered, places = chances.float().sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(before).scatter(-1, places, (before < share).to(before.dtype))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.mlp(self.norm2(x))


class Drafter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.drafts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), Squash(), nn.Linear(WIDTH, WIDTH)) for _ in range(AHEAD))

    def forward(self, words: torch.Tensor) -> dict[str, torch.Tensor]:
        inputs = words[:, :LENGTH]
        x = self.norm(self.blocks(self.words(inputs) + self.places.weight[: inputs.shape[1]]))
        ahead = [x, *(x + draft(x) for draft in self.drafts)]
        weight = self.head.weight.to(self.head(x[:, :1]).dtype)
        losses = [
            ChunkedLoss.apply(hidden.to(weight.dtype).flatten(0, 1), weight, words[:, 1 + far : 1 + far + LENGTH].flatten())
            for far, hidden in enumerate(ahead)
        ]
        with torch.no_grad():
            with torch.autocast(x.device.type, enabled=False):
                logits, drafted = (functional.linear(each.float(), self.head.weight.float()) for each in ahead[:2])
                log_chances, log_drafted = logits.float().log_softmax(-1), drafted.float().log_softmax(-1)
                kept = nucleus(log_chances.exp(), 0.9, weight)
                rest = leftover(log_chances.exp(), log_drafted.exp(), weight)
                chance = taken(log_chances, log_drafted, words[:, 1 : 1 + LENGTH], weight)
                ahead_by = margin(log_chances, log_drafted, words[:, 1 : 1 + LENGTH], weight)
        return {"losses": torch.stack(losses), "kept": kept, "rest": rest, "taken": chance, "margin": ahead_by}


def make() -> nn.Module:
    torch.manual_seed(0)
    model = Drafter()
    with torch.no_grad():
        model.head.weight.mul_(4)
        for draft in model.drafts:
            draft[0].bias.copy_(3.2 * torch.randn(WIDTH).sign())
            draft[2].weight.mul_(0.1)
            draft[2].bias.zero_()
    return model


def batch() -> torch.Tensor:
    return torch.randint(VOCABULARY, (2, LENGTH + AHEAD + 1), generator=torch.Generator().manual_seed(1))


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return (output["losses"] * torch.tensor([1.0, 0.5, 0.25])).sum()


optimizer = None
