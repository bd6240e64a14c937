"""A network with a memory: an LSTM that reads and writes by content and by place, and remembers in which order it wrote."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
ROWS, TIMES, BITS, CELLS, WIDE, HIDDEN, DIGITS = 4, 20, 8, 24, 16, 48, 12


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def digits(places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The binary digits of each place in a long recording."""
    return ((places.unsqueeze(-1) // 2 ** torch.arange(DIGITS)) % 2).float()


def stamped(stamps: torch.Tensor, weights: torch.Tensor, now: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """When each cell was written to last, on average."""
    return stamps + weights * (now.float() - stamps)


def ages(stamps: torch.Tensor, now: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How long ago that was, in hundreds of places."""
    return (now.float() - stamps) / 100


def similar(memory: torch.Tensor, key: torch.Tensor, strength: torch.Tensor, fade: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much each cell is like the key, as weights that add up to one; old cells count less."""
    key = functional.normalize(key.float(), dim=-1, eps=1e-6)
    cosines = (functional.normalize(memory, dim=-1, eps=1e-6) * key.unsqueeze(1)).sum(-1)
    return torch.softmax(strength.float() * cosines - fade, -1)


def moved(weights: torch.Tensor, shift: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Weights turned by a cell to the left, not at all, and by a cell to the right."""
    shift = torch.softmax(shift.float(), -1)
    return sum(shift[:, turn].unsqueeze(-1) * weights.roll(turn - 1, -1) for turn in range(3))


def sharpened(weights: torch.Tensor, power: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    raised = weights.clamp(min=1e-12) ** power.float()
    return raised / raised.sum(-1, keepdim=True)


def written(memory: torch.Tensor, weights: torch.Tensor, erase: torch.Tensor, add: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    weights = weights.unsqueeze(-1)
    return memory * (1 - weights * erase.float().unsqueeze(1)) + weights * add.float().unsqueeze(1)


def precedence(before: torch.Tensor, weights: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much each cell was the last one written to."""
    return (1 - weights.sum(-1, keepdim=True)) * before + weights


def linked(link: torch.Tensor, weights: torch.Tensor, before: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much each cell was written right after each other one."""
    keep = 1 - weights.unsqueeze(-1) - weights.unsqueeze(-2)
    return (keep * link + weights.unsqueeze(-1) * before.unsqueeze(-2)) * (1 - torch.eye(CELLS))


def uncertainty(weights: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The entropy of weights, in nats."""
    return -(weights * torch.log(weights + 1e-9)).sum(-1)


def free(usage: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The chance that none of the turns so far has used a cell, of the chances that each turn left it alone."""
    return torch.exp(torch.log1p(-usage.clamp(max=0.999)).sum(0))


class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(BITS + DIGITS + WIDE, HIDDEN)
        self.keys, self.changes = nn.Linear(HIDDEN, 2 * WIDE), nn.Linear(HIDDEN, 2 * WIDE)
        self.ways, self.out = nn.Linear(HIDDEN, 12), nn.Linear(HIDDEN + WIDE, BITS)
        self.start = nn.Parameter(torch.randn(CELLS, WIDE))

    def weights(
        self, memory: torch.Tensor, before: torch.Tensor, key: torch.Tensor, ways: torch.Tensor, fade: torch.Tensor, low: torch.dtype
    ) -> torch.Tensor:
        """Where a head reads or writes: by content, by the last place, moved and sharpened."""
        strength, gate, power = 4 * functional.softplus(ways[:, :1].float()), torch.sigmoid(ways[:, 1:2].float()), ways[:, 2:3].float()
        found = similar(memory, key, strength, fade, low)
        mixed = gate * found + (1 - gate) * before
        return sharpened(moved(mixed, ways[:, 3:], low), 1 + 5 * functional.softplus(power), low)

    def forward(self, bits: torch.Tensor, places: torch.Tensor, wanted: torch.Tensor, asked: torch.Tensor) -> dict[str, torch.Tensor]:
        low = low_dtype(self.out.weight)
        dtype = self.out.weight.dtype
        stamps = digits(places, low)
        memory = self.start.float().expand(ROWS, -1, -1)
        read = write = torch.full((ROWS, CELLS), 1 / CELLS)
        last, link = torch.zeros(ROWS, CELLS), torch.zeros(ROWS, CELLS, CELLS)
        seen = torch.zeros(ROWS, WIDE)
        when = (places[:, :1] - 60).float().expand(-1, CELLS)
        state, guesses, used, spread = None, [], [], []
        for turn in range(TIMES):
            state = self.cell(torch.cat([bits[:, turn].to(dtype), stamps[:, turn].to(dtype), seen.to(dtype)], -1), state)
            hidden = state[0]
            read_key, write_key = self.keys(hidden).chunk(2, -1)
            read_ways, write_ways = self.ways(hidden).chunk(2, -1)
            erase, add = self.changes(hidden).chunk(2, -1)
            now = places[:, turn].unsqueeze(-1)
            with torch.autocast("cpu", enabled=False):
                fade = ages(when, now, low)
                write = self.weights(memory, write, write_key, write_ways, fade, low)
                when = stamped(when, write, now, low)
                memory = written(memory, write, torch.sigmoid(erase), torch.tanh(add), low)
                link = linked(link, write, last, low)
                last = precedence(last, write, low)
                read = self.weights(memory, read, read_key, read_ways, fade, low)
                follow = (link @ read.unsqueeze(-1)).squeeze(-1)
                seen = ((0.8 * read + 0.2 * follow).unsqueeze(1) @ memory).squeeze(1)
                used.append(write)
                spread.append(uncertainty(read, low))
            guesses.append(self.out(torch.cat([hidden, seen.to(hidden.dtype)], -1)))
        guess = torch.stack(guesses, 1).float()
        with torch.autocast("cpu", enabled=False):
            apart = functional.binary_cross_entropy_with_logits(guess, wanted.float(), reduction="none")
            cost = (apart * asked.float().unsqueeze(-1)).sum() / (asked.sum() * BITS)
            unused = free(torch.stack(used), low)
        return {"loss": cost + 0.01 * torch.stack(spread).mean(), "guess": guess, "memory": memory, "unused": unused, "fade": fade}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Memory()


def batch() -> dict[str, torch.Tensor]:
    """Words of bits at places of recordings; the second half of the turns asks for what the first half showed."""
    generator = torch.Generator().manual_seed(21)
    bits = torch.randint(0, 2, (ROWS, TIMES, BITS), generator=generator)
    bits[:, TIMES // 2 :] = 0
    wanted = bits.roll(TIMES // 2, 1)
    places = torch.tensor([[37], [1_210], [2_750], [3_391]]) + 3 * torch.arange(TIMES)
    asked = (torch.arange(TIMES) >= TIMES // 2).expand(ROWS, -1).clone()
    return {"bits": bits, "places": places, "wanted": wanted, "asked": asked}


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
