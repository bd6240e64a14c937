"""Bugs of speech: lengths from shares, distances, chances of having passed over many frames."""

from __future__ import annotations

from planted_bug import Planted

BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="lengths-of-shares-low",
        healthy="    lengths = torch.round(shares.float() * frames).long()\n",
        planted="    lengths = (shares.to(like.dtype) * frames).ceil().long()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:present",
        rules=("integer-rounding", "decision-flip", "local-drift"),
        why="A share of 0.9658 is 0.9648 or 0.9688 in bfloat16, and the length made of it is off by one frame or two.",
        source="https://github.com/speechbrain/speechbrain/issues/1129",
    ),
    Planted(
        name="distances-low",
        healthy="    distance = torch.arange(frames - 1, -frames, -1, device=like.device, dtype=torch.float32)\n",
        planted="    distance = torch.arange(frames - 1, -frames, -1, device=like.device).to(like.dtype)  # culprit\n",
        precisions=BF16,
        part="function:relative_table",
        rules=("integer-rounding", "amplified-rounding"),
        why="Distances beyond 256 frames are no bfloat16 numbers, and angles of hundreds of radians are made of them in that format.",
        source="https://github.com/vllm-project/vllm/pull/54620",
        more=(
            (
                "    rates = 10000 ** (-torch.arange(0, WIDTH, 2, device=like.device, dtype=torch.float32) / WIDTH)\n",
                "    rates = (10000 ** (-torch.arange(0, WIDTH, 2, device=like.device, dtype=torch.float32) / WIDTH)).to(like.dtype)  # culprit\n",
            ),
            ("    angles = distance[:, None] * rates\n", "    angles = distance[:, None] * rates  # culprit\n"),
        ),
    ),
    Planted(
        name="survivals-low",
        healthy="    over = (1 - chosen.float()).clamp_min(1e-6)\n",
        planted="    over = (1 - chosen.to(like.dtype)).clamp_min(1e-6)  # culprit\n",
        precisions=BF16,
        part="function:survivals",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="A frame is passed over with a chance of 0.998, whose neighbours in bfloat16 are 0.996 and 1. The product over 300 frames has the "
        "power of that.",
        source="https://github.com/tenstorrent/tt-metal/pull/41371",
    ),
    Planted(
        name="floor-of-survivals-vanishes",
        healthy="    for p, left in zip(chosen.float().unbind(1), survive.unbind(1), strict=True):\n",
        planted="    for p, left in zip(chosen.to(like.dtype).unbind(1), survive.to(like.dtype).unbind(1), strict=True):\n",
        precisions=("16-mixed",),
        part="function:alignment",
        rules=("vanished-constant", "underflow", "overflow", "nan"),
        why="The floor of 1e-10 is zero in float16, and so are chances of having passed over everything: zero is divided by zero.",
        source="https://github.com/j-min/MoChA-pytorch/issues/4",
        more=(
            (
                "    before = torch.zeros_like(chosen[:, 0]).float()\n",
                "    before = torch.zeros_like(chosen[:, 0]).to(like.dtype)\n",
            ),
            (
                "        before = p * left * (before / left.clamp(1e-10, 1.0)).cumsum(-1)\n",
                "        before = p * left * (before / left.clamp(1e-10, 1.0)).cumsum(-1)  # culprit\n",
            ),
        ),
    ),
]
