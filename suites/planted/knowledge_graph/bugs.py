"""Bugs of rotations and scores: phases of a calendar, margins near nought, cubes of small numbers."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation", "integer-rounding")
CLOCK = "        return 2 * math.pi * (days[:, None].float() / periods)\n"
PHASE = "            return self.phase[relation].float() + self.clock(days)\n"
MARGIN = "        return GAMMA - distance\n"
BELIEF = "        return F.logsigmoid(score)\n"
CUBES = "        return (0.01 * modulus).pow(3).mean()\n"
AGES = "        return (today - days).float() / 365.25\n"

BUGS = [
    Planted(
        name="clock-low",
        healthy=CLOCK,
        planted="        return 2 * math.pi * (days[:, None].to(torch.bfloat16) / periods.to(torch.bfloat16)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:KnowledgeGraph.rotated",
        rules=DRIFTS,
        why="Of 20 000 days bfloat16 knows every 128th, and a wave is a week long.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="phases-low",
        healthy=PHASE,
        planted="            return self.phase[relation].bfloat16() + self.clock(days).bfloat16()  # culprit\n",
        precisions=BF16,
        part="function:KnowledgeGraph.rotated",
        rules=DRIFTS,
        why="Phases of thousands of radians are known to sixteen.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="margins-low",
        healthy=MARGIN,
        planted="        return GAMMA - distance.to(low)  # culprit\n",
        precisions=BF16,
        part="function:KnowledgeGraph.margins",
        rules=DRIFTS,
        why="Distances of a dozen are known to a sixteenth, and scores are near nought.",
        source="https://github.com/pytorch/pytorch/issues/88939",
    ),
    Planted(
        name="cubes-vanish",
        healthy=CUBES,
        planted="        return (0.01 * modulus).to(low).pow(3).mean()  # culprit\n",
        precisions=("16-mixed",),
        part="function:KnowledgeGraph.penalty",
        rules=("underflow", *DRIFTS),
        why="The cube of a two-hundredth is a tenth of a millionth, of which float16 has one bit or none.",
        source="https://github.com/pytorch/pytorch/issues/40497",
    ),
    Planted(
        name="ages-low",
        healthy=AGES,
        planted="        return (today.to(low) - days.to(low)).float() / 365.25  # culprit\n",
        precisions=ALL,
        part="function:KnowledgeGraph.ages",
        rules=DRIFTS,
        why="Of 20 000 days bfloat16 knows every 128th, and float16 every sixteenth.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
]

HARMLESS = [
    Harmless(
        name="waves-rounded",
        healthy="        cosine, sine = phase.cos(), phase.sin()\n",
        changed="        cosine, sine = phase.cos().bfloat16().float(), phase.sin().bfloat16().float()\n",
        precisions=BF16,
        why="The phase is that of float32, and each wave is rounded once.",
    ),
    Harmless(
        name="margins-rounded",
        healthy=MARGIN,
        changed="        return (GAMMA - distance).to(low).float()\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="ages-rounded",
        healthy=AGES,
        changed="        return (today - days).to(low).float() / 365.25\n",
        precisions=ALL,
        why="Whole days are subtracted as whole numbers, and the difference is rounded once.",
    ),
    Harmless(
        name="rarity-rounded",
        healthy="        return counts[head].float().add(4).rsqrt()\n",
        changed="        return counts[head].to(low).add(4).rsqrt().float()\n",
        precisions=ALL,
        why="A count is rounded once, and its root halves that.",
    ),
    Harmless(
        name="belief-rounded",
        healthy=BELIEF,
        changed="        return F.logsigmoid(score).to(low).float()\n",
        precisions=MIXED,
        why="A logarithm is rounded once.",
    ),
    Harmless(
        name="cubes-scaled",
        healthy=CUBES,
        changed="        return modulus.to(low).pow(3).mean().float() * 1e-6\n",
        precisions=("16-mixed",),
        why="Moduli of the size of a half have cubes that float16 holds; their mean is scaled in float32.",
    ),
    Harmless(
        name="weights-rounded",
        healthy="        return (TEMPERATURE * score).softmax(-1).detach()\n",
        changed="        return (TEMPERATURE * score).softmax(-1).to(low).float().detach()\n",
        precisions=ALL,
        why="Shares are rounded once.",
    ),
]
