"""A language model whose memory learns while it reads, after Titans, TTT and MesaNet: a gradient step on each chunk, with momentum and forgetting."""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 1


class Sizes(NamedTuple):
    vocab: int = 59
    width: int = 24
    chunk: int = 8
    chunks: int = 6
    rows: int = 2
    base: float = 500_000.0
    stretch: float = 0.9985
    ridge: float = 1e-3


def rotated(x: Tensor, place: Tensor, sizes: Sizes) -> Tensor:
    """Rotary places. A document may begin at any place of a book."""
    half = x.shape[-1] // 2
    speed = sizes.base ** (-torch.arange(half).float() / half)
    angle = place[..., None].float() * speed
    one, two = x.float().chunk(2, -1)
    return torch.cat((one * angle.cos() - two * angle.sin(), one * angle.sin() + two * angle.cos()), -1)


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def age(place: Tensor, words: Tensor, now: Tensor) -> Tensor:
    """For each word, the logarithm of how long ago its line of the table was written."""
    written = now[:, words[0]]
    return torch.log1p((place - written).float())


def on_page(place: Tensor) -> Tensor:
    """How far down its page of 64 words each word is."""
    down = place % 64
    return down.float() / 64


def remembered(logits: Tensor) -> Tensor:
    """The logarithm of what is kept of the memory from one word to the next, added up over a chunk."""
    return F.logsigmoid(logits.float()).cumsum(-1)


def between(logs: Tensor) -> Tensor:
    """What word i leaves of what word j wrote."""
    apart = logs[..., :, None] - logs[..., None, :]
    return apart.tril().exp().tril()


