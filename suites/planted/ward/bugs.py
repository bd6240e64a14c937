"""Bugs of readings at irregular times: clocks of millions of minutes, counts, gaps between late hours, areas of a path far from nought."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
HOURS = "    return (minutes - minutes[:, :1]).float() / 60\n"
SLOPES = "    return (path[:, 1:] - path[:, :-1]) / gaps[..., None]\n"
MEAN = "    return (tenths[:, :-1].float() * lasted).sum(1) / lasted.sum(1) / 10\n"
REST = "    rest = piece - first\n"

BUGS = [
    Planted(
        name="clock-low",
        healthy=HOURS,
        planted="    return (minutes.to(low) - minutes[:, :1].to(low)).float() / 60  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:hours_since",
        rules=(*DRIFTS, "integer-rounding"),
        why="Of 28 million minutes bfloat16 knows every 131072nd, which is three months.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="readings-low",
        healthy="    values = tenths.float() / 10\n    return (values - torch",
        planted="    values = (tenths.float() / 10).to(low)  # culprit\n    return (values - torch",
        more=(
            ("torch.tensor(USUAL)) / torch.tensor(SPREAD)\n", "torch.tensor(USUAL, dtype=low)).float() / torch.tensor(SPREAD)  # culprit\n"),
        ),
        precisions=BF16,
        part="function:standardised",
        rules=DRIFTS,
        why="A temperature of 37 degrees is known to an eighth, and a fever is one degree.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="counts-low",
        healthy="    return seen.float().cumsum(1)\n",
        planted="    count, out = torch.zeros_like(seen[:, 0], dtype=low), []\n"
        "    for k in range(seen.shape[1]):\n"
        "        count = count + seen[:, k].to(low)  # culprit\n"
        "        out.append(count)\n"
        "    return torch.stack(out, 1).float()\n",
        precisions=BF16,
        part="function:intensities",
        rules=("absorption", "integer-rounding", *DRIFTS),
        why="Each sign is read some 290 times, and bfloat16 counts to 256.",
        source="https://github.com/rusty1s/pytorch_scatter/issues/269",
    ),
    Planted(
        name="gaps-low",
        healthy="        now = hours[:, k, None]\n",
        planted="        now = hours[:, k, None].to(low)  # culprit\n",
        more=(
            ("        out.append(now - last)\n", "        out.append((now - last).float())  # culprit\n"),
            ("        last = torch.where(seen[:, k], now, last)\n", "        last = torch.where(seen[:, k], now, last.to(low))\n"),
            ("last = [], hours[:, :1].expand(-1, SIGNS)\n", "last = [], hours[:, :1].expand(-1, SIGNS).to(low)\n"),
        ),
        precisions=ALL,
        part="function:since_last",
        rules=DRIFTS,
        why="After 100 hours bfloat16 knows every half, and readings are a third of an hour apart.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="slopes-low",
        healthy="    gaps = hours[:, 1:] - hours[:, :-1]\n" + SLOPES,
        planted="    hours, path = hours.to(low), path.to(low)  # culprit\n"
        "    gaps = hours[:, 1:] - hours[:, :-1]  # culprit\n"
        "    return ((path[:, 1:] - path[:, :-1]) / gaps[..., None].clamp_min(0.01)).float()  # culprit\n",
        precisions=MIXED,
        part="function:slopes",
        rules=(*DRIFTS, "overflow", "nan"),
        why="Times and counts of neighbours differ by less than what the format knows of them.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="areas-far-from-nought",
        healthy=REST,
        planted="    piece = piece.to(low)  # culprit\n    rest = piece\n",
        more=(
            ("    return torch.cat([rest[:, :, -1], (products", "    return torch.cat([rest[:, :, -1] - rest[:, :, 0], (products"),
            ("products[..., j, i]) / 2], -1)\n", "products[..., j, i]) / 2], -1).float()  # culprit\n"),
            (
                "    steps = rest[:, :, 1:] - rest[:, :, :-1]\n",
                "    steps = rest[:, :, 1:] - rest[:, :, :-1]  # culprit\n",
            ),
        ),
        precisions=("bf16-mixed",),
        part="function:signature",
        rules=DRIFTS,
        why="Days and counts are large beside their steps in a piece, and an area is a difference of two products.",
        source="https://github.com/aqlaboratory/openfold-3/pull/353",
    ),
    Planted(
        name="queries-low",
        healthy="    start, end = hours.gather(1, right - 1), hours.gather(1, right)\n",
        planted="    start, end = hours.gather(1, right - 1).to(low), hours.gather(1, right).to(low)  # culprit\n",
        more=(
            (
                "    part = ((queries - start) / (end - start)).clamp(0, 1)[..., None]\n",
                "    part = ((queries.to(low) - start) / (end - start).clamp_min(0.05)).float().clamp(0, 1)[..., None]  # culprit\n",
            ),
        ),
        precisions=BF16,
        part="function:read_at",
        rules=DRIFTS,
        why="Hours of a hundred are known to a half, and two readings are a third of one apart.",
        source="https://github.com/pytorch/pytorch/issues/88939",
    ),
    Planted(
        name="mean-overflows",
        healthy=MEAN,
        planted="    lasted = lasted.to(low)\n    return ((tenths[:, :-1].to(low) * lasted).sum(1) / lasted.sum(1) / 10).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:weighted_mean",
        rules=("overflow", "nan"),
        why="A pulse of 820 tenths times 6000 minutes is beyond float16.",
        source="https://github.com/qubvel-org/segmentation_models.pytorch/issues/463",
    ),
    Planted(
        name="spread-by-squares",
        healthy="    return (values - mean[:, None]).square().mean(1).sqrt() / mean\n",
        planted="    values, mean = values.to(low), mean.to(low)\n"
        "    return ((values.square().mean(1) - mean.square()).clamp_min(0).sqrt() / mean).float()  # culprit\n",
        precisions=BF16,
        part="function:variability",
        rules=(*DRIFTS, "local-drift"),
        why="The square of a pressure of 118 is known to 64, and a spread of six has a square of 36.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="factor-low",
        healthy="    return torch.tensor(0.998) ** gaps\n",
        planted="    return torch.tensor(0.998, dtype=low).float() ** gaps  # culprit\n",
        precisions=BF16,
        part="function:fading",
        rules=DRIFTS,
        why="0.998 is 0.9961 in bfloat16, and forty minutes have its power.",
        source="https://github.com/fla-org/flash-linear-attention/issues/181",
    ),
    Planted(
        name="state-low",
        healthy="    state, states = start.float(), []\n",
        planted="    state, states = start.to(low), []\n",
        more=(
            (
                "        state = state + (first + field(state + first, step)).float() / 2\n",
                "        state = (state + (first + field(state + first, step)).float() / 2).to(low)  # culprit\n",
            ),
        ),
        precisions=BF16,
        part="function:solved",
        rules=("absorption", *DRIFTS),
        why="A piece changes a state of a half by a thousandth, which is less than half of what bfloat16 moves by.",
        source="https://github.com/vllm-project/vllm/issues/13466",
    ),
]

HARMLESS = [
    Harmless(
        name="deviations-rounded",
        healthy="torch.tensor(USUAL)) / torch.tensor(SPREAD)\n",
        changed="torch.tensor(USUAL)).to(low).float() / torch.tensor(SPREAD)\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="counted-by-halves",
        healthy="    return seen.float().cumsum(1)\n",
        changed="    early = seen[:, :160].to(low).cumsum(1).float()\n"
        "    return torch.cat([early, early[:, -1:] + seen[:, 160:].to(low).cumsum(1).float()], 1)\n",
        precisions=ALL,
        why="A count to 160 is exact in every format, and the two are added in float32.",
    ),
    Harmless(
        name="gaps-rounded",
        healthy="        out.append(now - last)\n",
        changed="        out.append((now - last).to(low).float())\n",
        precisions=ALL,
        why="The gaps are made in float32, and rounded once.",
    ),
    Harmless(
        name="areas-of-rounded-differences",
        healthy=REST,
        changed="    rest = (piece - first).to(low).float()\n",
        precisions=("16-mixed",),
        why="Within a piece the path is near its first point; what is rounded there is small beside the steps.",
    ),
    Harmless(
        name="mean-of-shares",
        healthy=MEAN,
        changed="    share = (lasted / lasted.sum(1, keepdim=True)).to(low)\n"
        "    return ((tenths[:, :-1].float() / 10).to(low) * share).sum(1).float()\n",
        precisions=MIXED,
        why="Shares are small, and each product is positive and rounded once.",
    ),
    Harmless(
        name="spread-of-rounded-deviations",
        healthy="    return (values - mean[:, None]).square().mean(1).sqrt() / mean\n",
        changed="    return ((values - mean[:, None]).to(low).square().mean(1).sqrt() / mean.to(low)).float()\n",
        precisions=BF16,
        why="Deviations are made in float32; their squares are positive.",
    ),
    Harmless(
        name="fading-by-logarithm",
        healthy="    return torch.tensor(0.998) ** gaps\n",
        changed="    return (-0.002002 * gaps.to(low)).exp().float()\n",
        precisions=ALL,
        why="Whole minutes up to 39 are exact, and the exponent is small: its rounding is one of the result.",
    ),
]
