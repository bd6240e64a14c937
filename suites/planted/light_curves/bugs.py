"""Bugs of light curves: dates of millions of days, phases of many turns, magnitudes that hardly change, tiny errors of readings."""

from __future__ import annotations

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="dates-low",
        healthy="    return (times - EPOCH).float()\n",
        planted="    return (times.to(torch.bfloat16) - EPOCH).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:days_since",
        rules=("cancellation", "amplified-rounding", "local-drift", "integer-rounding"),
        why="A Julian date of 2.5 million is known to 16384 days.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="days-low",
        healthy="    turns = days / periods[:, None]\n",
        planted="    turns = days.to(low).float() / periods[:, None]  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:phases",
        rules=("cancellation", "amplified-rounding", "local-drift", "accumulated-drift", "decision-flip"),
        why="After 64 days bfloat16 knows a day to a quarter, and a period has half a day to two.",
        source="https://github.com/binux/pyspider/pull/83",
    ),
    Planted(
        name="turns-low",
        healthy="    turns = days / periods[:, None]\n",
        planted="    turns = (days / periods[:, None]).to(low)  # culprit\n",
        more=(("    return turns - turns.floor()\n", "    return (turns - turns.floor()).float()  # culprit\n"),),
        precisions=MIXED,
        part="function:phases",
        rules=("cancellation", "amplified-rounding", "local-drift", "accumulated-drift", "decision-flip"),
        why="Of a hundred turns the part of one is known to a half in bfloat16 and to a sixteenth in float16.",
        source="https://github.com/hexgrad/kokoro/pull/353",
    ),
    Planted(
        name="frequencies-low",
        healthy="    return torch.linspace(0.5, 4.0, 64)\n",
        planted="    return torch.linspace(0.5, 4.0, 64).to(low)\n",
        more=(
            (
                "    angles = 2 * math.pi * frequencies[:, None] * days[:, None, :]\n",
                "    angles = (2 * math.pi * frequencies[:, None] * days[:, None, :]).float()  # culprit\n",
            ),
        ),
        precisions=MIXED,
        part="function:periodogram",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="Two pi times a frequency is rounded, and multiplied by a hundred days.",
        source="https://github.com/huggingface/transformers/issues/25681",
    ),
    Planted(
        name="angles-low",
        healthy="    real = (angles.cos() * changes[:, None, :]).mean(-1)\n",
        planted="    angles = angles.to(low)  # culprit\n    real = (angles.cos().float() * changes[:, None, :]).mean(-1)\n",
        more=(
            (
                "    imaginary = (angles.sin() * changes[:, None, :]).mean(-1)\n",
                "    imaginary = (angles.sin().float() * changes[:, None, :]).mean(-1)\n",
            ),
        ),
        precisions=MIXED,
        part="function:periodogram",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="An angle of 2000 is known to eight in bfloat16 and to one in float16.",
        source="https://github.com/finegrain-ai/refiners/pull/449",
    ),
    Planted(
        name="weights-overflow",
        healthy="    weights = 1 / errors.square()\n",
        planted="    small = errors.half()\n    weights = (1 / (small * small)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:inverse_variances",
        rules=("overflow", "underflow", "nan"),
        why="An error of 0.003 has a square of a hundred-thousandth, and its inverse is beyond float16.",
        source="https://github.com/openai/glow/issues/40",
    ),
    Planted(
        name="slopes-low",
        healthy="    return (magnitudes[:, 1:] - magnitudes[:, :-1]) / (days[:, 1:] - days[:, :-1])\n",
        planted="    rounded = magnitudes.to(low)  # culprit\n"
        "    return (rounded[:, 1:] - rounded[:, :-1]).float() / (days[:, 1:] - days[:, :-1])  # culprit\n",
        precisions=MIXED,
        part="function:slopes",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A magnitude of 15 is known to a sixteenth in bfloat16 and to a 128th in float16, and changes by some hundredths.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="scatter-by-moments",
        healthy="    return (magnitudes - magnitudes.mean(-1, keepdim=True)).square().mean(-1)\n",
        planted="    m = magnitudes.to(low)\n    return (m.square().mean(-1) - m.mean(-1).square()).float()  # culprit\n",
        precisions=MIXED,
        part="function:scatter",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Squares of 234 less the square of 15.3 are known to one, and the variance is a 500th.",
        source="https://github.com/facebookresearch/fvcore/pull/114",
    ),
    Planted(
        name="ratio-low",
        healthy="    return (flux - model) / model\n",
        planted="    return (flux / model).to(low).float() - 1  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:misfit",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A ratio near one is known to a 128th, and misses one by some hundredths.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
]

HARMLESS = [
    Harmless(
        name="days-rounded-phase",
        healthy="    return turns - turns.floor()\n",
        changed="    return (turns - turns.floor()).to(low).float()\n",
        precisions=MIXED,
        why="The phase is rounded once, after the turns were taken off.",
    ),
    Harmless(
        name="power-rounded",
        healthy="    return (real.square() + imaginary.square()).sqrt()\n",
        changed="    return (real.square() + imaginary.square()).sqrt().to(low).float()\n",
        precisions=MIXED,
        why="Each strength is rounded once.",
    ),
    Harmless(
        name="cosines-rounded",
        healthy="    real = (angles.cos() * changes[:, None, :]).mean(-1)\n",
        changed="    real = (angles.cos().to(low).float() * changes[:, None, :]).mean(-1)\n",
        precisions=("16-mixed",),
        why="A cosine of an exact angle is rounded once, and a mean is taken over 96 of them.",
    ),
    Harmless(
        name="weights-rounded",
        healthy="    weights = 1 / errors.square()\n    return weights / weights.amax(-1, keepdim=True)\n",
        changed="    relative = (errors.amin(-1, keepdim=True) / errors).to(low)\n    return (relative * relative).float()\n",
        precisions=MIXED,
        why="Errors are divided by the smallest first, so all is within one.",
    ),
    Harmless(
        name="slopes-rounded",
        healthy="    return (magnitudes[:, 1:] - magnitudes[:, :-1]) / (days[:, 1:] - days[:, :-1])\n",
        changed="    change = (magnitudes[:, 1:] - magnitudes[:, :-1]).to(low)\n    return change.float() / (days[:, 1:] - days[:, :-1])\n",
        precisions=MIXED,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="deviations-low",
        healthy="    return (magnitudes - magnitudes.mean(-1, keepdim=True)).square().mean(-1)\n",
        changed="    apart = (magnitudes - magnitudes.mean(-1, keepdim=True)).to(low)\n    return apart.float().square().mean(-1)\n",
        precisions=MIXED,
        why="The mean is taken off in float32, and what is left is rounded once.",
    ),
    Harmless(
        name="misfit-rounded",
        healthy="    return (flux - model) / model\n",
        changed="    return ((flux - model).to(low) / model.to(low)).float()\n",
        precisions=MIXED,
        why="The difference is made in float32; it and the model are rounded once each.",
    ),
]
