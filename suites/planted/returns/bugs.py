"""Bugs of a model of decisions: sums of rewards, the clock of an episode, statistics of states, weights of advantages."""

from __future__ import annotations

from planted_bug import Planted

BF16 = ("bf16-mixed", "bf16-true")
ALL = ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="returns-low",
        healthy="        total = total + reward\n",
        planted="        total = (total + reward).to(low)  # culprit\n",
        precisions=BF16,
        part="function:to_go",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="A return of 20 is kept to an eighth in bfloat16, so each of 96 additions of 0.3 adds a quarter.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/1334",
    ),
    Planted(
        name="clock-low",
        healthy="    return (start.unsqueeze(1) + torch.arange(LENGTH)).clamp(max=LONGEST - 1).long()\n",
        planted="    return (start.to(low).unsqueeze(1) + torch.arange(LENGTH)).clamp(max=LONGEST - 1).long()  # culprit\n",
        precisions=BF16,
        part="time",
        rules=("integer-rounding", "decision-flip"),
        why="Steps beyond 256 are even in bfloat16, and beyond 512 multiples of four, so several share one embedding.",
        source="https://github.com/kohya-ss/musubi-tuner/pull/729",
    ),
    Planted(
        name="deviations-low",
        healthy="    return (states - states.mean(0)).square().sum(0).float()\n",
        planted="    states = states.to(low)\n    return (len(states) * (states.square().mean(0) - states.mean(0).square())).float()  # culprit\n",
        precisions=ALL,
        part="function:deviations",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A mean square of 901 less a squared mean of 900: bfloat16 keeps both to four, float16 to a half.",
        source="https://github.com/Physical-Intelligence/openpi/pull/1051",
    ),
    Planted(
        name="ago-low",
        healthy="    ago = (when.unsqueeze(-1) - when.unsqueeze(-2)).float()\n",
        planted="    when = when.to(low)  # culprit\n    ago = (when.unsqueeze(-1) - when.unsqueeze(-2)).float()  # culprit\n",
        precisions=BF16,
        part="function:faded",
        rules=("integer-rounding", "cancellation", "amplified-rounding"),
        why="Of steps beyond 512 bfloat16 knows every fourth: what was a step ago is now, or four steps ago.",
        source="https://github.com/utensils/mold/issues/786",
    ),
    Planted(
        name="weights-overflow",
        healthy="    weight = torch.exp(advantage.float() - advantage.float().max())\n",
        planted="    weight = torch.exp(advantage.to(low))  # culprit\n",
        precisions=("16-mixed",),
        part="function:preferred",
        rules=("overflow", "nan"),
        why="An advantage of 13 has an exponential beyond float16, and infinity over the mean of infinity is no number.",
        source="https://github.com/NVIDIA-NeMo/RL/pull/876",
    ),
]
