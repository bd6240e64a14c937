"""Bugs of chunked state space models: decays as differences of running sums, a state from chunk to chunk, a norm of nothing."""

from __future__ import annotations

from planted_bug import Planted

BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="decay-sums-low",
        healthy="    ends = log_decay.float().cumsum(-1)\n    apart = ends.unsqueeze(-1) - ends.unsqueeze(-2)\n",
        planted="    ends = log_decay.to(like.dtype).cumsum(-1)  # culprit\n    apart = ends.unsqueeze(-1) - ends.unsqueeze(-2)  # culprit\n",
        precisions=BF16,
        part="function:segment_decay",
        rules=("cancellation", "amplified-rounding", "local-drift", "accumulated-drift", "absorption"),
        why="Running sums of log-decays reach some tens, and what is wanted of them are small differences: neighbouring tokens keep "
        "another share "
        "of each other than was computed.",
        source="https://github.com/ROCm/rocm-libraries/pull/7851",
    ),
    Planted(
        name="masked-after-exponential",
        healthy="    return torch.exp(apart.masked_fill(later, -torch.inf)).float()\n",
        planted="    return (torch.exp(apart.to(like.dtype)) * ~later).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:segment_decay",
        rules=("overflow", "nan"),
        why="Above the diagonal the exponents are positive and reach 50. float16 overflows from 11 on, and infinity times zero is no "
        "number. float32 "
        "would have to pass 88.",
        source="https://github.com/Human9000/nd-Mamba2-torch/issues/34",
    ),
    Planted(
        name="document-numbers-low",
        healthy="    documents = (tokens == BEGIN).long().cumsum(1).long()\n",
        planted="    documents = (tokens == BEGIN).to(like.dtype).cumsum(1).to(like.dtype).long()  # culprit\n",
        precisions=BF16,
        part="function:document_losses",
        rules=("integer-rounding", "absorption", "decision-flip"),
        why="From 256 on bfloat16 has every second number only, from 512 on every fourth: the losses of several documents are averaged "
        "as one.",
        source="https://github.com/RosettaCommons/foundry/pull/236",
    ),
    Planted(
        name="norm-eps-vanishes",
        healthy="    y = y.float() * functional.silu(gate.float())\n",
        planted="    y = y * functional.silu(gate)\n",
        precisions=("16-mixed",),
        part="function:gated_norm",
        rules=("vanished-constant", "nan", "overflow", "underflow"),
        why="1e-8 is zero in float16. Padding has no output, so its norm divides by the root of zero.",
        source="https://github.com/kornia/kornia/issues/4021",
        more=(
            (
                "    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-8)\n",
                "    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-8)  # culprit\n",
            ),
        ),
    ),
]
