"""A language model whose layers remember by a gated delta rule, in chunks, with attention over a sliding window in between."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
VOCABULARY, WIDTH, HEADS, LENGTH, CHUNK, WINDOW = 97, 64, 4, 256, 32, 48


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def unit(x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Vectors of length one."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-10)


def log_decays(given: torch.Tensor, rate: torch.Tensor, bias: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much of the memory each token lets go, as a logarithm."""
    return -torch.exp(rate.float()) * functional.softplus(given.float() + bias.float())


def within(log_decay: torch.Tensor, low: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The decay from a chunk's beginning to each of its tokens, and between each two of them."""
    sums = log_decay.flatten(-2).cumsum(-1).view_as(log_decay)
    begin = sums[..., :1] - log_decay[..., :1]
    between = torch.exp((sums.unsqueeze(-1) - sums.unsqueeze(-2)).clamp(max=0)).tril()
    return torch.exp(sums - begin).float(), between.float()


def solved(matrix: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The inverse of one plus a matrix that is strictly lower triangular, row by row."""
    rows = [torch.eye(CHUNK, device=matrix.device)[0].expand(*matrix.shape[:-2], -1).to(matrix.dtype)]
    for row in range(1, CHUNK):
        before = torch.stack(rows, -2)
        own = torch.eye(CHUNK, device=matrix.device)[row].to(matrix.dtype)
        rows.append(own - (matrix[..., row, :row].unsqueeze(-1) * before).sum(-2))
    return torch.stack(rows, -2).float()


def window_mask(padded: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """What is added to the scores: nothing for the last tokens that are no padding."""
    at = torch.arange(LENGTH, device=padded.device)
    near = (at.unsqueeze(0) <= at.unsqueeze(1)) & (at.unsqueeze(1) - at.unsqueeze(0) < WINDOW)
    seen = near & ~padded.unsqueeze(1)
    return torch.where(seen, 0.0, -1e9).unsqueeze(1)


class DeltaRule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.gates = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * HEADS)
        self.rate, self.bias = nn.Parameter(torch.linspace(-0.7, 0.3, HEADS)), nn.Parameter(torch.full((HEADS,), -2.8))
        self.norm, self.out = nn.LayerNorm(WIDTH // HEADS), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = low_dtype(self.qkv.weight)
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n // CHUNK, CHUNK, 3, HEADS, -1).permute(3, 0, 4, 1, 2, 5)
        decay, write = self.gates(x).view(b, n // CHUNK, CHUNK, 2, HEADS).permute(3, 0, 4, 1, 2)
        with torch.autocast(x.device.type, enabled=False):
            q, k, v, write = unit(q, low), unit(k, low), v.float(), torch.sigmoid(write.float()).unsqueeze(-1)
            log_decay = log_decays(decay, self.rate.view(-1, 1, 1), self.bias.view(-1, 1, 1), low)
            to, between = within(log_decay, low)
            inverse = solved((write * (k @ k.transpose(-1, -2)) * between).tril(-1), low)
            news, keys = inverse @ (write * v), inverse @ (write * k * to.unsqueeze(-1))
            state, found = torch.zeros(b, HEADS, k.shape[-1], v.shape[-1], device=x.device), []
            for at in range(n // CHUNK):
                new = news[:, :, at] - keys[:, :, at] @ state
                own = (q[:, :, at] @ k[:, :, at].transpose(-1, -2)) * between[:, :, at]
                found.append((q[:, :, at] * to[:, :, at].unsqueeze(-1)) @ state + own @ new)
                left = to[:, :, at, -1:].unsqueeze(-1)
                state = state * left + (k[:, :, at] * between[:, :, at, -1].unsqueeze(-1)).transpose(-1, -2) @ new
            y = torch.stack(found, 2)
        y = self.norm(y.to(self.norm.weight.dtype)).permute(0, 2, 3, 1, 4).reshape(b, n, WIDTH)
        return self.out(y)


class Window(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)).float() / (WIDTH // HEADS) ** 0.5 + mask
        return self.out((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).reshape(b, n, WIDTH))


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.memories = nn.ModuleList(DeltaRule() for _ in range(2))
        self.window, self.mlps = Window(), nn.ModuleList(Mlp() for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(6))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        padded = words == 0
        x = self.words(words)
        x = x + self.memories[0](self.norms[0](x))
        x = x + self.mlps[0](self.norms[1](x))
        x = x + self.window(self.norms[2](x), window_mask(padded, low_dtype(x)))
        x = x + self.mlps[1](self.norms[3](x))
        x = x + self.memories[1](self.norms[4](x))
        x = x + self.mlps[2](self.norms[5](x))
        logits = self.head(self.norm(x))
        real = ~padded[:, 1:]
        return functional.cross_entropy(logits[:, :-1][real].float(), words[:, 1:][real])


def make() -> nn.Module:
    """Keys of one kind of token are nearly alike, as they are after training; the first layer's keys are small."""
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        for memory, size in zip(model.memories, (3e-4, 1.0), strict=True):
            memory.qkv.weight[WIDTH : 2 * WIDTH].mul_(size)
        model.memories[1].gates.bias[HEADS:].fill_(2.0)
    return model


def batch() -> torch.Tensor:
    """Two texts; the shorter one begins with padding."""
    words = torch.randint(1, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    words[1, :100] = 0
    return words


def loss(output: torch.Tensor) -> torch.Tensor:
    return output


optimizer = None
