"""A speech encoder of conformer blocks, with lengths given as shares of the longest recording, relative positions, and a decoder that
attends monotonically, in expectation.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
MELS, WIDTH, HEADS, FRAMES, LETTERS, CLASSES = 20, 32, 2, 322, 12, 24
DEEP = WIDTH // HEADS


def present(shares: torch.Tensor, frames: int, like: torch.Tensor) -> torch.Tensor:
    """Which frames of each recording are speech, from its share of the longest."""
    lengths = torch.round(shares.float() * frames).long()
    return torch.arange(frames, device=shares.device) < lengths.unsqueeze(1)


def relative_table(frames: int, like: torch.Tensor) -> torch.Tensor:
    """Sinusoids of every distance, from the farthest behind to the farthest ahead."""
    distance = torch.arange(frames - 1, -frames, -1, device=like.device, dtype=torch.float32)
    rates = 10000 ** (-torch.arange(0, WIDTH, 2, device=like.device, dtype=torch.float32) / WIDTH)
    angles = distance[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1).to(like.dtype)


def survivals(chosen: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """How likely attention is to have passed over all frames before each one."""
    over = (1 - chosen.float()).clamp_min(1e-6)
    return functional.pad(over.cumprod(-1)[..., :-1], (1, 0), value=1.0).float()


def alignment(chosen: torch.Tensor, survive: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Where attention stops at each letter, given where it stopped at the one before; it begins at the first frame."""
    before = torch.zeros_like(chosen[:, 0]).float()
    before[:, 0] = 1
    stops = []
    for p, left in zip(chosen.float().unbind(1), survive.unbind(1), strict=True):
        before = p * left * (before / left.clamp(1e-10, 1.0)).cumsum(-1)
        stops.append(before)
    return torch.stack(stops, 1).float()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.place, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.content, self.position = nn.Parameter(0.1 * torch.randn(HEADS, 1, DEEP)), nn.Parameter(0.1 * torch.randn(HEADS, 1, DEEP))

    def forward(self, x: torch.Tensor, speech: torch.Tensor) -> torch.Tensor:
        b, frames, _ = x.shape
        q, k, v = self.qkv(x).view(b, frames, 3, HEADS, DEEP).permute(2, 0, 3, 1, 4)
        table = self.place(relative_table(frames, q)).view(-1, HEADS, DEEP).transpose(0, 1)
        near = (q + self.position.to(q.dtype)) @ table.transpose(-1, -2)
        near = functional.pad(near, (1, 0)).view(b, HEADS, 2 * frames, frames)[:, :, 1:].reshape(b, HEADS, frames, 2 * frames - 1)
        scores = ((q + self.content.to(q.dtype)) @ k.transpose(-1, -2) + near[..., :frames]) / DEEP**0.5
        weights = scores.float().masked_fill(~speech[:, None, None], float("-inf")).softmax(-1)
        return self.out((weights.to(v.dtype) @ v).transpose(1, 2).reshape(b, frames, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.first, self.second = (nn.Sequential(nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, WIDTH)) for _ in range(2))
        self.attention = Attention()
        self.gate, self.mix = nn.Conv1d(WIDTH, 2 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH)
        self.batch_norm, self.back = nn.BatchNorm1d(WIDTH), nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x: torch.Tensor, speech: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.first(self.norms[0](x))
        x = x + self.attention(self.norms[1](x), speech)
        waves = functional.glu(self.gate((self.norms[2](x) * speech.unsqueeze(-1)).transpose(1, 2)), 1)
        x = x + self.back(functional.silu(self.batch_norm(self.mix(waves)))).transpose(1, 2)
        return x + 0.5 * self.second(self.norms[3](x))


class Conformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bring = nn.Linear(MELS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.letters = nn.Parameter(torch.randn(LETTERS, WIDTH))
        self.eagerness = nn.Parameter(torch.linspace(-6.5, -0.5, LETTERS))
        self.key, self.read = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, mels: torch.Tensor, shares: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.bring(mels)
        speech = present(shares, mels.shape[1], x)
        for block in self.blocks:
            x = block(x, speech)
        energy = self.letters.to(x.dtype) @ self.key(x).transpose(1, 2) / WIDTH**0.5
        chosen = torch.sigmoid(energy.float() + self.eagerness.float().unsqueeze(-1)) * speech.unsqueeze(1)
        with torch.autocast(x.device.type, enabled=False):
            survive = survivals(chosen, x)
            stops = alignment(chosen, survive, x)
        heard = stops.to(x.dtype) @ x
        return {"letters": self.read(heard), "stops": stops}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Conformer()


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([322, 311, 297, 283, 275, 261])
    return {"mels": torch.randn(6, FRAMES, MELS, generator=generator), "shares": lengths / FRAMES}


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    targets = torch.randint(CLASSES, output["letters"].shape[:2], generator=torch.Generator().manual_seed(2))
    return functional.cross_entropy(output["letters"].float().flatten(0, 1), targets.flatten())


optimizer = None
