"""Bugs of a fading memory: exponentials without a largest one taken off, rounded decays, a state in a low format, squares that overflow, a
gradient that is written by hand."""

from __future__ import annotations

from planted_bug import Planted

BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="exponentials-overflow",
        healthy="        top = torch.maximum(largest, bonus + k)\n",
        planted="        top = torch.zeros_like(k)\n",
        precisions=("16-mixed",),
        part="function:remembered",
        rules=("overflow", "nan"),
        why="The exponential of a key of 12 is beyond float16 if no largest exponent is taken off.",
        source="https://github.com/tensorpro/tpu_rwkv/issues/1",
        more=(
            (
                "        old, new = torch.exp(largest - top), torch.exp(bonus + k - top)\n",
                "        old, new = torch.exp(largest - top), torch.exp((bonus + k - top).to(low))  # culprit\n",
            ),
            ("        top = torch.maximum(kept, k)\n", "        top = torch.zeros_like(k)\n"),
            (
                "        old, new = torch.exp(kept - top), torch.exp(k - top)\n",
                "        old, new = torch.exp(fade), torch.exp((k - top).to(low))  # culprit\n",
            ),
            (
                "        above, below, largest = old * above + new * v, old * below + new, top\n",
                "        above, below, largest = old * above + new * v, old * below + new, top * 0\n",
            ),
        ),
    ),
    Planted(
        name="decay-rounded",
        healthy="    return -torch.exp(raw.float())\n",
        planted="    return torch.exp(-torch.exp(raw.float())).to(low).float().log()  # culprit\n",
        precisions=BF16,
        part="function:log_decay",
        rules=("amplified-rounding", "cancellation", "local-drift"),
        why="A channel keeps 0.9975 of its memory. bfloat16 has 0.996 and one: what is forgotten is off by half, or nothing.",
        source="https://github.com/fla-org/flash-linear-attention/issues/181",
    ),
    Planted(
        name="fading-absorbed",
        healthy="        kept = largest + fade\n",
        planted="        kept = (largest.to(low) + fade.to(low)).float()  # culprit\n",
        precisions=BF16,
        part="function:remembered",
        rules=("absorption", "local-drift", "accumulated-drift", "amplified-rounding"),
        why="A channel fades by a four-hundredth at each token, which bfloat16 does not take off an exponent of 8: nothing is forgotten.",
        source="https://github.com/fla-org/flash-linear-attention/issues/29",
    ),
    Planted(
        name="squares-overflow",
        healthy="        hidden = torch.relu(self.key(k) / SCALE).square()\n",
        planted="        hidden = torch.relu(self.key(k)).square()  # culprit\n",
        precisions=("16-mixed",),
        part="channels.0",
        rules=("overflow", "nan"),
        why="The hidden numbers reach 300, and their squares are beyond float16.",
        source="https://github.com/BlinkDL/ChatRWKV/pull/155",
        more=(
            (
                "        return torch.sigmoid(self.gate(g)) * self.value(hidden) * SCALE\n",
                "        return torch.sigmoid(self.gate(g)) * self.value(hidden) / SCALE  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="penalty-unscaled",
        healthy="        return gradient, torch.zeros_like(logits).scatter(-1, at, largest * factor) * gradient\n",
        planted="        return gradient, torch.zeros_like(logits).scatter(-1, at, largest * factor)  # culprit\n",
        precisions=("16-mixed",),
        part="gradient:head.weight",
        rules=("scaler-order", "underflow", "gradient-underflow", "missing-gradient"),
        why="What is added to a gradient is not multiplied by the loss scale, and is divided by it before the step.",
        source="https://github.com/fla-org/flash-linear-attention/pull/963",
    ),
]
