"""A neural receiver for radio, as DeepRx is: pilots tell the channel, a network cleans the estimate, and each bit gets a log-likelihood ratio."""

import math

import torch
import torch.nn.functional as F
from torch import nn

SLOTS, CARRIERS, ANTENNAS, STREAMS, DIM = 14, 48, 4, 2, 32
SAMPLES = 1096
POINTS = (-0.9487, -0.3162, 0.3162, 0.9487)
STEPS = 1


def turns(hertz, rate):
    """By what angle the carrier is off at the start of each slot. Both: whole hertz, [B]."""
    cycles = torch.arange(SLOTS) * SAMPLES * (hertz.double() / rate)[:, None]
    return (2 * math.pi * torch.remainder(cycles, 1)).float()


def undone(waves, angle):
    """The waves, turned back. waves: [B, ANTENNAS, SLOTS, CARRIERS], complex; angle: [B, SLOTS]."""
    turn = torch.complex(angle.cos(), -angle.sin())
    return waves * turn[:, None, :, None]


def estimated(heard, sent):
    """The channel where a pilot was sent: least squares of each carrier."""
    return heard * sent.conj() / sent.abs().square()


def noise(pilots):
    """The power of what differs between pilots that should be alike. pilots: [B, N, CARRIERS], complex."""
    mean = pilots.mean(1, keepdim=True)
    return (pilots - mean).abs().square().mean((1, 2))


def gram(channel, power):
    """What a linear receiver inverts: the streams' products and the noise. channel: [B, CARRIERS, ANTENNAS, STREAMS]."""
    product = channel.mH @ channel
    return product + power[:, None, None, None] * torch.eye(STREAMS)


def equalised(channel, inner, heard):
    """What was sent on each stream, as a linear receiver sees it. heard: [B, CARRIERS, ANTENNAS, SLOTS]."""
    return torch.linalg.solve(inner, channel.mH @ heard)


def late(channel):
    """The delay of the channel, as the turn from a carrier to the next: the angle of their product. channel: [B, ANTENNAS, CARRIERS]."""
    product = channel[..., 1:] * channel[..., :-1].conj()
    return torch.atan2(product.imag.mean((1, 2)), product.real.mean((1, 2)))


def decibels(signal, power):
    """Of the signal beside the noise."""
    return 10 * torch.log10(signal.float() / power.float())


def ratios(seen, power):
    """Log-likelihood ratios of the two bits of one axis. seen: [..., N], real; power: of the noise that is left, alike."""
    points = torch.tensor(POINTS)
    far = -(seen[..., None] - points).square() / power[..., None]
    first = torch.logsumexp(far[..., 2:], -1) - torch.logsumexp(far[..., :2], -1)
    second = torch.logsumexp(far[..., 1:3], -1) - torch.logsumexp(far[..., ::3], -1)
    return torch.stack([first, second], -1)


class Receiver(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv1d(2 * ANTENNAS * STREAMS, DIM, 5, padding=2)
        self.inner, self.cleaned = nn.Conv1d(DIM, DIM, 3, padding=1), nn.Conv1d(DIM, 2 * ANTENNAS * STREAMS, 1)
        self.trust = nn.Linear(2, 1)

    def forward(self, waves, sent, hertz, rate):
        kind = self.trust.weight.dtype
        with torch.autocast("cpu", enabled=False):
            heard = undone(torch.view_as_complex(waves.float() / 1000), turns(hertz, rate))
            pilots = estimated(heard[:, :, :STREAMS], torch.view_as_complex(sent.float()))
            power = noise(heard[:, 0, 2:5] - heard[:, 0, 2:5].mean(-1, keepdim=True) + 6)
            rough = torch.view_as_real(pilots).permute(0, 1, 2, 4, 3).flatten(1, 3)
        x = F.gelu(self.enter(rough.to(kind)))
        x = x + F.gelu(self.inner(x))
        fine = rough + 0.02 * self.cleaned(x).float()
        with torch.autocast("cpu", enabled=False):
            channel = torch.view_as_complex(fine.unflatten(1, (ANTENNAS, STREAMS, 2)).permute(0, 4, 1, 2, 3).contiguous())
            told = torch.stack([late(channel.permute(0, 2, 3, 1)[:, :, 0]), decibels(channel.abs().square().mean((1, 2, 3)), power) / 10], -1)
        doubt = F.softplus(self.trust(told.to(kind)).float())
        with torch.autocast("cpu", enabled=False):
            symbols = equalised(channel, gram(channel, 1e-2 * power), heard.permute(0, 3, 1, 2)[..., 5:])
            seen = torch.view_as_real(symbols).flatten(1)
            bits = ratios(seen, (1e-2 * doubt).expand_as(seen))
        return {"bits": bits, "told": told, "symbols": seen}


def make():
    torch.manual_seed(0)
    return Receiver()


def batch():
    generator = torch.Generator().manual_seed(232)
    size = (4, ANTENNAS, SLOTS, CARRIERS, 2)
    waves = torch.randint(-1500, 1500, size, generator=generator)
    waves[:, :, 1] = waves[:, :, 0] + torch.randint(-250, 250, (4, ANTENNAS, CARRIERS, 2), generator=generator)
    signs = 2 * torch.randint(0, 2, (CARRIERS, 2), generator=generator) - 1
    return {
        "waves": waves,
        "sent": signs.expand(STREAMS, CARRIERS, 2),
        "hertz": torch.randint(9000, 40_000, (4,), generator=generator),
        "rate": torch.full((4,), 15_360_000),
    }


def loss(output):
    bits = output["bits"]
    wanted = (torch.arange(bits.numel()).view(bits.shape) % 3 > 0).float()
    return F.binary_cross_entropy_with_logits(bits / 10, wanted) + 1e-2 * output["symbols"].square().mean() + 1e-2 * output["told"].square().mean()


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
