"""Bugs of masked diffusion: chances near one, noise near nought, a Gumbel's tail, differences of neighbouring times, late places."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding", "decision-flip")
KEPT = "        return 1 - (1 - EPS) * (ticks.float() / SCHEDULE)\n"
NOISE = "        return -torch.log1p(-(1 - EPS) * (ticks.float() / SCHEDULE))\n"
WEIGHT = "        return (1 - EPS) * noise.exp() / torch.expm1(noise)\n"
REVERSE = "        return ((now - then) / now).float()\n"
COSINE = "        return (1 - (math.pi / 2 * (1 - ticks.float() / SCHEDULE)).cos()).log()\n"
ANGLES = "    angles = 100 * noise[:, None] * rates\n"
PLACES = "    angles = (torch.arange(LENGTH) + 4000)[:, None] * 1000.0 ** (-torch.arange(half) / half)\n"
GUESSED = "    logits = logits.float()\n"
DRAWN = "    u = (draws.double() + 0.5) / 2**24\n    return (-(-u.log()).log()).float()\n"
BOUND = "    return (losses * weights[:, None] * hidden).sum() / losses.numel()\n"
ENTROPY = "    return 1 - entropy\n"
RISING = "    return confidence[:, 1:] - confidence[:, :-1]\n"
TOTAL = "        total = total + loss\n"

BUGS = [
    Planted(
        name="noise-low",
        healthy=NOISE,
        planted="        return -torch.log1p((-(1 - EPS) * (ticks.float() / SCHEDULE)).to(low).float())  # culprit\n",
        precisions=BF16,
        part="function:Schedule.noise",
        rules=DRIFTS,
        why="0.995 is 0.9961 in bfloat16, and the logarithm of what is left of one is a quarter off.",
        source="https://github.com/zylo117/Yet-Another-EfficientDet-Pytorch/issues/502",
    ),
    Planted(
        name="odds-by-exponential",
        healthy=WEIGHT,
        planted="        return (1 - EPS) * noise.exp() / (noise.exp().to(low) - 1).float().clamp_min(1e-3)  # culprit\n",
        precisions=ALL,
        part="function:Schedule.weight",
        rules=(*DRIFTS, "underflow"),
        why="The exponential of a small noise is one and nothing.",
        source="https://github.com/state-spaces/mamba/pull/923",
    ),
    Planted(
        name="times-low",
        healthy=REVERSE,
        planted="        now, then = now.to(low), then.to(low)  # culprit\n        return ((now - then) / now).float()  # culprit\n",
        precisions=MIXED,
        part="function:Schedule.reverse",
        rules=DRIFTS,
        why="Two times of a half differ by two thousandths, of which bfloat16 knows nothing.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="signal-by-cosine",
        healthy=COSINE,
        planted="        return (1 - (math.pi / 2 * (1 - ticks.float() / SCHEDULE)).cos().to(low)).float().clamp_min(1e-5).log()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:Schedule.log_signal",
        rules=DRIFTS,
        why="The cosine near one is known to a 512th, and one is subtracted.",
        source="https://github.com/facebookresearch/dinov2/issues/492",
    ),
    Planted(
        name="angles-low",
        healthy=ANGLES,
        planted="    angles = (100 * noise.to(low)[:, None] * rates).float()  # culprit\n",
        precisions=BF16,
        part="function:time_waves",
        rules=DRIFTS,
        why="An angle of 300 is known to two.",
        source="https://github.com/Tencent-Hunyuan/UniRL/pull/438",
    ),
    Planted(
        name="places-low",
        healthy=PLACES,
        planted="    angles = (torch.arange(LENGTH) + 4000).to(low)[:, None] * 1000.0 ** (-torch.arange(half) / half)  # culprit\n",
        precisions=BF16,
        part="function:turned",
        rules=WHOLE,
        why="Of place 4030 bfloat16 knows every 16th.",
        source="https://github.com/vllm-project/vllm/pull/54620",
    ),
    Planted(
        name="mask-overflows",
        healthy=GUESSED,
        planted="    logits = logits.to(low)\n",
        more=(
            (
                "    logits = logits.masked_fill(torch.arange(WORDS + 1) == WORDS, -1e6)\n",
                "    logits = logits - 1e6 * (torch.arange(WORDS + 1) == WORDS).to(low)  # culprit\n",
            ),
        ),
        precisions=("16-mixed",),
        part="function:guessed",
        rules=("overflow", "nan"),
        why="A million is infinite in float16, and infinity times nought is no number.",
        source="https://github.com/JunnYu/GAU-alpha-pytorch/issues/1",
    ),
    Planted(
        name="draws-low",
        healthy=DRAWN,
        planted="    u = ((draws.double() + 0.5) / 2**24).to(low)\n    return (-(-u.log()).clamp_min(1e-6).log()).float()  # culprit\n",
        precisions=ALL,
        part="function:gumbel",
        rules=DRIFTS,
        why="A draw near one is rounded to one, and its noise is the largest there can be.",
        source="https://github.com/pytorch/pytorch/issues/48841",
    ),
    Planted(
        name="weighted-sum-overflows",
        healthy=BOUND,
        planted="    return (losses.to(low) * weights[:, None].to(low) * 1000 * hidden).sum() / losses.numel() / 1000  # culprit\n",
        precisions=("16-mixed",),
        part="function:bound",
        rules=("overflow", "nan"),
        why="A hundred losses of four with weights to eight, a thousandfold, are beyond float16.",
        source="https://github.com/qubvel-org/segmentation_models.pytorch/issues/463",
    ),
    Planted(
        name="entropy-low",
        healthy=ENTROPY,
        planted="    return (1 - entropy.to(low)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:surprise",
        rules=DRIFTS,
        why="Who knows nothing has an entropy of 0.97, and one less it is known to a 15th.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
    Planted(
        name="nats-absorbed",
        healthy=TOTAL,
        planted="        total = (total + loss).to(low).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="result",
        rules=("absorption", *DRIFTS),
        why="Four nats are added to four thousand, of which bfloat16 knows every 16th or 32nd.",
        source="https://github.com/google-research/last/pull/43",
    ),
]

HARMLESS = [
    Harmless(
        name="kept-rounded",
        healthy=KEPT,
        changed="        return (1 - (1 - EPS) * (ticks.float() / SCHEDULE)).to(low).float()\n",
        precisions=("16-mixed",),
        why="What is kept is rounded once; a draw between it and its neighbour would be chance.",
    ),
    Harmless(
        name="weight-rounded",
        healthy=WEIGHT,
        changed="        return ((1 - EPS) * noise.exp() / torch.expm1(noise)).to(low)\n",
        precisions=ALL,
        why="The odds are made in float32, and the weight is rounded once.",
    ),
    Harmless(
        name="weight-of-ticks",
        healthy=WEIGHT,
        changed="        return (1 - EPS) / (-torch.expm1(-noise)).to(low).float()\n",
        precisions=ALL,
        why="The chance to be hidden is rounded once, and divided by.",
    ),
    Harmless(
        name="reverse-of-ticks",
        healthy=REVERSE,
        changed="        return (step / ticks.to(torch.float16)).float()\n",
        precisions=ALL,
        why="Whole ticks up to a thousand are numbers of float16, and their quotient is rounded once.",
    ),
    Harmless(
        name="signal-by-sine",
        healthy=COSINE,
        changed="        return (2 * (math.pi / 4 * (1 - ticks.float() / SCHEDULE)).sin().to(low).float().square()).log()\n",
        precisions=ALL,
        why="Twice the square of half the angle's sine is the same, without a difference.",
    ),
    Harmless(
        name="places-from-the-window",
        healthy=PLACES,
        changed="    angles = (torch.arange(LENGTH).to(low).float() + 4000)[:, None] * 1000.0 ** (-torch.arange(half) / half)\n",
        precisions=ALL,
        why="Places within the window are exact, and the window's start is added in float32.",
    ),
    Harmless(
        name="gumbel-rounded",
        healthy=DRAWN,
        changed="    u = (draws.double() + 0.5) / 2**24\n    return (-(-u.log()).log()).to(low).float()\n",
        precisions=("16-mixed",),
        why="The noise is made in double precision and rounded once.",
    ),
    Harmless(
        name="rising-rounded",
        healthy=RISING,
        changed="    return (confidence[:, 1:] - confidence[:, :-1]).to(low).float()\n",
        precisions=ALL,
        why="The difference is made in float32.",
    ),
    Harmless(
        name="nats-apart",
        healthy=TOTAL,
        changed="        total = total + loss.to(low)\n",
        precisions=BF16,
        why="Each loss is rounded once, and the sum is in float32.",
    ),
]
