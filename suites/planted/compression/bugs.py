"""Bugs of image compression: differences of distributions, tiny chances, frequencies of a coder, counts of bits, errors of bright pixels."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="distributions-low",
        healthy="    return phi((0.5 - size) / scale) - phi((-0.5 - size) / scale)\n",
        planted="    upper, lower = phi((0.5 - size) / scale).to(low), phi((-0.5 - size) / scale).to(low)  # culprit\n"
        "    return (upper - lower).float()  # culprit\n",
        precisions=ALL,
        part="function:chances",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Where the scale is large, both are near a half and nearly equal.",
        source="https://github.com/InterDigitalInc/CompressAI/issues/65",
    ),
    Planted(
        name="whole-side-low",
        healthy="    sign = -(upper + lower).sign()\n    return (torch.sigmoid(sign * upper) - torch.sigmoid(sign * lower)).abs()\n",
        planted="    return (torch.sigmoid(upper).to(low) - torch.sigmoid(lower).to(low)).float().abs()  # culprit\n",
        precisions=ALL,
        part="function:logistic_chances",
        rules=("cancellation", "amplified-rounding", "local-drift", "underflow"),
        why="Far to the right both are one, and their difference is nought.",
        source="https://github.com/bayesiains/nflows/issues/87",
    ),
    Planted(
        name="starts-low",
        healthy="    starts = table.cumsum(-1)\n    return starts[:, 1:] - starts[:, :-1]\n",
        planted="    starts = table.cumsum(-1).to(low)  # culprit\n    return (starts[:, 1:] - starts[:, :-1]).float()  # culprit\n",
        precisions=BF16,
        part="function:intervals",
        rules=("integer-rounding", "cancellation", "amplified-rounding", "local-drift"),
        why="Whole numbers up to 65536 are rounded to 256, and most intervals are narrower.",
        source="https://github.com/huggingface/transformers/issues/28685",
    ),
    Planted(
        name="pixels-low",
        healthy="    return (image - made).square().mean((1, 2, 3))\n",
        planted="    return (image.to(low) - made.to(low)).float().square().mean((1, 2, 3))  # culprit\n",
        precisions=BF16,
        part="function:squared_error",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A made pixel of 200 is known to one, and is wrong by one.",
        source="https://github.com/princeton-vl/RAFT/issues/54",
    ),
    Planted(
        name="squares-overflow",
        healthy="    return (image - made).square().mean((1, 2, 3))\n",
        planted="    apart = (image - made).half() * 256\n    return (apart * apart).float().mean((1, 2, 3)) / 65536  # culprit\n",
        precisions=("16-mixed",),
        part="function:squared_error",
        rules=("overflow",),
        why="The square of 256 times a difference of two is beyond float16.",
        source="https://github.com/openai/glow/issues/40",
    ),
    Planted(
        name="bits-absorbed",
        healthy="        total = total + rows[:, k]\n",
        planted="        total = (total.to(low) + rows[:, k].to(low)).float()  # culprit\n",
        precisions=BF16,
        part="function:total_bits",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="Of thousands of bits bfloat16 knows every 16th or 32nd, and a row has some tens.",
        source="https://github.com/google-research/last/pull/43",
    ),
    Planted(
        name="power-overflows",
        healthy="        wide = x.float()\n",
        planted="        wide = (64 * x).to(torch.float16)\n",
        more=(
            (
                "        power = F.conv2d(wide.square(), self.gamma.float()[..., None, None], self.beta.float())\n"
                "        return (wide * power.rsqrt()).to(x.dtype)\n",
                "        power = F.conv2d((wide * wide * wide * wide).float().sqrt() / 4096,"
                " self.gamma.float()[..., None, None], self.beta.float())  # culprit\n"
                "        return (wide.float() / 64 * power.rsqrt()).to(x.dtype)\n",
            ),
        ),
        precisions=("16-mixed",),
        part="encode.1",
        rules=("overflow",),
        why="The fourth power of 64 times a feature is beyond float16.",
        source="https://github.com/aqlaboratory/openfold/pull/295",
    ),
]

HARMLESS = [
    Harmless(
        name="chances-rounded",
        healthy="    return phi((0.5 - size) / scale) - phi((-0.5 - size) / scale)\n",
        changed="    return (phi((0.5 - size) / scale) - phi((-0.5 - size) / scale)).to(low).float()\n",
        precisions=BF16,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="bound-in-range",
        healthy="    return -torch.log2(chance.clamp_min(1e-9))\n",
        changed="    return -torch.log2(chance.clamp_min(1e-9).to(torch.bfloat16).float())\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="The bound is kept in float32, and a logarithm of a number rounded once is off by a hundredth of a bit; numbers near one are few.",
    ),
    Harmless(
        name="table-rounded",
        healthy="    return torch.exp(torch.linspace(math.log(least), math.log(most), count))\n",
        changed="    return torch.exp(torch.linspace(math.log(least), math.log(most), count)).to(low).float()\n",
        precisions=ALL,
        why="Each scale is rounded once.",
    ),
    Harmless(
        name="pixels-subtracted-first",
        healthy="    return (image - made).square().mean((1, 2, 3))\n",
        changed="    return (image - made).to(low).float().square().mean((1, 2, 3))\n",
        precisions=ALL,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="image-low",
        healthy="    return (image - made).square().mean((1, 2, 3))\n",
        changed="    return (image.to(low).float() - made).square().mean((1, 2, 3))\n",
        precisions=ALL,
        why="Pixels are whole numbers up to 255, which both formats hold.",
    ),
    Harmless(
        name="rows-rounded",
        healthy="        total = total + rows[:, k]\n",
        changed="        total = total + rows[:, k].to(low).float()\n",
        precisions=ALL,
        why="A row is rounded once and by itself, and the sum is of float32.",
    ),
    Harmless(
        name="decibels-rounded",
        healthy="    return 10 * (255**2 / error).log10()\n",
        changed="    return (10 * (255**2 / error).log10()).to(low).float()\n",
        precisions=ALL,
        why="Decibels are rounded once.",
    ),
    Harmless(
        name="power-scaled",
        healthy="        wide = x.float()\n",
        changed="        wide = x.to(torch.bfloat16).float()\n",
        precisions=BF16,
        why="What the layer is given is low already.",
    ),
]