def surprise(memory: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """By how much the memory is wrong about each word."""
    return torch.einsum("bcd,bde->bce", keys, memory) - values


def written(memory: Tensor, moment: Tensor, rate: Tensor) -> Tensor:
    """The memory after a step along its moment."""
    return memory - rate * moment


def inverse(past: Tensor, keys: Tensor, ridge: float) -> Tensor:
    """The inverse of the keys' covariance, one key after the other (Sherman and Morrison), as recursive least squares keep it."""
    for key in keys.unbind(1):
        seen = torch.einsum("bde,be->bd", past, key)
        past = past - seen[:, :, None] * seen[:, None, :] / (1 + (seen * key).sum(-1))[:, None, None]
    return past


def leverage(past: Tensor, key: Tensor) -> Tensor:
    """How new a key is: 1 for what was never seen, nearly 0 for what was seen often."""
    known = torch.einsum("bd,bde,be->b", key, past, key)
    return known / (1 + known)


def length(moment: Tensor) -> Tensor:
    """Of a moment, which is small once the text is known."""
    return torch.linalg.vector_norm(moment.flatten(1), dim=1)


def orthogonal(moment: Tensor, turns: int = 4) -> Tensor:
    """Muon's step for the memory."""
    x = moment / (length(moment)[:, None, None] + 1e-7)
    for _ in range(turns):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def horizon(logits: Tensor) -> Tensor:
    """Over how many words a head remembers."""
    return 1 / torch.sigmoid(-logits.float()).mean(-1)


def learnt(before: Tensor, after: Tensor) -> Tensor:
    """What part of the error a step has taken away."""
    first, last = before.square().sum((1, 2)), after.square().sum((1, 2))
    return (first - last) / first


def unevenness(costs: Tensor) -> Tensor:
    """The variance of what words cost, for each row."""
    return (costs - costs.mean(1, keepdim=True)).square().mean(1)


def perplexity(costs: Tensor, counted: Tensor) -> Tensor:
    """Of a book: costs of what words stand for, by how often they do."""
    total = counted.sum(-1)
    return (costs * counted / total[:, None]).sum(-1).exp()


class Memory(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.asks, self.keys, self.values = (nn.Linear(sizes.width, sizes.width, bias=False) for _ in range(3))
        self.gate = nn.Linear(sizes.width, 1)
        self.start = nn.Parameter(0.2 * torch.eye(sizes.width))
        nn.init.normal_(self.gate.weight, std=0.02)

    def forward(self, x: Tensor, place: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        turn = partial(rotated, place=place, sizes=self.sizes)
        asks, keys, values = turn(unit(self.asks(x).float())), turn(unit(self.keys(x).float())), self.values(x).float()
        gates = self.gate(x).squeeze(-1).float() + 6.2
        with torch.autocast(x.device.type, enabled=False):
            return self.read(asks, keys, values, gates)

    def read(self, asks: Tensor, keys: Tensor, values: Tensor, gates: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """What the memory answers, chunk by chunk, and what it has learnt by each."""
        sizes = self.sizes
        start = memory = self.start.float().expand(len(keys), -1, -1)
        values = 2e-4 * values + keys @ memory
        moment, past = torch.zeros_like(memory), torch.eye(sizes.width).expand_as(memory) / sizes.ridge
        read, errors, new, moves, gained = [], [], [], [], []
        for at in range(0, keys.shape[1], sizes.chunk):
            part = slice(at, at + sizes.chunk)
            logs = remembered(gates[:, part])
            wrong = surprise(memory, keys[:, part], values[:, part])
            moment = 0.9 * moment + torch.einsum("bcd,bce->bde", keys[:, part], wrong * between(logs)[:, -1, :, None])
            new.append(leverage(past, keys[:, part][:, 0]))
            past = inverse(past, keys[:, part], sizes.ridge)
            kept = start + (memory - start) * logs[:, -1:, None].exp()
            memory = written(kept, moment + 1e-5 * orthogonal(moment), torch.tensor(0.02))
            read.append(torch.einsum("bcd,bde->bce", asks[:, part], memory))
            gained.append(learnt(wrong, surprise(memory, keys[:, part], values[:, part])))
            errors.append(wrong)
            moves.append(length(moment))
        noted = {"wrong": torch.cat(errors, 1), "new": torch.stack(new, 1), "moves": torch.stack(moves, 1), "learnt": torch.stack(gained, 1)}
        return torch.cat(read, 1), noted | {"past": past, "horizon": horizon(gates)}


class Titans(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.words, self.memory, self.norm = nn.Embedding(sizes.vocab, sizes.width), Memory(sizes), nn.RMSNorm(sizes.width)
        self.mix = nn.Sequential(nn.Linear(sizes.width, 3 * sizes.width), nn.SiLU(), nn.Linear(3 * sizes.width, sizes.width))
        self.head = nn.Linear(sizes.width, sizes.vocab)

    def forward(self, words: Tensor, place: Tensor, now: Tensor, counted: Tensor) -> dict[str, Tensor]:
        known = 0.1 * age(place, words, now) + on_page(place)
        x = self.words(words) + known[..., None].to(self.words.weight.dtype)
        read, noted = self.memory(self.norm(x), place)
        x = x + read.to(x.dtype)
        x = x + self.mix(self.norm(x))
        logits = self.head(self.norm(x)).float()
        costs = F.cross_entropy(logits[:, :-1].transpose(1, 2), words[:, 1:], reduction="none")
        noted["perplexity"] = perplexity(costs[:, 1:], counted.float())
        return noted | {"logits": logits, "costs": costs, "uneven": unevenness(costs)}


def loss(output: dict[str, Tensor]) -> Tensor:
    cost = output["costs"].mean() + 1e-3 * output["logits"].logsumexp(-1).square().mean() + 0.1 * output["new"].mean()
    cost = cost + output["wrong"].square().mean() + 0.1 * output["moves"].mean() - 0.01 * output["learnt"].mean()
    cost = cost + 1e-6 * output["past"].square().mean() + 1e-3 * output["perplexity"].log().mean()
    return cost + 1e-4 * (output["horizon"].log().mean() + output["uneven"].mean())


def make() -> nn.Module:
    torch.manual_seed(0)
    return Titans(Sizes())


def batch() -> dict[str, Tensor]:
    sizes, generator = Sizes(), torch.Generator().manual_seed(61)
    words = torch.randint(0, sizes.vocab, (1, sizes.chunk * sizes.chunks), generator=generator).expand(sizes.rows, -1).clone()
    start = torch.randint(30_000, 40_000, (sizes.rows, 1), generator=generator)
    often = torch.randint(60, 240, (sizes.rows, words.shape[1] - 2), generator=generator)
    often[:, 0] = torch.randint(62_000, 64_000, (sizes.rows,), generator=generator)
    return {
        "words": words,
        "place": start + torch.arange(words.shape[1]),
        "now": start - torch.randint(1, 400, (sizes.rows, sizes.vocab), generator=generator),
        "counted": often,
    }


def optimizer(params) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-2, eps=1e-5)
