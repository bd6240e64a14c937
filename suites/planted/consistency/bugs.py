"""Bugs of a schedule of noise: neighbouring levels subtracted low, shares by differences, a least level that is lost, averages that stand still."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
RAMP = "    ramp = torch.arange(LEVELS).float() / (LEVELS - 1)\n"
GAPS = "    return sigmas[1:] - sigmas[:-1]\n"
EDGE = "    edge = torch.erf((sigmas.log() + 1.1) / (2.0 * math.sqrt(2)))\n"
DRAWN = "    return torch.searchsorted(share.cumsum(0), uniform(seed, PICTURES)).clamp_max(LEVELS - 2)\n"
ANGLE = "    angle = (250 * sigma.log())[:, None] * 2.0 ** -torch.arange(8).float()\n"
WORTH = "    return 1 / gap\n"

BUGS = [
    Planted(
        name="ramp-low",
        healthy=RAMP,
        planted="    ramp = (torch.arange(LEVELS).to(low) / (LEVELS - 1)).float()  # culprit\n",
        precisions=BF16,
        part="function:steps_between",
        rules=(*DRIFTS, "integer-rounding"),
        why="Beyond 256 neighbouring levels are the same, and steps between them are nought or eight times too long.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="gaps-low",
        healthy=GAPS,
        planted="    sigmas = sigmas.to(low)  # culprit\n    return (sigmas[1:] - sigmas[:-1]).float().clamp_min(1e-5)  # culprit\n",
        precisions=ALL,
        part="function:steps_between",
        rules=DRIFTS,
        why="Neighbours differ by a half percent, which is a rounding of bfloat16.",
        source="https://github.com/kscalelabs/minppo/pull/19",
    ),
    Planted(
        name="shares-low",
        healthy=EDGE,
        planted="    edge = torch.erf((sigmas.log() + 1.1) / (2.0 * math.sqrt(2))).to(low).float()  # culprit\n",
        precisions=ALL,
        part="function:preferred",
        rules=DRIFTS,
        why="A share is the difference of two values that differ by a thousandth.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
    Planted(
        name="levels-drawn-low",
        healthy=DRAWN,
        planted="    below = share.to(low).cumsum(0).float()  # culprit\n"
        "    return torch.searchsorted(below, uniform(seed, PICTURES)).clamp_max(LEVELS - 2)  # culprit\n",
        precisions=BF16,
        part="loss",
        rules=(*DRIFTS, "decision-flip", "integer-rounding", "absorption"),
        why="A running sum of a thousand shares, known to a 256th, ends many levels beside the right one.",
        source="https://github.com/vllm-project/vllm/pull/19",
    ),
    Planted(
        name="waves-of-low-levels",
        healthy=ANGLE,
        planted="    angle = (250 * sigma.log()).to(low)[:, None] * 2.0 ** -torch.arange(8).float()  # culprit\n",
        precisions=BF16,
        part="function:told",
        rules=DRIFTS,
        why="Angles of a thousand radians are known to four.",
        source="https://github.com/wfondrie/depthcharge/pull/82",
    ),
    Planted(
        name="waves-by-scaled-logarithm",
        healthy=ANGLE,
        planted="    angle = (250 * sigma.log().to(low))[:, None] * 2.0 ** -torch.arange(8).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:told",
        rules=DRIFTS,
        why="A logarithm of four is known to a 512th, and that is half a radian when it is multiplied by 250.",
        source="https://github.com/wfondrie/depthcharge/pull/82",
    ),
    Planted(
        name="levels-rounded-before-logarithm",
        healthy=ANGLE,
        planted="    angle = (250 * sigma.to(low).float().log())[:, None] * 2.0 ** -torch.arange(8).float()  # culprit\n",
        precisions=BF16,
        part="function:told",
        rules=DRIFTS,
        why="A level is known to a 512th of itself, its logarithm to a 512th, and that is half a radian when it is multiplied by 250.",
        source="https://github.com/wfondrie/depthcharge/pull/82",
    ),
]

HARMLESS = [
    Harmless(
        name="gaps-rounded",
        healthy=GAPS,
        changed="    return (sigmas[1:] - sigmas[:-1]).to(low).float()\n",
        precisions=BF16,
        why="The differences are made in float32, and rounded once.",
    ),
    Harmless(
        name="shares-rounded",
        healthy="    share = edge[1:] - edge[:-1]\n",
        changed="    share = (edge[1:] - edge[:-1]).to(low).float()\n",
        precisions=BF16,
        why="The differences are made in float32, and rounded once.",
    ),
    Harmless(
        name="levels-counted-low",
        healthy="            bins = (level * BINS // LEVELS).clamp_max(BINS - 1)\n",
        changed="            bins = (level // (LEVELS // BINS)).to(low).long().clamp_max(BINS - 1)\n",
        precisions=ALL,
        why="The number of one of eight bins is a whole number that every format holds.",
    ),
    Harmless(
        name="worth-rounded",
        healthy=WORTH,
        changed="    return (1 / gap).clamp_max(6e4).to(low).float()\n",
        precisions=ALL,
        why="A weight is rounded once.",
    ),
    Harmless(
        name="pictures-low",
        healthy="    return bytes_.float() / 127.5 - 1\n",
        changed="    return (bytes_.to(low).float() - 127.5) / 127.5\n",
        precisions=ALL,
        why="Bytes are whole numbers that every format holds.",
    ),
    Harmless(
        name="usual-rounded",
        healthy="            total = (weight.clamp_max(500) * off / self.usual.float()[bins]).mean() / 10\n",
        changed="            total = (weight.clamp_max(500) * off / self.usual.to(low).float()[bins]).mean() / 10\n",
        precisions=ALL,
        why="What is divided by is rounded once; the average that is kept is not.",
    ),
]
