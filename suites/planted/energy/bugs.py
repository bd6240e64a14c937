"""Bugs of an energy-based model: samples that do not move, differences of large energies, squares of noise beyond float16 on both sides."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="samples-low",
        healthy="    return (sample - STRIDE * slope.float().clamp(-0.1, 0.1) + NOISE * noise.float()).clamp(-1, 1)\n",
        planted="    step = NOISE * noise.float() - STRIDE * slope.float().clamp(-0.1, 0.1)\n"
        "    return (sample.to(low) + step.to(low)).clamp(-1, 1).float()  # culprit\n",
        precisions=BF16,
        part="function:wandered",
        rules=("absorption", "accumulated-drift", "lost-update", "local-drift", "amplified-rounding"),
        why="A step is less than half of what bfloat16 moves by at pixels near one.",
        source="https://github.com/openai/ebm_code_release/issues/4",
    ),
    Planted(
        name="energies-low",
        healthy="            return BASE - torch.logsumexp(8 * logits.float(), -1)\n",
        planted="            return (BASE - torch.logsumexp(8 * logits.float(), -1)).to(low)  # culprit\n",
        precisions=ALL,
        part="function:contrast",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Energies of 30 are known to an eighth in bfloat16, and pictures and samples differ by some tenths.",
        source="https://github.com/pytorch/pytorch/issues/162907",
    ),
    Planted(
        name="contrast-low",
        healthy="    return given.float() - made.float()\n",
        planted="    return (given.to(low) - made.to(low)).float()  # culprit\n",
        precisions=ALL,
        part="function:contrast",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Two energies of 30 that differ by some tenths are known to an eighth in bfloat16.",
        source="https://github.com/pytorch/pytorch/issues/162907",
    ),
    Planted(
        name="target-low",
        healthy="    return (picture - noisy) / sigma.view(-1, 1, 1, 1)\n",
        planted="    return ((picture.to(low) - noisy.to(low)) / sigma.view(-1, 1, 1, 1)).float()  # culprit\n",
        precisions=ALL,
        part="function:target",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Noise of two ten-thousandths is lost as soon as it is added to a rounded pixel, and what is left is divided by two ten-thousandths.",
        source="https://github.com/NVlabs/edm/issues/11",
    ),
    Planted(
        name="noise-overflows",
        healthy="    both = sigma.square() + 0.25\n    return 0.25 / both, torch.sqrt(both)\n",
        planted="    both = (8 * sigma).to(low).square() + 16  # culprit\n    return (16 / both).float(), torch.sqrt(both.float()) / 8  # culprit\n",
        precisions=("16-mixed",),
        part="function:balance",
        rules=("overflow", "nan", "underflow"),
        why="The square of eight times forty is beyond float16, so nothing is left of the picture that the answer should keep.",
        source="https://github.com/NVlabs/edm/issues/11",
    ),
    Planted(
        name="evidence-by-exponentials",
        healthy="    return torch.logsumexp(-energies.float(), 0) - torch.log(torch.tensor(float(len(energies))))\n",
        planted="    return torch.log(torch.exp(-energies.to(low)).mean(0)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:evidence",
        rules=("underflow", "nan", "overflow"),
        why="The exponential of minus thirty is zero in float16, and its logarithm is minus infinity.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
]

HARMLESS = [
    Harmless(
        name="levels-low",
        healthy="    return levels.float() / 127.5 - 1\n",
        changed="    return levels.to(low).float() / 127.5 - 1\n",
        precisions=ALL,
        why="Whole numbers up to 255 are exact in each format.",
    ),
    Harmless(
        name="chances-low",
        healthy="    return (sample - STRIDE * slope.float().clamp(-0.1, 0.1) + NOISE * noise.float()).clamp(-1, 1)\n",
        changed="    return (sample - (STRIDE * slope.to(low).clamp(-0.1, 0.1)).float() + NOISE * noise.to(low).float()).clamp(-1, 1)\n",
        precisions=ALL,
        why="A step is rounded once, and it is added in float32.",
    ),
    Harmless(
        name="samples-rounded-at-the-end",
        healthy="        given, made = self.energy(pictures, low), self.energy(sample.detach(), low)\n",
        changed="        given, made = self.energy(pictures, low), self.energy(sample.detach().to(low), low)\n",
        precisions=ALL,
        why="The first layer rounds them anyway.",
    ),
    Harmless(
        name="noise-in-low",
        healthy="    return picture + sigma.view(-1, 1, 1, 1) * noise.float()\n",
        changed="    return picture + sigma.view(-1, 1, 1, 1) * noise.to(low).float()\n",
        precisions=ALL,
        why="The noise is drawn in sixteenths, which each format holds.",
    ),
    Harmless(
        name="noise-levels-rounded",
        healthy="    return torch.exp(share * 12.206 - 8.517)\n",
        changed="    return torch.exp(share * 12.206 - 8.517).to(torch.bfloat16).float()\n",
        precisions=BF16,
        why="A level is rounded once, before all that reads it, so that noise and target are of the same level.",
    ),
    Harmless(
        name="index-low",
        healthy="    share = index.float() / (LEVELS - 1)\n",
        changed="    share = index.to(low).float() / (LEVELS - 1)\n",
        precisions=ALL,
        why="There are 200 levels, and each format counts to 256.",
    ),
    Harmless(
        name="steepness-of-low",
        healthy="    return torch.sqrt(slope.float().square().flatten(1).sum(-1) + 1e-12)\n",
        changed="    return torch.sqrt(slope.to(low).float().square().flatten(1).sum(-1) + 1e-12)\n",
        precisions=BF16,
        why="Each number is rounded once, and the squares are added up in float32.",
    ),
    Harmless(
        name="energy-for-the-penalty-low",
        healthy="            cost = apart.mean() + 0.01 * (given.square() + made.square()).mean() / BASE + 0.1 * long.square().mean()\n",
        changed="            large = (given.to(low).square() + made.to(low).square()).float()\n"
        "            cost = apart.mean() + 0.01 * large.mean() / BASE + 0.1 * long.square().mean()\n",
        precisions=ALL,
        why="A sum of squares of some thirties is as exact as its terms, and nothing large is taken off it.",
    ),
    Harmless(
        name="log-that-nobody-reads",
        healthy="            likely = evidence(torch.cat([given, made]), low)\n",
        changed="            likely = evidence(torch.cat([given, made]), low)\n"
        "            _ = (given.detach().to(low) - made.detach().to(low)).abs().mean()\n",
        precisions=ALL,
        why="A number for a log that nobody writes.",
    ),
]
