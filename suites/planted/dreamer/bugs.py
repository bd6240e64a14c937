"""Bugs of agents that dream: bins, traces, the spread of returns, chances near one."""

from __future__ import annotations

from planted_bug import Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="two-hot-low",
        healthy="    x = symlog(values.float())\n",
        planted="    bins, x = bins.to(like.dtype), symlog(values.to(like.dtype))  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:two_hot",
        rules=("cancellation", "amplified-rounding", "local-drift", "decision-flip"),
        why="Bins are a third apart and lie at 4, where bfloat16 moves by a sixty-fourth: shares are off by a twentieth and more.",
        source="https://github.com/pytorch/rl/pull/4065",
        more=(
            (
                "    share = (x - bins[below]) / (bins[below + 1] - bins[below])\n",
                "    share = (x - bins[below]) / (bins[below + 1] - bins[below])  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="bins-overflow",
        healthy="    bins = places.sign() * torch.expm1(places.abs())\n    chances = logits.float().softmax(-1)\n",
        planted="    bins = (places.sign() * torch.expm1(places.abs())).to(like.dtype)  # culprit\n    chances = logits.softmax(-1).to(like.dtype)\n",
        precisions=("16-mixed",),
        part="function:expected",
        rules=("overflow", "nan"),
        why="The outer bins are at e^20 and beyond float16: their chance, which is zero, times infinity is no number.",
        source="https://github.com/mindspore-lab/mindrl/pull/73",
    ),
    Planted(
        name="discounts-low",
        healthy="    kept = DISCOUNT * going_on.float()\n",
        planted="    kept = DISCOUNT * going_on.to(like.dtype)  # culprit\n",
        precisions=BF16,
        part="function:discounts",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="0.997 is 0.996 in bfloat16, and forty steps have its power.",
        source="https://github.com/tenstorrent/tt-metal/issues/55935",
    ),
    Planted(
        name="spread-low",
        healthy="    sorted_worth = worth.detach().float().sort(-1).values\n",
        planted="    sorted_worth = worth.detach().to(like.dtype).sort(-1).values  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:spread",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Returns are 240 and differ by a few units, of which bfloat16 has whole ones. All advantages are divided by that.",
        source="https://github.com/agi-brain/xuance/pull/125",
        more=(
            (
                "    return (sorted_worth[:, -1 - at] - sorted_worth[:, at]).clamp_min(0.01).float().unsqueeze(-1)\n",
                "    return (sorted_worth[:, -1 - at] - sorted_worth[:, at]).clamp_min(0.01).float().unsqueeze(-1)  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="exploring-low",
        healthy="    done = (step.double() / 1_000_000).float()\n    return 1 - done\n",
        planted="    done = (step.double() / 1_000_000).to(like.dtype)  # culprit\n    return (1 - done).float()  # culprit\n",
        precisions=ALL,
        part="function:exploring",
        rules=("cancellation", "amplified-rounding", "absorption", "underflow"),
        why="After 998700 steps of a million 0.9987 are done, which is one in bfloat16: nothing is left to chance any more.",
        source="https://github.com/vllm-project/vllm/pull/46665",
    ),
]
