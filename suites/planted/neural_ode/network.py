"""A neural differential equation solved by Runge-Kutta of order four, with an adjoint of its own instead of autograd's tape."""

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 1


def rk4(f, t, h, y):
    k1 = f(t, y)
    k2 = f(t + h / 2, y + h / 2 * k1)
    k3 = f(t + h / 2, y + h / 2 * k2)
    k4 = f(t + h, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


class Checkpointed(torch.autograd.Function):
    """One step whose inside is computed again in the backward pass."""

    @staticmethod
    def forward(ctx, func, t, h, y, *params):
        ctx.func, ctx.t, ctx.h = func, t, h
        ctx.save_for_backward(y)
        with torch.no_grad():
            return rk4(func, t, h, y)

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        params = tuple(ctx.func.parameters())
        with torch.enable_grad():
            y = y.detach().requires_grad_(True)
            out = rk4(ctx.func, ctx.t, ctx.h, y)
        grads = torch.autograd.grad(out, (y, *params), grad, allow_unused=True)
        return (None, None, None, *grads)


class Dynamics(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim + 1, hidden), nn.Linear(hidden, dim)

    def forward(self, t, y):
        time = torch.full_like(y[..., :1], t)
        return self.fc2(torch.tanh(self.fc1(torch.cat([y, time], -1).to(self.fc1.weight.dtype)))).to(y.dtype) - 0.3 * y


class LatentODE(nn.Module):
    def __init__(self, channels=3, dim=16, hidden=32, steps=16):
        super().__init__()
        self.encoder, self.to_latent = nn.GRU(channels, 24, batch_first=True), nn.Linear(24, 2 * dim)
        self.dynamics, self.decoder = Dynamics(dim, hidden), nn.Linear(dim, channels)
        self.steps, self.dim = steps, dim

    def forward(self, seen, future, eps):
        h, _ = self.encoder(seen.flip(1))
        mean, logvar = self.to_latent(h[:, -1]).float().chunk(2, -1)
        logvar = logvar.clamp(-8, 8)
        y = mean + eps.float() * torch.exp(0.5 * logvar)
        h, path = 2.0 / self.steps, []
        for i in range(self.steps):
            y = Checkpointed.apply(self.dynamics, i * h, h, y, *self.dynamics.parameters())
            path.append(y)
        made = self.decoder(torch.stack(path, 1).to(self.decoder.weight.dtype))
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(-1).mean()
        return {"loss": F.mse_loss(made.float(), future.float()) + 1e-2 * kl, "made": made, "kl": kl}


def make():
    torch.manual_seed(0)
    return LatentODE()


def batch():
    g = torch.Generator().manual_seed(18)
    t = torch.arange(36) / 6
    phase = 6.28 * torch.rand(8, 1, 3, generator=g)
    wave = torch.sin(t[None, :, None] * torch.tensor([1.0, 1.7, 2.3]) + phase)
    return {"seen": wave[:, :20], "future": wave[:, 20:], "eps": torch.randn(8, 16, generator=g)}


def loss(output):
    return output["loss"]


optimizer = None
