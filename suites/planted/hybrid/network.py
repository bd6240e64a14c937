"""A hybrid language model: state-space layers in chunks, attention with a cap on its scores, a block that takes only some tokens."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
ROWS, PLACES, CHUNK, WIDTH, HEADS, STATE, WORDS, TAKEN, BASE = 2, 64, 32, 48, 4, 8, 60, 32, 12
DIM = WIDTH // HEADS
CAP, SHARP = 20.0, 5.0


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def decays(exponents: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """What is left at each place of what each earlier place of a chunk put in: [..., places, places] of [..., places]."""
    total = exponents.float().cumsum(-1)
    apart = total.unsqueeze(-1) - total.unsqueeze(-2)
    seen = torch.ones(apart.shape[-2:], dtype=torch.bool).tril()
    return torch.exp(apart.masked_fill(~seen, -torch.inf))


def strides(steps: torch.Tensor, bias: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much time passes at each token: a thousandth to a tenth."""
    return functional.softplus(steps.float() + bias.float())


def carried(chunks: torch.Tensor, left: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The state with which each chunk begins, of what each chunk adds and what is left of the state after it."""
    state, states = torch.zeros_like(chunks[:, 0]), []
    for turn in range(chunks.shape[1]):
        states.append(state)
        state = left[:, turn, :, None, None] * state + chunks[:, turn]
    return torch.stack(states, 1)


def together(documents: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Which tokens are of one document, of the numbers of documents."""
    return documents.unsqueeze(-1) == documents.unsqueeze(-2)


def turned(x: torch.Tensor, places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """A rotary encoding of places in long documents."""
    angles = (places.float().unsqueeze(-1) * 10_000.0 ** (-torch.arange(0, DIM, 2).float() / DIM)).unsqueeze(1)
    left, right = x.float().chunk(2, -1)
    return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1)


def capped(scores: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return CAP * torch.tanh(scores.float() / CAP)


def chances(scores: torch.Tensor, seen: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)


def depth_loss(logits: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The square of the logarithm of the sum of exponentials, which keeps logits from drifting."""
    return torch.logsumexp(logits.float(), -1).square()


def costs(logits: torch.Tensor, wanted: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return torch.logsumexp(logits.float(), -1) - logits.float().gather(-1, wanted.unsqueeze(-1)).squeeze(-1)


def per_token(total: torch.Tensor, counted: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The mean over the tokens that count, of texts of which many batches are gathered."""
    return total / counted.float().sum()


class Mixer(nn.Module):
    """A state-space layer with one decay for each head, computed chunk by chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.enter, self.out = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH + 2 * STATE + HEADS), nn.Linear(WIDTH, WIDTH)
        wanted = torch.logspace(-2.3, -1, HEADS)
        self.bias = nn.Parameter(wanted + torch.log(-torch.expm1(-wanted)))
        self.rate = nn.Parameter(torch.log(torch.linspace(2, 16, HEADS)))

    def forward(self, x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        value, gate, write, read, steps = self.enter(self.norm(x).to(x.dtype)).split([WIDTH, WIDTH, STATE, STATE, HEADS], -1)
        with torch.autocast("cpu", enabled=False):
            size = strides(steps, self.bias, low)
            exponents = (-torch.exp(self.rate.float()) * size).unflatten(1, (-1, CHUNK)).transpose(2, 3)
            given = (value.float().unflatten(-1, (HEADS, DIM)) * size.unsqueeze(-1)).unflatten(1, (-1, CHUNK))
            write, read = (each.float().unflatten(1, (-1, CHUNK)) for each in (write, read))
            weights = decays(exponents, low)
            near = torch.einsum("bcls,bcms,bchlm,bcmhd->bclhd", read, write, weights, given)
            chunks = torch.einsum("bcms,bchm,bcmhd->bchds", write, weights[..., -1, :], given)
            total = exponents.cumsum(-1)
            states = carried(chunks, total[..., -1].exp(), low)
            far = torch.einsum("bcls,bchds,bchl->bclhd", read, states, total.exp())
        mixed = (near + far).flatten(3).flatten(1, 2).to(gate.dtype)
        return x + self.out(mixed * functional.silu(gate))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        query, key, value = (each.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for each in self.qkv(self.norm(x).to(x.dtype)).chunk(3, -1))
        with torch.autocast("cpu", enabled=False):
            query, key = (turned(functional.rms_norm(each.float(), (DIM,)), places, low).to(each.dtype) for each in (query, key))
        scores = SHARP * (query @ key.transpose(-1, -2)) / DIM**0.5
        with torch.autocast("cpu", enabled=False):
            weights = chances(capped(scores, low), seen.unsqueeze(1), low)
        return x + self.out((weights.to(value.dtype) @ value).transpose(1, 2).flatten(2))


class Deep(nn.Module):
    """Two layers for the tokens that a router takes; the others pass by."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 1)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        normed = self.norm(x).to(x.dtype)
        with torch.autocast("cpu", enabled=False):
            scores = functional.linear(normed.float(), self.router.weight.float(), self.router.bias.float()).squeeze(-1)
            score, taken = scores.topk(TAKEN, -1)
        some = normed.gather(1, taken.unsqueeze(-1).expand(-1, -1, WIDTH))
        change = self.narrow(functional.gelu(self.wide(some))) * torch.sigmoid(score).unsqueeze(-1).to(x.dtype)
        return x.scatter_add(1, taken.unsqueeze(-1).expand(-1, -1, WIDTH), change.to(x.dtype))


class Hybrid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mixers, self.attention = nn.ModuleList(Mixer() for _ in range(2)), Attention()
        self.deep, self.norm, self.out = Deep(), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(
        self, words: torch.Tensor, places: torch.Tensor, documents: torch.Tensor, wanted: torch.Tensor, counted: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        low = low_dtype(self.out.weight)
        scale = WIDTH**0.5
        x = self.words(words) * scale
        with torch.autocast("cpu", enabled=False):
            seen = together(documents, low) & torch.ones(PLACES, PLACES, dtype=torch.bool).tril()
        x = self.mixers[1](self.attention(self.mixers[0](x, low), seen, places, low), low)
        x = self.deep(x, low)
        logits = self.out(self.norm(x).to(x.dtype)) * (BASE / WIDTH)
        with torch.autocast("cpu", enabled=False):
            each = costs(4 * logits.float(), wanted, low) + 1e-4 * depth_loss(logits, low)
            cost = per_token((each * counted.float()).sum(), counted, low)
        return {"loss": cost, "logits": logits, "each": each}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Hybrid()


def batch() -> dict[str, torch.Tensor]:
    """Pieces of some long documents, packed into rows."""
    generator = torch.Generator().manual_seed(24)
    cuts = torch.tensor([[20, 41], [9, 50]])
    piece = (torch.arange(PLACES) >= cuts.unsqueeze(-1)).sum(1)
    begin = torch.tensor([[310, 4_102, 2_055], [1_517, 25, 3_333]])
    return {
        "words": torch.randint(0, WORDS, (ROWS, PLACES), generator=generator),
        "places": torch.arange(PLACES) + begin.gather(1, piece),
        "documents": piece + torch.tensor([[4_101], [7_345]]),
        "wanted": torch.randint(0, WORDS, (ROWS, PLACES), generator=generator),
        "counted": torch.rand(ROWS, PLACES, generator=generator) < 0.9,
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
