"""Bugs of fine-tuning: quantisers, merges, penalties of small changes, what an optimizer keeps."""

from __future__ import annotations

from planted_bug import Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="quantiser-eps-low",
        healthy="        values = weight.float()\n        scale = values.abs().amax(-1, keepdim=True) / 127 + 1e-8\n",
        planted="        values = weight.to(like.dtype)\n        scale = values.abs().amax(-1, keepdim=True) / 127 + 1e-8  # culprit\n",
        precisions=("16-mixed",),
        part="function:quantised",
        rules=("vanished-constant", "nan", "overflow"),
        why="float16 stores 1e-8 as 0, so an empty row is divided by 0 and becomes NaN.",
        source="https://github.com/NVIDIA/Model-Optimizer/pull/381",
    ),
    Planted(
        name="merge-low",
        healthy="    return base.float() + change.float()\n",
        planted="    return base.to(like.dtype) + change.to(like.dtype)  # culprit\n",
        precisions=ALL,
        part="function:moved",
        rules=("absorption", "cancellation", "amplified-rounding", "accumulated-drift"),
        why="The adapter's change is a thousandth of the weight, and most of it is rounded away when it is merged in a low format.",
        source="https://github.com/huggingface/peft/issues/2502",
    ),
    Planted(
        name="penalty-low",
        healthy="    change = change.float()\n    return change.square().mean().float()\n",
        planted="    change = change.to(like.dtype)\n    return change.square().mean().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:mean_square",
        rules=("underflow", "accumulated-drift", "local-drift"),
        why="An adapter begins with changes of 2e-4, whose squares are smaller than the smallest number of float16: they "
        "are 0 or one and a half times "
        "what they should be, and so is the penalty's pull.",
        source="https://github.com/pytorch/pytorch/issues/43211",
    ),
    Planted(
        name="no-master",
        healthy='            state["master"] = weight.detach().clone().to(torch.float32)\n',
        planted='            state["master"] = weight.detach().clone()  # culprit\n',
        precisions=("bf16-true",),
        part="weights",
        rules=("lost-update", "absorption"),
        why="A step of 2e-4 is less than half of what bfloat16 moves by at weights of 0.1: most of the update is lost.",
        source="https://github.com/meta-pytorch/torchtune/issues/2254",
    ),
]
