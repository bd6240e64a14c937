"""A neural controlled differential equation of patients' readings: irregular times, a path with time and counts in it, a signature of pieces."""

import torch
import torch.nn.functional as F
from torch import nn

PATIENTS, READINGS, SIGNS, SIZE, PIECES = 6, 320, 4, 20, 40
EACH = READINGS // PIECES
USUAL, SPREAD = (37.1, 82.0, 118.0, 97.0), (0.4, 9.0, 12.0, 2.0)
STEPS = 1


def hours_since(minutes, low):
    """Hours since the first reading. minutes: whole, since the hospital's clock began, [B, N]."""
    return (minutes - minutes[:, :1]).float() / 60


def standardised(tenths, low):
    """Readings as deviations from what is usual. tenths: whole tenths of their units, [B, N, SIGNS]."""
    values = tenths.float() / 10
    return (values - torch.tensor(USUAL)) / torch.tensor(SPREAD)


def intensities(seen, low):
    """How often each sign has been read so far, [B, N, SIGNS]."""
    return seen.float().cumsum(1)


def since_last(seen, hours, low):
    """Hours since each sign was last read, [B, N, SIGNS]."""
    out, last = [], hours[:, :1].expand(-1, SIGNS)
    for k in range(hours.shape[1]):
        now = hours[:, k, None]
        out.append(now - last)
        last = torch.where(seen[:, k], now, last)
    return torch.stack(out, 1)


def slopes(path, hours, low):
    """How fast each channel changes between two readings, [B, N - 1, channels]."""
    gaps = hours[:, 1:] - hours[:, :-1]
    return (path[:, 1:] - path[:, :-1]) / gaps[..., None]


def signature(piece, low):
    """The increment of a piece of path, and the signed areas between its channels: [B, PIECES, channels + pairs]."""
    first = piece[:, :, :1]
    rest = piece - first
    steps = rest[:, :, 1:] - rest[:, :, :-1]
    products = torch.einsum("bpni,bpnj->bpij", rest[:, :, :-1], steps)
    i, j = torch.triu_indices(piece.shape[-1], piece.shape[-1], 1)
    return torch.cat([rest[:, :, -1], (products[..., i, j] - products[..., j, i]) / 2], -1)


def read_at(queries, hours, values, low):
    """Values between readings, linearly. queries: hours, [B, Q]."""
    right = torch.searchsorted(hours.contiguous(), queries.contiguous()).clamp(1, hours.shape[1] - 1)
    start, end = hours.gather(1, right - 1), hours.gather(1, right)
    part = ((queries - start) / (end - start)).clamp(0, 1)[..., None]
    index = right[..., None].expand(-1, -1, values.shape[-1])
    return values.gather(1, index - 1) * (1 - part) + values.gather(1, index) * part


def weighted_mean(tenths, minutes, low):
    """Means of the readings, each as long as it lasted: [B, SIGNS]."""
    lasted = (minutes[:, 1:] - minutes[:, :-1]).float()[..., None]
    return (tenths[:, :-1].float() * lasted).sum(1) / lasted.sum(1) / 10


def variability(tenths, low):
    """The standard deviation of each sign over its mean."""
    values = tenths.float() / 10
    mean = values.mean(1)
    return (values - mean[:, None]).square().mean(1).sqrt() / mean


def fading(hours, low):
    """What is remembered of the reading before, after each gap: a factor of a minute, to the power of the minutes."""
    gaps = 60 * (hours[:, 1:] - hours[:, :-1])
    return torch.tensor(0.998) ** gaps


def solved(field, start, controls, low):
    """The state at the end, by Heun's method. controls: what the path changes by in each piece, [B, PIECES, channels]."""
    state, states = start.float(), []
    for k in range(controls.shape[1]):
        step = controls[:, k].float()
        first = field(state, step)
        state = state + (first + field(state + first, step)).float() / 2
        states.append(state)
    return torch.stack(states, 1)


class Field(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.hidden, self.out = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE * channels)

    def forward(self, state, step):
        with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu")):
            matrix = self.out(F.silu(self.hidden(state.to(self.out.weight.dtype)))).tanh().unflatten(-1, (SIZE, -1))
        return 0.02 * torch.einsum("bij,bj->bi", matrix.float(), step)


class Ward(nn.Module):
    def __init__(self):
        super().__init__()
        channels = 2 * SIGNS + 1
        pairs = channels * (channels - 1) // 2
        self.start, self.field = nn.Linear(2 * SIGNS, SIZE), Field(SIZE)
        self.control = nn.Sequential(nn.Linear(2 * channels + pairs + SIGNS + 1, 2 * SIZE), nn.SiLU(), nn.Linear(2 * SIZE, SIZE))
        self.head = nn.Linear(SIZE, 2)

    def forward(self, minutes, tenths, seen, died):
        low = self.start(torch.ones(1, 2 * SIGNS).to(self.start.weight.dtype)).dtype
        with torch.autocast("cpu", enabled=False):
            hours, values = hours_since(minutes, low), standardised(tenths, low)
            counts, gaps = intensities(seen, low), since_last(seen, hours, low)
            path = torch.cat([hours[..., None] / 24, values, counts / READINGS], -1).float()
            speeds = slopes(path, hours, low).unflatten(1, (-1, 1))[:, :: EACH].squeeze(2)[:, :PIECES]
            areas = signature(path.unflatten(1, (PIECES, EACH)), low)
            queries = hours[:, :1] + (hours[:, -1:] - hours[:, :1]) * (torch.arange(PIECES) + 0.5) / PIECES
            between = read_at(queries, hours, values, low)
            keep = fading(hours, low)[:, :: EACH][:, :PIECES, None]
            rows = torch.cat([areas.float(), speeds.float().tanh(), between.float(), keep.float()], -1)
            whole = torch.cat([weighted_mean(tenths, minutes, low) / 100, variability(tenths, low)], -1)
        begin = self.start(whole.to(self.start.weight.dtype))
        controls = self.control(rows.to(self.start.weight.dtype))
        states = solved(self.field, begin, controls, low)
        risk = self.head(states[:, -1].to(begin.dtype)).float()
        return {"risk": risk, "gaps": gaps, "loss": F.cross_entropy(risk, died)}


def make():
    torch.manual_seed(0)
    return Ward()


def batch():
    generator = torch.Generator().manual_seed(14)
    gaps = torch.randint(2, 40, (PATIENTS, READINGS), generator=generator)
    minutes = 28_400_000 + torch.randint(400_000, (PATIENTS, 1), generator=generator) + gaps.cumsum(1)
    usual = 10 * (torch.tensor(USUAL) + 0.5 * torch.tensor(SPREAD) * torch.randn(PATIENTS, 1, SIGNS, generator=generator))
    drift = torch.randn(PATIENTS, READINGS, SIGNS, generator=generator).cumsum(1) / 20
    tenths = usual + 10 * torch.tensor(SPREAD) * (0.15 * torch.randn(PATIENTS, READINGS, SIGNS, generator=generator) + 0.3 * drift)
    return {
        "minutes": minutes,
        "tenths": tenths.round().long(),
        "seen": torch.rand(PATIENTS, READINGS, SIGNS, generator=generator) > 0.08,
        "died": torch.randint(2, (PATIENTS,), generator=generator),
    }


def loss(output):
    return output["loss"]


optimizer = None
