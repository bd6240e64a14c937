"""Bugs of Gaussian processes: distances as differences of squares, rounded kernels, noise that vanishes, variances."""

from __future__ import annotations

from planted_bug import Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="years-low",
        healthy="    return ((years - 1995.0) / 10).float()\n",
        planted="    return ((years.to(low) - 1995.0) / 10).float()  # culprit\n",
        precisions=MIXED,
        part="function:since",
        rules=("integer-rounding", "cancellation", "amplified-rounding", "vanished-constant"),
        why="The year 2003.4 is 2000 or 2008 in bfloat16, and 2003 in float16.",
        source="https://github.com/ecmwf/WeatherGenerator/issues/2046",
    ),
    Planted(
        name="distances-expanded",
        healthy="    return (one.unsqueeze(-2) - two.unsqueeze(-3)).square().sum(-1).float()\n",
        planted="    one, two = one.to(low), two.to(low)\n"
        "    squares = one.square().sum(-1).unsqueeze(-1) + two.square().sum(-1).unsqueeze(-2)\n"
        "    return (squares - 2 * (one @ two.transpose(-1, -2))).clamp_min(0).float()  # culprit\n",
        precisions=MIXED,
        part="function:apart",
        rules=("cancellation", "amplified-rounding", "accumulated-drift"),
        why="Both squares are 70 and their difference is 0.01, of which nothing is left in either format.",
        source="https://github.com/NVIDIA/cuvs/issues/991",
    ),
    Planted(
        name="kernel-rounded",
        healthy="    return (scale.float() * torch.exp(-0.5 * square)).float()\n",
        planted="    return (scale.float() * torch.exp(-0.5 * square)).to(low).float()  # culprit\n",
        precisions=MIXED,
        part="function:rooted",
        rules=("amplified-rounding", "accumulated-drift", "cancellation", "local-drift"),
        why="A rounded kernel is no longer positive: its smallest eigenvalues are smaller than what was rounded.",
        source="https://github.com/cornellius-gp/gpytorch/issues/969",
    ),
    Planted(
        name="noise-absorbed",
        healthy="    matrix = matrix + noise.float() * torch.eye(len(matrix))\n",
        planted="    matrix = (matrix.to(low) + noise.to(low) * torch.eye(len(matrix), dtype=low)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:rooted",
        rules=("absorption", "vanished-constant", "amplified-rounding", "local-drift", "cancellation"),
        why="0.004 on a diagonal of one is nothing or 0.008 in bfloat16, and the matrix has no factor.",
        source="https://github.com/vllm-project/vllm-omni/pull/7224",
    ),
    Planted(
        name="doubt-low",
        healthy="    return (own - solved.square().sum(0)).float()\n",
        planted="    return (own.to(low) - solved.to(low).square().sum(0)).float()  # culprit\n",
        precisions=MIXED,
        part="function:doubt",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Where much is known, one less 0.99 is left, which low formats have as nothing or less.",
        source="https://github.com/cornellius-gp/gpytorch/issues/969",
    ),
]
