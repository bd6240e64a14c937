"""Bugs of survival models: dates in a low format, exponentials of risks, chances near one."""

from __future__ import annotations

from planted_bug import Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="dates-low",
        healthy="    return (left - entered).float()\n",
        planted="    return (left.to(low) - entered.to(low)).float()  # culprit\n",
        precisions=ALL,
        part="function:observed",
        rules=("integer-rounding", "cancellation", "amplified-rounding"),
        why="Of days since 1970, bfloat16 knows every 64th or 128th, and float16 every eighth or 16th.",
        source="https://github.com/utensils/mold/issues/786",
    ),
    Planted(
        name="risks-overflow",
        healthy="    top = risk.detach().max()\n",
        planted="    top = 0.0\n",
        precisions=("16-mixed",),
        part="function:first_to_die",
        rules=("overflow", "nan"),
        why="Without the largest risk taken off, the exponential of 12 is beyond float16.",
        source="https://github.com/PathologyDataScience/SurvivalNet/pull/6",
        more=(
            (
                "    sums = torch.exp(risk - top).cumsum(0)\n",
                "    sums = torch.exp(risk.to(low)).cumsum(0).float()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="hazards-absorbed",
        healthy="    return torch.exp(functional.logsigmoid(-hazard.float()).cumsum(-1))\n",
        planted="    return torch.exp((1 - torch.sigmoid(hazard.to(low))).add(1e-7).log().float().cumsum(-1))  # culprit\n",
        precisions=BF16,
        part="function:alive",
        rules=("absorption", "cancellation", "amplified-rounding", "vanished-constant", "local-drift", "accumulated-drift"),
        why="One less a hazard of 0.0015 is one in bfloat16: all intervals are survived for sure.",
        source="https://github.com/havakv/pycox/issues/51",
    ),
    Planted(
        name="sorted-by-low-days",
        healthy="    order = days.argsort(descending=True)\n",
        planted="    order = days.to(low).argsort(descending=True)  # culprit\n",
        precisions=BF16,
        part="function:first_to_die",
        rules=("integer-rounding", "decision-flip"),
        why="Days are rounded to sixteens, and who of sixteen patients died first is chance.",
        source="https://github.com/modelscope/DiffSynth-Studio/pull/1025",
    ),
    Planted(
        name="study-absorbed",
        healthy="    stay = torch.cumprod(1 - lost / left, 0)\n",
        planted="    stay = torch.cumprod((1 - lost / left).to(low), 0).float()  # culprit\n",
        precisions=BF16,
        part="function:stay_in_study",
        rules=("absorption", "local-drift", "accumulated-drift", "cancellation", "amplified-rounding"),
        why="One patient of 384 who leaves is a share that bfloat16 does not take off one.",
        source="https://github.com/nerfstudio-project/nerfacc/issues/138",
    ),
]
