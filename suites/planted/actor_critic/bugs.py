"""Bugs of actor-critic training: running moments, returns over a long horizon, log-densities of many joints, a divergence near zero."""

from __future__ import annotations

from planted_bug import Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="count-low",
        healthy="            size = torch.tensor(float(len(part)))\n            total = self.count + size\n",
        planted="            size = part.new_tensor(float(len(part)))\n            total = self.count.to(size.dtype) + size  # culprit\n",
        precisions=("bf16-mixed",),
        part="buffer:spread.count",
        rules=("absorption", "integer-rounding", "local-drift"),
        why="The count is kept in the format of the critic's output. At 5000 bfloat16 moves by 32, so counting by 16 stands still, and old samples "
        "are weighed too little for ever after.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
    ),
    Planted(
        name="variance-by-squares",
        healthy="    values = values.float()\n    mean = values.mean(0)\n    return mean, (values - mean).square().mean(0)\n",
        planted="    mean = values.mean(0)  # culprit\n    return mean.float(), ((values * values).mean(0) - mean * mean).float()  # culprit\n",
        precisions=MIXED,
        part="buffer:spread.variance",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="The critic's outputs are 8 and differ by 0.3. The mean of the squares and the square of the mean are both 64, which bfloat16 stores in "
        "steps of 0.5: the variance, by which the loss is divided, is rounding.",
        source="https://github.com/tenstorrent/tt-metal/issues/45968",
    ),
    Planted(
        name="advantages-low",
        healthy="        rewards, values = rewards.float(), UNIT * values.float()\n",
        planted="        rewards, values = rewards.to(values.dtype), UNIT * values  # culprit\n",
        precisions=MIXED,
        part="function:advantages",
        rules=("absorption", "cancellation", "accumulated-drift", "amplified-rounding", "local-drift"),
        why="Surprises are differences of values of 40, which bfloat16 stores in steps of 0.25, and rewards are 0.05: the "
        "recursion over 256 steps adds "
        "up rounding.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
        more=(
            (
                "            surprise = rewards[step] + DISCOUNT * values[step + 1] - values[step]\n",
                "            surprise = rewards[step] + DISCOUNT * values[step + 1] - values[step]  # culprit\n",
            ),
            (
                "            running = surprise + DISCOUNT * TRACE * running\n",
                "            running = surprise + DISCOUNT * TRACE * running  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="log-density-low",
        healthy="        mean, log_deviation = mean.float(), log_deviation.float()\n",
        planted="        mean, log_deviation = mean, log_deviation.to(mean.dtype)  # culprit\n",
        precisions=MIXED,
        part="function:log_ratios",
        rules=("cancellation", "amplified-rounding", "accumulated-drift", "local-drift"),
        why="The log-density of 24 joints is about -46 and stored in the format of the policy's output, then the old one is subtracted and the "
        "exponential taken: the ratio of two equal policies is no longer 1.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
        more=(
            (
                "        distance = (actions.to(mean.dtype) - mean) * torch.exp(-log_deviation)\n",
                "        distance = (actions.to(mean.dtype) - mean) * torch.exp(-log_deviation)  # culprit\n",
            ),
            (
                "        return (-0.5 * distance * distance - log_deviation - 0.5 * math.log(2 * math.pi)).sum(-1).float()\n",
                "        return (-0.5 * distance * distance - log_deviation - 0.5 * math.log(2 * math.pi)).sum(-1).float()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="kl-low",
        healthy="        log_ratio = log_ratio.float()\n        return torch.expm1(log_ratio) - log_ratio\n",
        planted="        log_ratio = log_ratio.to(like.dtype)\n        return (torch.exp(log_ratio) - 1 - log_ratio).float()  # culprit\n",
        precisions=MIXED,
        part="function:approximate_kl",
        rules=("cancellation", "amplified-rounding", "absorption", "accumulated-drift"),
        why="For ratios near 1 the estimate is a difference of nearly equal numbers: rounding is larger than the divergence, and of either sign.",
        source="https://github.com/OpenRLHF/OpenRLHF/issues/525",
    ),
]
