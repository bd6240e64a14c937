"""Bugs of sparse codes: huge entries, what is left over, counts and averages over many steps, a variance."""

from __future__ import annotations

from planted_bug import Planted

MIXED = ("bf16-mixed", "16-mixed")

BUGS = [
    Planted(
        name="scale-overflows",
        healthy="    states = states.float()\n",
        planted="    states = states.to(low)\n",
        precisions=("16-mixed",),
        part="function:scaled",
        rules=("overflow",),
        why="An entry of 412 has a square beyond float16: the state is divided by infinity.",
        source="https://github.com/microsoft/onnxruntime/pull/29043",
        more=(
            (
                "    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-6)\n",
                "    return (states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-6)).float()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="left-over-low",
        healthy="    return ((states - middle) - decoded.float()).float()\n",
        planted="    rebuilt = decoded.to(low) + middle.to(low)  # culprit\n    return (states.to(low) - rebuilt).float()  # culprit\n",
        precisions=MIXED,
        part="function:left_over",
        rules=("cancellation", "amplified-rounding", "absorption", "local-drift"),
        why="Entries of 412 are known by two in bfloat16, and what is left over is one.",
        source="https://github.com/EleutherAI/sparsify/issues/74",
    ),
    Planted(
        name="counts-low",
        healthy="    return torch.where(fired, 0.0, since + 1).float()\n",
        planted="    return torch.where(fired, 0.0, since.to(low) + 1).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="buffer:since",
        rules=("absorption", "integer-rounding", "accumulated-drift"),
        why="At 256 bfloat16 does not count on by one: a latent is never dead for longer.",
        source="https://github.com/ai-safety-foundation/sparse_autoencoder/pull/42",
    ),
    Planted(
        name="usage-low",
        healthy="    return usage.float() * DECAY + (1 - DECAY) * share.float()\n",
        planted="    return usage.to(low) * DECAY + (1 - DECAY) * share.to(low)  # culprit\n",
        precisions=("bf16-mixed",),
        part="buffer:usage",
        rules=("absorption", "accumulated-drift", "lost-update", "local-drift"),
        why="An average that moves by a five-hundredth of what it is off does not move in bfloat16.",
        source="https://github.com/NVIDIA/Model-Optimizer/pull/738",
    ),
    Planted(
        name="variance-low",
        healthy="    centred = states - states.mean(0)\n",
        planted="    centred = states.to(low) - states.to(low).mean(0)  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:unexplained",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Entries of 412 are known by two in bfloat16 and vary by one.",
        source="https://github.com/EleutherAI/sparsify/issues/74",
    ),
]
