"""Bugs of state space models: what a scan carries, and what it is made of."""

from __future__ import annotations

from planted_bug import Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="state-low",
        healthy="            state = now_keep * state + now_drive\n",
        planted="            state = (now_keep * state + now_drive).to(c.dtype)  # culprit\n",
        precisions=("bf16-mixed", "bf16-true"),
        part="function:scan",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="The state is stored in the inputs' format after every token. What a token adds is a few thousandths of the state, so most of it is "
        "rounded away, and slow channels remember something else than they were told.",
        source="https://github.com/vllm-project/vllm/issues/13466",
    ),
    Planted(
        name="decay-low",
        healthy="        keep = torch.exp(step.unsqueeze(-1) * rate)\n",
        planted="        keep = torch.exp(step.unsqueeze(-1) * rate).to(x.dtype)  # culprit\n",
        precisions=("bf16-mixed", "bf16-true"),
        part="function:scan",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="A decay of 0.998 has no neighbour in bfloat16 but 0.996 and 1, so slow channels never forget; over hundreds of tokens the rounding of "
        "one factor becomes its power.",
        source="https://github.com/ml-explore/mlx-lm/issues/565",
    ),
    Planted(
        name="softplus-by-hand",
        healthy="        raw = raw.float() + bias.float()\n        return functional.softplus(raw)\n",
        planted="        raw = raw + bias.to(raw.dtype)\n        return torch.log(1 + torch.exp(raw)).float()  # culprit\n",
        precisions=ALL,
        part="function:step_sizes",
        rules=("amplified-rounding", "absorption", "accumulated-drift", "underflow"),
        why="1 + exp(-6) is 1.0025, which bfloat16 rounds to 1, and its logarithm to 0: the clocks of most channels stand still. "
        "log1p, which softplus uses, keeps the small number.",
        source="https://github.com/state-spaces/mamba/issues/6",
    ),
    Planted(
        name="document-totals-low",
        healthy="    token_losses = token_losses.float()\n",
        planted="    token_losses = token_losses.to(like.dtype)  # culprit\n",
        precisions=("bf16-mixed", "bf16-true"),
        part="function:document_losses",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="index_add rounds each document's total after every token in the format of the logits; from 512 on bfloat16 moves by 4, and a "
        "token's loss is 5. Long documents count for something else than their mean.",
        source="https://github.com/rusty1s/pytorch_scatter/issues/269",
        more=(
            (
                "    totals = torch.zeros(DOCUMENTS, dtype=token_losses.dtype, device=like.device).index_add(0, document, token_losses)\n",
                "    totals = torch.zeros(DOCUMENTS, dtype=token_losses.dtype, device=like.device).index_add(0, document, token_losses)  # culprit\n",
            ),
        ),
    ),
]
