"""Bugs of conditional random fields: scores that grow with the text, and small differences of them."""

from __future__ import annotations

from planted_bug import Planted

BF16, LOW = ("bf16-mixed", "bf16-true"), ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="forward-low",
        healthy="    emissions, transitions = emissions.float(), transitions.float()\n    score = emissions[:, 0]\n",
        planted="    transitions = transitions.to(like.dtype)\n    score = emissions[:, 0]\n",
        precisions=LOW,
        part="function:marginals",
        rules=("absorption", "local-drift", "accumulated-drift", "cancellation", "amplified-rounding"),
        why="Scores grow by 3 a word and reach 900, where bfloat16 moves by 4: each further word is rounded away or counted double.",
        source="https://github.com/google-research/last/pull/43",
        more=(
            (
                "        score = torch.logsumexp(score.unsqueeze(2) + transitions, 1) + emissions[:, word]\n",
                "        score = torch.logsumexp(score.unsqueeze(2) + transitions, 1) + emissions[:, word]  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="marginals-low",
        healthy="    return torch.exp(before + after - total[:, None, None]).float()\n",
        planted="    return torch.exp(before.to(low) + after.to(low) - total.to(low)[:, None, None]).float()  # culprit\n",
        precisions=LOW,
        part="function:marginals",
        rules=("cancellation", "amplified-rounding", "local-drift", "overflow"),
        why="Both scores are hundreds and their sum is close to the total; what is left are rounding errors, and their exponential is a "
        "probability of 50.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
    ),
    Planted(
        name="surprise-low",
        healthy="    return (total - right).float()\n",
        planted="    return (total.to(low) - right.to(low)).float()  # culprit\n",
        precisions=BF16,
        part="function:surprise",
        rules=("cancellation", "amplified-rounding"),
        why="The loss is a difference of two scores of 900, each rounded to a multiple of 4.",
        source="https://github.com/OpenRLHF/OpenRLHF/issues/525",
    ),
    Planted(
        name="path-summed-low",
        healthy="    own = emissions.float().gather(2, tags.unsqueeze(2)).squeeze(2).sum(1)\n",
        planted="""    own = torch.zeros(len(tags), dtype=emissions.dtype)
    for word, now in enumerate(emissions.unbind(1)):
        own = own + now.gather(1, tags[:, word : word + 1]).squeeze(1)  # culprit
""",
        precisions=BF16,
        part="function:surprise",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="The right path's emissions are added one by one; from 512 on bfloat16 moves by 4, and a word adds 2.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
    ),
    Planted(
        name="last-words-low",
        healthy="    return (mask.long().cumsum(1)[:, -1] - 1).long()\n",
        planted="    return (mask.to(low).sum(1) - 1).long()  # culprit\n",
        precisions=BF16,
        part="result",
        rules=("integer-rounding", "absorption", "decision-flip"),
        why="A text of 283 words has 284 in bfloat16, so its kind is read from a word of padding.",
        source="https://github.com/RosettaCommons/foundry/pull/236",
    ),
]
