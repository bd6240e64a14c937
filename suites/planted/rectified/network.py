"""The training loop of a picture model, after SD3 and SiT: rectified flow, adaptive norms, an average of the weights, guidance without labels."""

import copy
import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

SIDE, PATCH, DIM, HEADS, DEPTH, CLASSES = 8, 2, 48, 4, 2, 10
ROWS, MICRO, STEPS, BINS, TICKS = 6, 2, 6, 4, 2**20
TOTAL, RATE, SHIFT, DECAY, GUIDANCE, TURNS = 40_000, 2e-3, 3.0, 0.9998, 4.0, 24
PRECISIONS = ("bf16-mixed", "16-mixed")


def shifted(ticks):
    """The time of each picture: nought is the picture, one is noise. Large pictures are trained at later times."""
    time = ticks.float() / TICKS
    return SHIFT * time / (1 + (SHIFT - 1) * time)


def timestep_embedding(time, channels=DIM):
    """Sines and cosines of thousandths."""
    frequencies = torch.exp(-math.log(10_000) * torch.arange(channels // 2, dtype=torch.float32) / (channels // 2))
    angles = 1000 * time.float()[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), -1)


def loss_weight(time):
    """What turns an error of velocities into one of noise, near the end of the way."""
    return (1 / (1 - time).square()).clamp_max(1e7).sqrt()


def learning_rate(done):
    """Warmed up, held, and let down by a square root at the end."""
    share = done.float() / TOTAL
    down = 5 * (1 - share.sqrt())
    return RATE * torch.minimum(down, torch.ones_like(down))


def moved_by(done):
    """The share that the average takes of the weights, larger at first."""
    return torch.maximum(9 / (10 + done.float()), torch.tensor(1 - DECAY, dtype=torch.float32))


def gradient_norm(gradients):
    """Of all weights together."""
    return torch.stack([each.float().square().sum() for each in gradients]).sum().sqrt()


def counted(seen, time):
    """How many pictures each quarter of the way has seen."""
    return seen + torch.bincount((time * BINS).long().clamp_max(BINS - 1), minlength=BINS)


def modulated(x, shift, scale):
    return F.layer_norm(x.float(), (DIM,)) * (1 + scale[:, None]) + shift[:, None]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(approximate="tanh"), nn.Linear(4 * DIM, DIM))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(DIM, 6 * DIM))

    def forward(self, x, condition):
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = self.modulation(condition).chunk(6, -1)
        query, key, value = self.qkv(modulated(x, shift, scale)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + gate[:, None] * self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + gate_mlp[:, None] * self.mlp(modulated(x, shift_mlp, scale_mlp))


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.place = nn.Linear(3 * PATCH * PATCH, DIM), nn.Parameter(0.1 * torch.randn((SIDE // PATCH) ** 2, DIM))
        self.time = nn.Sequential(nn.Linear(DIM, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.label = nn.Embedding(CLASSES + 1, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.final = nn.Linear(DIM, 3 * PATCH * PATCH)

    def forward(self, picture, time, label):
        rows = picture.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        x = self.patch(rows) + self.place
        condition = self.time(timestep_embedding(time)) + self.label(label)
        for block in self.blocks:
            x = block(x, condition)
        x = self.final(F.layer_norm(x.float(), (DIM,)))
        grid = x.unflatten(1, (SIDE // PATCH, -1)).unflatten(-1, (3, PATCH, PATCH))
        return grid.permute(0, 3, 1, 4, 2, 5).reshape(picture.shape)


def guided(model, weights, picture, time, label):
    """Away from what no label would give."""
    both = torch.cat((label, torch.full_like(label, CLASSES)))
    velocity = functional_call(model, weights, (picture.repeat(2, 1, 1, 1), time.repeat(2), both)).float()
    named, plain = velocity.chunk(2)
    return plain + GUIDANCE * (named - plain)


def sampled(model, weights, noise, label):
    """Pictures of these labels, by Euler's steps of different length, and the times they were made at."""
    picture, times = noise, torch.linspace(1, 0, TURNS + 1, dtype=torch.float32).square()
    for time, after in itertools.pairwise(times):
        velocity = guided(model, weights, picture, time.expand(len(label)), label)
        picture = picture + (after - time) * velocity
    return picture


class Training(nn.Module):
    def __init__(self):
        super().__init__()
        self.dit = DiT()
        self.average = copy.deepcopy(self.dit).requires_grad_(False)
        for each in self.average.parameters():
            each.add_(0.03 * torch.randn_like(each))
        self.register_buffer("seen", torch.tensor([3_011, 2_877, 4_403, 5_021]))
        self.register_buffer("done", torch.tensor(39_870))
        self.register_buffer("picture", torch.zeros(2, 3, SIDE, SIDE))


def step(model, inputs, optimizer, scaler, autocast):
    trained = list(model.dit.parameters())
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(model.done).item()
    optimizer.zero_grad(set_to_none=True)
    for pictures, labels, noise, ticks in zip(*inputs["training"], strict=True):
        time = shifted(ticks)
        far = time[:, None, None, None]
        mixed = (1 - far) * pictures + far * noise
        with autocast():
            velocity = model.dit(mixed, time, labels)
        error = (velocity.float() - (noise - pictures)).square().mean((1, 2, 3))
        loss = (loss_weight(time) * error).sum() / loss_weight(time).sum()
        scaler.scale(loss / MICRO).backward()
        model.seen = counted(model.seen, time)
    scaler.unscale_(optimizer)
    share = (0.1 / (gradient_norm([each.grad for each in trained]) + 1e-6)).clamp_max(1)
    torch._foreach_mul_([each.grad for each in trained], share)
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        torch._foreach_lerp_(list(model.average.parameters()), trained, moved_by(model.done).item())
    model.done += 1
    if model.done % STEPS == 0:
        with torch.no_grad(), autocast():
            model.picture = sampled(model.average, dict(model.average.named_parameters()), *inputs["shown"])


def make():
    torch.manual_seed(0)
    return Training()


def batch():
    generator = torch.Generator().manual_seed(44)
    pictures = torch.rand(MICRO, ROWS, 3, SIDE, SIDE, generator=generator) * 2 - 1
    labels = torch.randint(0, CLASSES + 1, (MICRO, ROWS), generator=generator)
    noise = torch.randn(pictures.shape, generator=generator)
    ticks = torch.randint(TICKS // 8, TICKS, (MICRO, ROWS), generator=generator)
    ticks[:, 0] = torch.tensor([TICKS - 4_000, TICKS - 5_870])
    shown = torch.randn(2, 3, SIDE, SIDE, generator=generator), torch.tensor([3, 8])
    return {"training": (pictures, labels, noise, ticks), "shown": shown}


def optimizer(params):
    return torch.optim.AdamW(params, lr=RATE, betas=(0.9, 0.95))
