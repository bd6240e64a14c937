"""Bugs of music: ticks as low numbers, microseconds beyond float16, pitches that differ by a cent."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
GAPS = "    return F.pad(onset[:, 1:] - onset[:, :-1], (1, 0)).float()\n"
TURN = "    turn = (onset % BAR).float() * (2 * math.pi / BAR)\n"
BARS = "    return onset // BAR\n"
SECONDS = "    return gap * (tempo.float() / 1e6) / QUARTER\n"
LEFT = "    left = torch.exp2(-since / 2)\n"
BEATING = "    return tuned * torch.expm1(cents.float() * (math.log(2) / 1200))\n"
MAJOR = (
    "    one, other = counts - counts.mean(1, keepdim=True), profile - profile.mean()\n"
    "    return (one * other).sum(1) / (one.norm(dim=1) * other.norm())\n"
)
VARIETY = "    return -torch.xlogy(share, share).sum(1)\n"

BUGS = [
    Planted(
        name="ticks-low",
        healthy=GAPS,
        planted="    onset = onset.to(low)  # culprit\n    return F.pad(onset[:, 1:] - onset[:, :-1], (1, 0)).float()\n",
        precisions=BF16,
        part="function:gaps",
        rules=(*WHOLE, "underflow"),
        why="Of 60 000 ticks bfloat16 knows every 256th, and notes are 120 apart.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="phase-of-low-ticks",
        healthy=TURN,
        planted="    turn = torch.remainder(onset.to(torch.bfloat16), BAR).float() * (2 * math.pi / BAR)  # culprit\n",
        precisions=BF16,
        part="function:phase",
        rules=WHOLE,
        why="A bar is taken off ticks that have been rounded to the 256th.",
        source="https://github.com/kohya-ss/musubi-tuner/pull/729",
    ),
    Planted(
        name="bars-low",
        healthy=BARS,
        planted="    return (onset.to(low) / BAR).long()  # culprit\n",
        precisions=BF16,
        part="bar",
        rules=WHOLE,
        why="Ticks near the end of a bar are rounded into the next.",
        source="https://github.com/RosettaCommons/foundry/pull/236",
    ),
    Planted(
        name="tempo-overflows",
        healthy=SECONDS,
        planted="    return gap * (tempo.to(low) / 1e6).float() / QUARTER  # culprit\n",
        precisions=("16-mixed",),
        part="function:seconds",
        rules=("overflow", "nan"),
        why="Half a million microseconds are more than float16 holds.",
        source="https://github.com/open-mmlab/mmdetection3d/issues/296",
    ),
    Planted(
        name="pitches-low",
        healthy=BEATING,
        planted="    heard = tuned * torch.exp2(cents.float() / 1200)\n    return (heard.to(low) - tuned.to(low)).float()  # culprit\n",
        precisions=ALL,
        part="function:beating",
        rules=(*DRIFTS, "underflow"),
        why="Two pitches that are three cents apart differ by a sixth of a per cent.",
        source="https://github.com/pytorch/pytorch/issues/88939",
    ),
    Planted(
        name="key-by-moments",
        healthy=MAJOR,
        planted="    counts, profile = (counts + 96).to(torch.bfloat16), profile.to(torch.bfloat16)  # culprit\n"
        "    cross = (counts * profile).mean(1) - counts.mean(1) * profile.mean()  # culprit\n"
        "    spread = counts.square().mean(1) - counts.mean(1).square()  # culprit\n"
        "    return (cross / (spread.sqrt() * profile.std(correction=0))).float()  # culprit\n",
        precisions=BF16,
        part="function:major",
        rules=(*DRIFTS, "integer-rounding", "nan"),
        why="Counts around a hundred are squared, and their spread is a hundredth of that.",
        source="https://github.com/google/objax/issues/182",
    ),
    Planted(
        name="shares-vanish",
        healthy=VARIETY,
        planted="    share = share.half()\n    return -(share * (share + 1e-8).log()).sum(1).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:variety",
        rules=("nan", "vanished-constant", "underflow"),
        why="1e-8 is zero in float16, and nought by minus infinity is NaN.",
        source="https://github.com/pytorch/pytorch/issues/32137",
    ),
]

HARMLESS = [
    Harmless(
        name="gaps-rounded",
        healthy=GAPS,
        changed="    return F.pad(onset[:, 1:] - onset[:, :-1], (1, 0)).to(torch.float16).float()\n",
        precisions=("16-mixed",),
        why="float16 has every whole number up to 2048.",
    ),
    Harmless(
        name="turn-rounded",
        healthy=TURN,
        changed="    turn = ((onset % BAR).float() * (2 * math.pi / BAR)).to(torch.float16).float()\n",
        precisions=("16-mixed",),
        why="An angle within one turn is known to a 500th.",
    ),
    Harmless(
        name="tempo-rounded",
        healthy=SECONDS,
        changed="    return gap * (tempo.float() / 1e6).to(low).float() / QUARTER\n",
        precisions=ALL,
        why="A tempo is an amount, and is rounded once.",
        more=(
            (
                "            wait = seconds(gap, tempo, low)\n            when = played(wait, low)\n",
                "            wait = seconds(gap, tempo, low)\n            when = played(gap * (tempo.float() / 1e6) / QUARTER, low)\n",
            ),
        ),
    ),
    Harmless(
        name="left-rounded",
        healthy=LEFT,
        changed="    left = torch.exp2(-(since / 2).to(torch.bfloat16).float())\n",
        precisions=BF16,
        why="Waits are fractions of a second: what is left of one loses a part of a 512th.",
    ),
    Harmless(
        name="beating-rounded",
        healthy=BEATING,
        changed="    return (tuned * torch.expm1(cents.float() * (math.log(2) / 1200))).to(low).float()\n",
        precisions=ALL,
        why="The difference is rounded once, not the pitches.",
    ),
    Harmless(
        name="counts-low",
        healthy="    counts = F.one_hot(pitch % 12, 12).sum(1).float()\n",
        changed="    counts = F.one_hot(pitch % 12, 12).sum(1).to(low).float()\n",
        precisions=ALL,
        why="No key is played more than 256 times.",
    ),
]
