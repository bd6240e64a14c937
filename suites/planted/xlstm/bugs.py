"""Bugs of gated memories: gates near one, bounds that overflow, small answers, a backward recurrence."""

from __future__ import annotations

from planted_bug import Planted

BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="forget-gate-rounded",
        healthy="    log_keep = functional.logsigmoid(forget.float())\n",
        planted="    log_keep = torch.sigmoid(forget.to(like.dtype)).log().float()  # culprit\n",
        precisions=BF16,
        part="function:gate_matrix.0",
        rules=("amplified-rounding", "cancellation", "local-drift"),
        why="A forget gate of 0.998 has no neighbours in bfloat16 but 0.996 and 1, so a memory is kept for ever or lost twice as fast.",
        source="https://github.com/ml-explore/mlx-lm/issues/565",
    ),
    Planted(
        name="bound-overflows",
        healthy="    bound = torch.exp(-peak)\n",
        planted="    bound = torch.exp(-peak.to(torch.float16 if values.dtype is torch.float16 else torch.float32)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:readout",
        rules=("overflow",),
        why="Input gates begin at -12, and e^12 is beyond float16: the answer is divided by infinity, and the head is silent.",
        source="https://github.com/inclusionAI/cuLA/issues/89",
    ),
    Planted(
        name="head-norm-squares-vanish",
        healthy="    x = x.float()\n    return x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-7)\n",
        planted="    x = x.to(like.dtype)\n    return x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-7)  # culprit\n",
        precisions=("16-mixed",),
        part="function:head_norm",
        rules=("underflow", "vanished-constant", "overflow", "nan", "amplified-rounding"),
        why="Answers of nearly empty memories are 1e-5: their squares are zero in float16, and so is the root that they are divided by.",
        source="https://github.com/pytorch/pytorch/issues/189581",
    ),
    Planted(
        name="smoothing-backward-low",
        healthy="        grad_x, running = [], torch.zeros_like(grad[:, 0]).float()\n",
        planted="        grad_x, running = [], torch.zeros_like(grad[:, 0])\n",
        precisions=BF16,
        part="gradient:blocks.0.smooth",
        rules=("absorption", "accumulated-drift", "local-drift"),
        why="The backward pass carries its running gradient in the format of the activations, and rounds it at each of 224 tokens.",
        source="https://github.com/NVIDIA/Megatron-LM/pull/5841",
        more=(
            (
                "            running = running * keep.float() + grad[:, now].float()\n",
                "            running = (running * keep.float()).to(grad.dtype) + grad[:, now]  # culprit\n",
            ),
            ("        grad_keep = torch.zeros_like(keep).float()\n", "        grad_keep = torch.zeros_like(keep).to(grad.dtype)\n"),
            (
                "                grad_keep = grad_keep + (running * states[:, now - 1]).sum(0)\n",
                "                grad_keep = grad_keep + (running * states[:, now - 1].to(grad.dtype)).sum(0)  # culprit\n",
            ),
        ),
    ),
]
