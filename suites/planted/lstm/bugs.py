"""Bugs of recurrent language models and their training."""

from __future__ import annotations

from planted_bug import Planted

BUGS = [
    Planted(
        name="cell-state-low",
        healthy="    state = keep.float().sigmoid() * state + (write.sigmoid() * new.tanh()).float()\n",
        planted="    state = (keep.sigmoid() * state + write.sigmoid() * new.tanh()).to(gates.dtype)  # culprit\n",
        precisions=("bf16-mixed", "bf16-true"),
        part="function:cell.1",
        rules=("absorption", "amplified-rounding", "local-drift", "accumulated-drift"),
        why="sigmoid(7) is 0.9991, which bfloat16 rounds to 1, and small writes do not move a large state. What the cell holds never fades.",
        source="https://github.com/uxlfoundation/oneDNN/issues/976",
    ),
    Planted(
        name="perplexity-total-low",
        healthy="    total, found = torch.zeros(len(likelihoods)), []\n",
        planted="    total, found = logits.new_zeros(len(likelihoods)), []\n",
        more=(("        total += each\n", "        total += each  # culprit\n"),),
        precisions=("bf16-mixed", "bf16-true"),
        part="function:perplexity",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="The total takes the format of the logits. Once it is large, each token is rounded up or down to its spacing, and the perplexity drifts.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
    ),
    Planted(
        name="unlikelihood-low",
        healthy="    probabilities = F.softmax(logits.float(), dim=-1)\n",
        planted="    probabilities = F.softmax(logits.float(), dim=-1).type_as(logits)\n",
        more=(
            (
                "    return -torch.log1p(-probabilities.gather(-1, avoided[..., None]).squeeze(-1)).mean()\n",
                "    return -torch.log(1 - probabilities.gather(-1, avoided[..., None]).squeeze(-1)).mean()  # culprit\n",
            ),
        ),
        precisions=("bf16-mixed", "bf16-true"),
        part="function:unlikelihood",
        rules=("cancellation", "amplified-rounding", "absorption"),
        why="1 - p rounds a probability of a few thousandths to nothing or to twice as much, and its logarithm with it. Rare repeats cost nothing.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
]
