"""Bugs of memories by a gated delta rule: sums of decays, rounded decays, a softplus by hand, small keys, a mask's constant."""

from __future__ import annotations

from planted_bug import Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="decay-sums-low",
        healthy="    sums = log_decay.flatten(-2).cumsum(-1).view_as(log_decay)\n",
        planted="    sums = log_decay.flatten(-2).to(low).cumsum(-1).view_as(log_decay)  # culprit\n",
        precisions=BF16,
        part="function:within.1",
        rules=("cancellation", "amplified-rounding", "accumulated-drift", "local-drift", "absorption"),
        why="Running sums reach -15 and are kept to a sixteenth in bfloat16; the decay between neighbours is a difference of two of them.",
        source="https://github.com/fla-org/flash-linear-attention/issues/104",
        more=(
            (
                "    between = torch.exp((sums.unsqueeze(-1) - sums.unsqueeze(-2)).clamp(max=0)).tril()\n",
                "    between = torch.exp((sums.unsqueeze(-1) - sums.unsqueeze(-2)).clamp(max=0)).tril()  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="decays-rounded",
        healthy="    return -torch.exp(rate.float()) * functional.softplus(given.float() + bias.float())\n",
        planted="    decay = torch.exp(-torch.exp(rate.float()) * functional.softplus(given.float() + bias.float())).to(low)  # culprit\n"
        "    return decay.float().log()  # culprit\n",
        precisions=BF16,
        part="function:log_decays",
        rules=("amplified-rounding", "cancellation", "local-drift"),
        why="Decays of 0.95 are kept to a two-hundred-and-fiftieth in bfloat16: what is lost at each token is off by a twelfth.",
        source="https://github.com/ml-explore/mlx-lm/issues/565",
    ),
    Planted(
        name="softplus-by-hand",
        healthy="    return -torch.exp(rate.float()) * functional.softplus(given.float() + bias.float())\n",
        planted="    raised = torch.log(1 + torch.exp((given.float() + bias.float()).to(low)))  # culprit\n"
        "    return -torch.exp(rate.float()) * raised.float()\n",
        precisions=BF16,
        part="function:log_decays",
        rules=("absorption", "cancellation", "amplified-rounding", "local-drift"),
        why="0.06 is added to one, of which bfloat16 keeps a hundred-and-twenty-eighth, and the logarithm takes the one off again.",
        source="https://github.com/state-spaces/mamba/pull/923",
    ),
    Planted(
        name="small-keys-vanish",
        healthy="    x = x.float()\n    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-10)\n",
        planted="    x = x.to(low)\n    return (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-10)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:unit",
        rules=("underflow", "vanished-constant", "overflow", "nan", "amplified-rounding"),
        why="Keys of 1e-4 have squares of 1e-8, which float16 does not hold, nor the constant beside them.",
        source="https://github.com/ml-explore/mlx-lm/pull/1624",
    ),
    Planted(
        name="mask-overflows",
        healthy="    return torch.where(seen, 0.0, -1e9).unsqueeze(1)\n",
        planted="    return torch.where(seen, 0.0, -1e9).to(low).unsqueeze(1)  # culprit\n",
        precisions=("16-mixed",),
        part="window",
        rules=("overflow", "nan"),
        why="-1e9 is minus infinity in float16. A padded token sees nothing at all, and its softmax is no number.",
        source="https://github.com/JunnYu/GAU-alpha-pytorch/issues/1",
    ),
]
