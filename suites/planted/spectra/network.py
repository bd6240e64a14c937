"""Peptides from their mass spectra, as Casanovo reads them: waves of masses, a decoder of residues, ladders of fragments, errors in ppm."""

import math

import torch
import torch.nn.functional as F
from torch import nn

SPECTRA, PEAKS, RESIDUES, LENGTH, DIM = 3, 48, 21, 14, 48
PROTON, WATER = 1.00727646688, 18.0105647
STEPS = 1
MASSES = [0.0, 57.02146, 71.03711, 87.03203, 97.05276, 99.06841, 101.04768, 103.00919, 113.08406, 114.04293, 115.02694]
MASSES += [128.05858, 128.09496, 129.04259, 131.04049, 137.05891, 147.06841, 156.10111, 160.03065, 163.06333, 186.07931]


class MassWaves(nn.Module):
    """Sines and cosines of a mass, with wavelengths from a hundredth of a dalton to ten thousand of them."""

    def __init__(self, shortest=0.01, longest=10_000.0):
        super().__init__()
        self.shortest, self.longest = shortest, longest

    def forward(self, mz, like):
        half = DIM // 2
        lengths = self.shortest * (self.longest / self.shortest) ** (torch.arange(half).float() / (half - 1))
        angle = 2 * math.pi * mz[..., None] / lengths
        return torch.cat([angle.sin(), angle.cos()], -1).type_as(like)


def to_mz(units):
    """Masses over charges from whole ten thousandths of a dalton."""
    return units.float() / 10_000


def neutral_mass(mz, charge, like):
    return (mz - PROTON) * charge.float()


def heights(counts, like):
    """Of the peaks of a spectrum, so that their squares add up to one."""
    root = counts.float().sqrt()
    return root / root.square().sum(-1, keepdim=True).sqrt()


def ladder(masses, like):
    """What the fragments weigh that begin at the first residue."""
    return masses.cumsum(-1) + PROTON


def explained(mz, fragments, like):
    """How well each fragment is explained by the nearest peak: a bell a fiftieth of a dalton wide."""
    gap = (mz[:, None] - fragments[..., None]).abs().amin(-1)
    return (-0.5 * (gap / 0.02).square()).exp()


def ppm(found, wanted, like):
    """Millionths by which a mass is off."""
    return (found - wanted) / wanted * 1e6


def disorder(counts, like):
    """The entropy of a spectrum, by which good ones are told from bad."""
    share = counts.float() / counts.float().sum(-1, keepdim=True)
    return -(share * (share + 1e-9).log()).sum(-1)


def bins(mz, like):
    """Which tenth of a dalton a peak is in, for a table that is looked up by hash."""
    return (mz * 10).floor().long() % 997


def minutes(seconds, like):
    """When the peptide left the column, in waves of an hour."""
    angle = seconds.float()[:, None] / 3600 * 2 * math.pi * 2.0 ** torch.arange(6).float()
    return torch.cat([angle.sin(), angle.cos()], -1)


class Spectra(nn.Module):
    def __init__(self):
        super().__init__()
        self.waves, self.height, self.bin = MassWaves(), nn.Linear(1, DIM), nn.Embedding(997, DIM)
        self.mix, self.clock = nn.Linear(DIM, DIM), nn.Linear(12, DIM)
        self.encoder = nn.TransformerEncoderLayer(DIM, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.residue, self.precursor = nn.Embedding(RESIDUES, DIM), nn.Linear(DIM, DIM)
        self.decoder = nn.TransformerDecoderLayer(DIM, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.out, self.quality = nn.Linear(DIM + 1, RESIDUES), nn.Linear(DIM + 3, 1)
        self.weights = torch.tensor(MASSES)

    def forward(self, units, counts, precursor, charge, seconds, peptide):
        like = self.mix(self.bin(peptide % 997))
        with torch.autocast("cpu", enabled=False):
            mz = to_mz(units)
            height, slot, entropy = heights(counts, like), bins(mz, like), disorder(counts, like)
            mass = neutral_mass(to_mz(precursor), charge, like)
            steps = ladder(self.weights[peptide], like)
            good = explained(mz, steps, like)
            off = ppm(steps[:, -1] - PROTON + WATER, mass, like)
            time = minutes(seconds, like)
            peaks, whole = self.waves(mz, like), self.waves(mass, like)
        peaks = self.mix(peaks) + self.height(height[..., None].type_as(like)) + self.bin(slot)
        memory = self.encoder(peaks)
        before = self.residue(F.pad(peptide[:, :-1], (1, 0))) + self.precursor(whole)[:, None] + self.clock(time.type_as(like))[:, None]
        causal = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=before.dtype)
        after = self.decoder(before, memory, tgt_mask=causal, tgt_is_causal=True)
        logits = self.out(torch.cat([after, good[..., None].type_as(after)], -1)).float()
        facts = torch.stack([off.float() / 100, entropy.float(), good.float().mean(-1)], -1)
        quality = self.quality(torch.cat([memory.mean(1), facts.type_as(memory)], -1)).float()[:, 0]
        told = F.cross_entropy(logits.flatten(0, 1), peptide.flatten())
        return {"logits": logits, "loss": told + F.softplus(-quality).mean()}


def make():
    torch.manual_seed(0)
    return Spectra()


def batch():
    generator = torch.Generator().manual_seed(21)
    peptide = torch.randint(1, RESIDUES, (SPECTRA, LENGTH), generator=generator)
    masses = Spectra().weights[peptide]
    fragments = (masses.cumsum(-1) + PROTON).double()
    noise = 60 + 1500 * torch.rand(SPECTRA, PEAKS - LENGTH, generator=generator).double()
    jitter = 0.012 * torch.randn(SPECTRA, LENGTH, generator=generator).double()
    charge = torch.tensor([2, 2, 3])
    whole = masses.double().sum(-1) + WATER
    return {
        "units": (torch.cat([fragments + jitter, noise], -1) * 10_000).round().long(),
        "counts": (torch.rand(SPECTRA, PEAKS, generator=generator) ** 6 * 3e6).long() + 40,
        "precursor": ((whole * (1 + 1.5e-5 * torch.randn(SPECTRA, generator=generator)) / charge + PROTON) * 10_000).round().long(),
        "charge": charge,
        "seconds": torch.randint(600, 6600, (SPECTRA,), generator=generator),
        "peptide": peptide,
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-2)
