"""Bugs of mixtures of experts."""

from __future__ import annotations

from planted_bug import Planted

BUGS = [
    Planted(
        name="router-low",
        healthy=(
            '        with torch.autocast("cpu", enabled=False):\n'
            "            logits = F.linear(x.float(), self.weight.float())\n"
        ),
        planted="        logits = F.linear(x, self.weight).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="blocks.0.mixture",
        rules=("decision-flip", "amplified-rounding"),
        why="Logits rounded to the low format tie or swap, so tokens go to other experts than in float32, and others than in the next run.",
        source="https://github.com/vllm-project/vllm/pull/14027",
    ),
    Planted(
        name="slots-by-matmul",
        healthy=(
            "    chosen = F.one_hot(experts.T.reshape(-1), EXPERTS)\n"
            "    before = chosen.cumsum(0) - chosen\n"
        ),
        planted=(
            "    chosen = F.one_hot(experts.T.reshape(-1), EXPERTS).to(dtype)\n"
            "    before = torch.ones(len(chosen), len(chosen), dtype=dtype).tril(-1) @ chosen  # culprit\n"
        ),
        precisions=("bf16-mixed", "bf16-true"),
        part="blocks.0.mixture",
        rules=("integer-rounding",),
        why="A count beyond 256 is no bfloat16 number, so two tokens are given one place in a queue and one of them is lost.",
        source="https://github.com/tensorflow/tensorflow/issues/115731",
    ),
    Planted(
        name="counts-low",
        healthy="    return torch.bincount(experts.reshape(-1), minlength=EXPERTS).float()\n",
        planted=(
            "    flat = experts.reshape(-1)\n"
            "    return torch.zeros(EXPERTS, dtype=dtype).index_add_(0, flat, torch.ones(len(flat), dtype=dtype)).float()  # culprit\n"
        ),
        precisions=("bf16-true",),
        part="function:tokens_per_expert",
        rules=("absorption", "integer-rounding", "local-drift"),
        why="A count in bfloat16 stops at 256, so the balancing loss takes a busy expert for one like the others.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
    ),
    Planted(
        name="renormalise-low",
        healthy="    return gates / total.clamp(min=torch.finfo(gates.dtype).tiny)\n",
        planted="    return gates / (total + 1e-9)  # culprit\n",
        more=(
            (
                "        gates = renormalised(gates * (slots < CAPACITY))\n",
                "        gates = renormalised((gates * (slots < CAPACITY)).to(autocast_type(x)))\n",
            ),
            (
                "def renormalised(",
                "def autocast_type(x: Tensor) -> torch.dtype:\n"
                '    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype\n\n\n'
                "def renormalised(",
            ),
        ),
        precisions=("16-mixed",),
        part="function:renormalised",
        rules=("vanished-constant", "nan", "overflow"),
        why="1e-9 is zero in float16. A token that both its experts dropped divides zero by zero, and the loss is NaN.",
        source="https://github.com/ggml-org/llama.cpp/pull/16655",
    ),
    Planted(
        name="importance-by-moments",
        healthy="    return importance.var(unbiased=False) / importance.mean().square()\n",
        planted=(
            "    mean = importance.mean()\n"
            "    return (importance.square().mean() - mean.square()) / mean.square()  # culprit\n"
        ),
        more=(("importance_loss(probabilities), z_loss", "importance_loss(probabilities.to(x.dtype)).float(), z_loss"),),
        precisions=("bf16-true",),
        part="function:importance_loss",
        rules=("cancellation", "amplified-rounding"),
        why="Experts are given nearly the same, so the variance is a small difference of large squares. In bfloat16 it is noise, or negative.",
        source="https://github.com/neuraloperator/neuraloperator/issues/329",
    ),
]
