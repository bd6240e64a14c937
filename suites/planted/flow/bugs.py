"""Bugs planted into the normalising flow."""

from __future__ import annotations

from planted_bug import Planted

BF16, LOW = ("bf16-mixed", "bf16-true"), ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="logit-clamp-low",
        healthy="    x = (pixels.float() + noise.float()) / 256\n"
        "    x = x.clamp(alpha, 1 - alpha)\n"
        "    return torch.log(x) - torch.log(1 - x), -(torch.log(x) + torch.log(1 - x)).sum(-1)\n",
        planted="""    x = ((pixels.float() + noise.float()) / 256).to(noise.dtype)
    x = x.clamp(alpha, 1 - alpha)  # culprit
    inverse = 1 - x  # culprit
    return (torch.log(x) - torch.log(inverse)).float(), -(torch.log(x) + torch.log(inverse)).float().sum(-1)  # culprit
""",
        precisions=("bf16-true",),
        part="function:as_logits.0",
        rules=("vanished-constant", "overflow", "nan", "amplified-rounding", "cancellation"),
        why="1 - 1e-6 is 1 in bfloat16, so the clamp does nothing at its upper end and a white pixel has an infinite logit.",
        source="https://github.com/zylo117/Yet-Another-EfficientDet-Pytorch/issues/502",
    ),
    Planted(
        name="variance-of-squares-low",
        healthy="    x = x.float()\n    mean = x.mean(0)\n    variance = (x - mean).square().mean(0) + 1e-5\n",
        planted="""    low = x.to(low)
    mean = low.mean(0)
    variance = (low.square().mean(0) - mean.square()).clamp(min=0).float() + 1e-5  # culprit
""",
        precisions=BF16,
        part="function:normalised.0",
        rules=("cancellation", "amplified-rounding"),
        why="The mean of a light pixel's logit is far from zero, so its variance is the difference of two nearly equal numbers, each rounded.",
        source="https://github.com/google/objax/issues/182",
        more=(
            ("def normalised(x: torch.Tensor)", "def normalised(x: torch.Tensor, low: torch.dtype)"),
            (
                "        x, change = normalised(x)\n",
                "        x, change = normalised(x, torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) "
                "else noise.dtype)\n",
            ),
        ),
    ),
    Planted(
        name="determinant-as-product",
        healthy="        return x @ matrix.T, torch.log(diagonal.float().abs()).sum()\n",
        planted="        return x @ matrix.T, torch.log(diagonal.to(low).abs().prod()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:mixed.1",
        rules=("underflow", "overflow", "nan"),
        why="The product of 256 diagonal elements is about e^-55, which float16 does not hold: it is zero and its logarithm infinite.",
        source="https://github.com/pytorch/pytorch/issues/18450",
        more=(
            (
                "def mixed(x: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor, diagonal: torch.Tensor)",
                "def mixed(x: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor, diagonal: torch.Tensor, low: torch.dtype)",
            ),
            (
                "        return mixed(x, self.lower, self.upper, self.diagonal)\n",
                "        return mixed(x, self.lower, self.upper, self.diagonal, torch.get_autocast_dtype(x.device.type))\n",
            ),
        ),
    ),
    Planted(
        name="spline-knots-low",
        healthy="    shares = least + (1 - least * BINS) * F.softmax(unnormalised.float(), dim=-1)\n"
        "    return F.pad(2 * BOUND * torch.cumsum(shares, dim=-1), (1, 0)) - BOUND\n",
        planted="""    shares = least + (1 - least * BINS) * F.softmax(unnormalised, dim=-1)
    return F.pad(2 * BOUND * torch.cumsum(shares, dim=-1).to(unnormalised.dtype), (1, 0)) - BOUND  # culprit
""",
        precisions=LOW,
        part="function:slopes",
        rules=("cancellation", "amplified-rounding", "local-drift", "absorption", "accumulated-drift"),
        why="The ends of the bins are cumulative sums, stored low; a bin's width is the difference of two of them, so little of it is left.",
        source="https://github.com/VincentStimper/normalizing-flows/pull/52",
    ),
    Planted(
        name="log-density-summed-low",
        healthy="    return (-0.5 * (z.float().square() + math.log(2 * math.pi))).sum(-1) + log_determinant.float()\n",
        planted="""    terms = (-0.5 * (z.float().square() + math.log(2 * math.pi))).to(low)
    total = terms[:, 0]
    for term in terms.unbind(-1)[1:]:
        total = total + term  # culprit
    return total.float() + log_determinant.float()
""",
        precisions=BF16,
        part="function:log_density",
        rules=("absorption", "local-drift"),
        why="A running sum over 256 dimensions is kept low: when it is near -300, a term of 1 is rounded to a whole number or lost.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
        more=(
            (
                "def log_density(z: torch.Tensor, log_determinant: torch.Tensor)",
                "def log_density(z: torch.Tensor, log_determinant: torch.Tensor, low: torch.dtype)",
            ),
            (
                "        return log_density(torch.cat([kept, moved], dim=-1), log_determinant + change)\n",
                "        return log_density(torch.cat([kept, moved], dim=-1), log_determinant + change, parameters.dtype)\n",
            ),
        ),
    ),
]
