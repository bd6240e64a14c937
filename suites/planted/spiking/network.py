"""A spiking network: leaky neurons with a surrogate slope of their own, thresholds that adapt, traces of spikes, first spikes as a code."""

import torch
from torch import nn

STEPS = 1
BATCH, STEPS_IN_TIME, INPUT, HIDDEN, OUT = 4, 40, 24, 32, 5
DT, TAU_MEMBRANE, TAU_THRESHOLD, TAU_TRACE = 1.0, 20.0, 700.0, 400.0


class Spike(torch.autograd.Function):
    """A step whose slope is that of a fast sigmoid."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (1.0 + 5.0 * v.abs()) ** 2


spike = Spike.apply


def leaked(v, current, fired):
    """The membrane after one tick; who has fired begins anew."""
    keep = 1.0 - DT / TAU_MEMBRANE
    return keep * v.float() * (1.0 - fired) + current.float()


def adapted(theta, fired):
    """The threshold rises with each spike and falls back slowly."""
    return theta - DT / TAU_THRESHOLD * (theta - 1.0) + 0.002 * fired


def traced(trace, fired):
    """How much a neuron has fired of late."""
    return trace * (1.0 - DT / TAU_TRACE) + fired


def rate_of(count, ticks):
    return 1000.0 * count / (ticks * DT)


def first_spike(spikes):
    """When each neuron fired first, in ticks; the end of the recording if it did not. spikes: [time, batch, neurons]."""
    ticks = len(spikes)
    times = torch.arange(ticks, device=spikes.device).view(-1, 1, 1).expand_as(spikes)
    return torch.where(spikes > 0, times, ticks).amin(0)


def van_rossum(a, b):
    """The distance of two trains of spikes after both have been smoothed."""
    ya, yb, total = torch.zeros_like(a[0]), torch.zeros_like(b[0]), 0.0
    for one, two in zip(a, b, strict=True):
        ya, yb = 0.9 * ya + one, 0.9 * yb + two
        total = total + (ya - yb).square()
    return total / len(a)


class LIF(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.fc = nn.Linear(n_in, n_out)
        self.register_buffer("theta0", 1.0 + 0.2 * torch.rand(n_out))

    def forward(self, xs):
        v = torch.zeros(BATCH, self.fc.out_features)
        fired, trace = torch.zeros_like(v), torch.zeros_like(v)
        theta = self.theta0.float().expand_as(v)
        out = []
        for x in xs:
            v = leaked(v, self.fc(x), fired)
            fired = spike(v - theta)
            theta, trace = adapted(theta, fired), traced(trace, fired)
            out.append(fired)
        return torch.stack(out), trace, theta


class SpikingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.readout = LIF(INPUT, HIDDEN), LIF(HIDDEN, HIDDEN), nn.Linear(HIDDEN, OUT)
        with torch.no_grad():
            self.l1.fc.weight.mul_(2.0)
            self.l2.fc.weight.mul_(3.0)

    def forward(self, spikes_in, target):
        s1, trace1, theta1 = self.l1(spikes_in)
        s2, trace2, _ = self.l2(s1.to(self.l2.fc.weight.dtype))
        potential = self.readout(s2.mean(0).to(self.readout.weight.dtype))
        logp = torch.log_softmax(potential.float(), -1)
        loss = -logp.gather(1, target[:, None]).mean() + 1e-3 * (trace1.mean() - 2.0).square()
        loss = loss + 0.1 * van_rossum(s2, s2.detach().roll(1, 0)).mean()
        rates = rate_of(s1.detach().sum(0), STEPS_IN_TIME)
        return {"loss": loss, "traces": trace1, "theta": theta1, "rates": rates, "first": first_spike(s1.detach()), "late": trace2}


def make():
    torch.manual_seed(0)
    return SpikingNet()


def batch():
    g = torch.Generator().manual_seed(9)
    chance = torch.rand(1, BATCH, INPUT, generator=g)
    return {
        "spikes_in": (torch.rand(STEPS_IN_TIME, BATCH, INPUT, generator=g) < 0.5 * chance).float(),
        "target": torch.tensor([0, 2, 3, 4]),
    }


def loss(output):
    return output["loss"]


optimizer = None
