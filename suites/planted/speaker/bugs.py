"""Bugs of a speaker network: emphasis, logarithms of silence, statistics of features far from zero, and angles near zero."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
EMPHASIS = "    wave = samples.float() / 32768\n    return wave[:, 1:] - 0.97 * wave[:, :-1]\n"
ENERGIES = "    energy = power @ mel\n    return (energy + 1e-10).log()\n"
SPREAD = "    spread = ((features - mean).square() * mask).sum(1, keepdim=True) / count\n"
COSINES = '    with torch.autocast("cpu", enabled=False):\n        embedding = F.normalize(embedding.float(), dim=-1)\n'
ANGULAR = "    return torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6))\n"
LAST = "        return (F.normalize(centre, dim=-1) * embedding[:, None]).sum(-1)\n"
POOLED = "        return torch.cat([mean, spread.clamp_min(1e-6).sqrt()], -1)\n"

BUGS = [
    Planted(
        name="emphasis-low",
        healthy=EMPHASIS,
        planted="    wave = (samples.float() / 32768).bfloat16()  # culprit\n    return (wave[:, 1:] - 0.97 * wave[:, :-1]).float()  # culprit\n",
        precisions=BF16,
        part="bank",
        rules=DRIFTS,
        why="Samples that are nearly the same are rounded before they are subtracted: the high bands hold rounding.",
        source="https://github.com/kornia/kornia/pull/4336",
    ),
    Planted(
        name="floor-vanishes",
        healthy=ENERGIES,
        planted="    energy = (power @ mel).half()\n    return (energy + 1e-10).log().float()  # culprit\n",
        precisions=("16-mixed",),
        part="bank",
        rules=("nan", "overflow", "underflow"),
        why="Silence has no energy, and what keeps its logarithm finite is zero in float16.",
        source="https://github.com/LIHANG-HONG/birdclef2023-2nd-place-solution/issues/2",
    ),
    Planted(
        name="spread-by-squares",
        healthy=SPREAD,
        planted="    features = features.to(LOW)  # culprit\n"
        "    spread = (features.square() * mask).sum(1, keepdim=True) / count - mean.square()  # culprit\n    spread = spread.clamp_min(0)\n",
        more=(
            ("STEPS = 1\n", "STEPS = 1\nLOW = torch.bfloat16\n"),
            ("    mask = mask[..., None].float()\n", "    mask = mask[..., None].float()  # frames\n"),
        ),
        precisions=BF16,
        part="function:normalise",
        rules=DRIFTS,
        why="The mean of the squares less the square of the mean, of logarithms around minus nine.",
        source="https://github.com/pyg-team/pytorch_geometric/issues/646",
    ),
    Planted(
        name="cosines-under-autocast",
        healthy=COSINES,
        planted='    if True:\n        embedding = F.normalize(embedding.to(torch.get_autocast_dtype("cpu")), dim=-1)  # culprit\n',
        more=(
            (
                "        centre = total[None] - own[..., None] * embedding[:, None]\n",
                "        centre = (total[None] - own[..., None] * embedding[:, None]).to(embedding.dtype)\n",
            ),
            ("torch.zeros(SPEAKERS, embedding.shape[-1])", "torch.zeros(SPEAKERS, embedding.shape[-1], dtype=embedding.dtype)"),
            (LAST, '        return torch.einsum("bsd,bd->bs", F.normalize(centre, dim=-1), embedding).float()  # culprit\n'),
        ),
        precisions=("bf16-mixed",),
        part="function:angular",
        rules=DRIFTS,
        why="Speakers of an untrained network are close: the cosine is nearly one, and its angle needs the digits behind it.",
        source="https://github.com/papagina/RotationContinuity/issues/1",
    ),
    Planted(
        name="angles-low",
        healthy=ANGULAR,
        planted="    cosine = cosine.to(torch.bfloat16)  # culprit\n    return torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6)).float()  # culprit\n",
        precisions=BF16,
        part="function:angular",
        rules=(*DRIFTS, "overflow", "nan"),
        why="One less a millionth is one in bfloat16, where the angle is zero and its slope infinite.",
        source="https://github.com/personalrobotics/ssik/issues/199",
    ),
]

HARMLESS = [
    Harmless(
        name="energies-rounded",
        healthy=ENERGIES,
        changed="    energy = (power @ mel).bfloat16().float()\n    return (energy + 1e-10).log()\n",
        precisions=BF16,
        why="An energy is rounded once, and its logarithm is around minus nine.",
    ),
    Harmless(
        name="features-rounded",
        healthy="    return (features - mean) / (spread + 1e-5).sqrt()\n",
        changed="    return ((features - mean) / (spread + 1e-5).sqrt()).bfloat16().float()\n",
        precisions=BF16,
        why="Normalised features are rounded by the first layer anyway.",
    ),
    Harmless(
        name="statistics-rounded",
        healthy=POOLED,
        changed="        return torch.cat([mean, spread.clamp_min(1e-6).sqrt()], -1).to(torch.float16)\n",
        precisions=("16-mixed",),
        why="The next layer rounds them.",
    ),
]
