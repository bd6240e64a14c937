"""Bugs of matching: pixels in 16 bits, transport outside of logarithms or with rounded ones, averages of large places, logarithms of nothing."""

from __future__ import annotations

from planted_bug import Planted

BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="pixels-low",
        healthy="    share = (places - SIZE / 2) / SIZE\n",
        planted="    share = ((places.to(low) - SIZE / 2) / SIZE).float()  # culprit\n",
        precisions=BF16,
        part="function:waves",
        rules=("integer-rounding", "amplified-rounding", "cancellation", "local-drift"),
        why="A pixel of 1400 is rounded to eight, a third of the shortest wave.",
        source="https://github.com/kornia/kornia/pull/4336",
    ),
    Planted(
        name="rounds-low",
        healthy="    for _ in range(ROUNDS):\n",
        planted="    scores, due, rows, columns = (each.to(low) for each in (scores, due, rows, columns))  # culprit\n    for _ in range(ROUNDS):\n",
        precisions=BF16,
        part="function:plan",
        rules=("amplified-rounding", "accumulated-drift", "local-drift", "cancellation"),
        why="Logarithms of 20 are rounded to a sixteenth at each round; what is due to a row is missed by as much.",
        source="https://github.com/huggingface/transformers/pull/29886",
        more=(
            (
                "        rows = due - torch.logsumexp(scores + columns.unsqueeze(1), 2)\n",
                "        rows = due - torch.logsumexp(scores + columns.unsqueeze(1), 2)  # culprit\n",
            ),
            (
                "        columns = due - torch.logsumexp(scores + rows.unsqueeze(2), 1)\n",
                "        columns = due - torch.logsumexp(scores + rows.unsqueeze(2), 1)  # culprit\n",
            ),
            (
                "    return scores + rows.unsqueeze(2) + columns.unsqueeze(1) + math.log(2 * POINTS)\n",
                "    return (scores + rows.unsqueeze(2) + columns.unsqueeze(1) + math.log(2 * POINTS)).float()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="without-logarithms",
        healthy="    rows, columns = torch.zeros(scores.shape[:2]), torch.zeros(scores.shape[::2])\n",
        planted="    kernel, rows, columns = torch.exp(scores.to(low)), torch.ones(scores.shape[:2]), torch.ones(scores.shape[::2])  # culprit\n",
        precisions=("16-mixed",),
        part="function:plan",
        rules=("overflow", "nan", "underflow"),
        why="The exponential of a score of 13 is beyond float16.",
        source="https://github.com/PathologyDataScience/SurvivalNet/pull/6",
        more=(
            (
                "        rows = due - torch.logsumexp(scores + columns.unsqueeze(1), 2)\n",
                "        rows = due.exp() / (kernel.float() * columns.unsqueeze(1)).sum(2)\n",
            ),
            (
                "        columns = due - torch.logsumexp(scores + rows.unsqueeze(2), 1)\n",
                "        columns = due.exp() / (kernel.float() * rows.unsqueeze(2)).sum(1)\n",
            ),
            (
                "    return scores + rows.unsqueeze(2) + columns.unsqueeze(1) + math.log(2 * POINTS)\n",
                "    return torch.log(kernel.float() * rows.unsqueeze(2) * columns.unsqueeze(1)) + math.log(2 * POINTS)\n",
            ),
        ),
    ),
    Planted(
        name="log-of-nothing",
        healthy="    return -(chances * torch.log(chances + 1e-9)).sum(-1)\n",
        planted="    chances = chances.to(low)  # culprit\n    return -(chances * torch.log(chances + 1e-9)).sum(-1).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:doubt",
        rules=("vanished-constant", "underflow", "nan"),
        why="Chances below 3e-8 are zero in float16 and so is the guard: zero times the logarithm of zero.",
        source="https://github.com/lucidrains/gateloop-transformer/pull/4",
    ),
    Planted(
        name="shift-low",
        healthy="    return share @ right - left\n",
        planted="    return (share.to(low) @ right.to(low) - left.to(low)).float()  # culprit\n",
        precisions=BF16,
        part="function:shifted",
        rules=("cancellation", "amplified-rounding", "integer-rounding", "local-drift"),
        why="Two places of 1200 that are 40 pixels apart are each rounded to eight.",
        source="https://github.com/kornia/kornia/pull/4336",
    ),
    Planted(
        name="lines-low",
        healthy="    line = one @ form.transpose(1, 2)\n",
        planted="    one, other = one.to(low), other.to(low)  # culprit\n    line = one @ form.to(low).transpose(1, 2)  # culprit\n",
        precisions=BF16,
        part="function:off_line",
        rules=("cancellation", "integer-rounding", "amplified-rounding", "local-drift"),
        why="A row of 1200 less one of 1201: both are rounded to eight.",
        source="https://github.com/kornia/kornia/pull/4336",
        more=(
            (
                "    return (line * other).sum(-1) / (line[..., :2].norm(dim=-1) + 1e-6)\n",
                "    return ((line * other).sum(-1) / (line[..., :2].norm(dim=-1) + 1e-6)).float()  # culprit\n",
            ),
        ),
    ),
]
