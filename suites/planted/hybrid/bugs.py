"""Bugs of a hybrid language model: sums of exponents kept low, documents and places with rounded numbers, a softmax written out."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="exponents-low",
        healthy="    total = exponents.float().cumsum(-1)\n",
        planted="    total = exponents.to(low).cumsum(-1)  # culprit\n",
        precisions=BF16,
        part="function:carried",
        rules=("cancellation", "absorption", "accumulated-drift", "amplified-rounding", "local-drift"),
        why="A running sum of 20 is known to an eighth, and what is left at a chunk's end is an exponential of the difference of two.",
        source="https://github.com/state-spaces/mamba/issues/6",
    ),
    Planted(
        name="documents-low",
        healthy="    return documents.unsqueeze(-1) == documents.unsqueeze(-2)\n",
        planted="    return documents.to(low).unsqueeze(-1) == documents.to(low).unsqueeze(-2)  # culprit\n",
        precisions=ALL,
        part="function:together",
        rules=("integer-rounding", "decision-flip"),
        why="Documents 4101, 4102 and 4103 have one number in bfloat16, and two of them in float16.",
        source="https://github.com/huggingface/transformers/issues/35899",
    ),
    Planted(
        name="places-low",
        healthy="    angles = (places.float().unsqueeze(-1) * 10_000.0 ** (-torch.arange(0, DIM, 2).float() / DIM)).unsqueeze(1)\n",
        planted="    angles = (places.to(low).unsqueeze(-1) * 10_000.0 ** (-torch.arange(0, DIM, 2).float() / DIM)).unsqueeze(1)  # culprit\n",
        precisions=ALL,
        part="function:turned",
        rules=("integer-rounding", "amplified-rounding", "local-drift"),
        why="Of place 4102 bfloat16 knows every 32nd and float16 every fourth, and the fastest pair turns once in six.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="strides-by-exponential",
        healthy="    return functional.softplus(steps.float() + bias.float())\n",
        planted="    return torch.log(1 + torch.exp(steps.to(low) + bias.to(low))).float()  # culprit\n",
        precisions=BF16,
        part="function:strides",
        rules=("absorption", "cancellation", "amplified-rounding", "local-drift"),
        why="One and a hundredth is one and a 128th in bfloat16, and its logarithm is the stride.",
        source="https://github.com/state-spaces/mamba/issues/6",
    ),
    Planted(
        name="masked-after-rounding",
        healthy="    return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)\n",
        planted="    raised = torch.exp(scores.to(low)) * seen  # culprit\n    return (raised / raised.sum(-1, keepdim=True)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="result",
        rules=("overflow", "nan"),
        why="Scores of normed queries and keys are 12 and more, and the exponential of that is beyond float16.",
        source="https://github.com/facebookresearch/xformers/pull/98",
    ),
]

HARMLESS = [
    Harmless(
        name="embedding-scale-low",
        healthy="        scale = WIDTH**0.5\n",
        changed="        scale = torch.tensor(WIDTH**0.5, dtype=low)\n",
        precisions=ALL,
        why="One constant is rounded once, for all tokens alike, and the norm that comes next takes a common factor out.",
    ),
    Harmless(
        name="cap-low",
        healthy="    return CAP * torch.tanh(scores.float() / CAP)\n",
        changed="    return (CAP * torch.tanh(scores.to(low) / CAP)).float()\n",
        precisions=("16-mixed",),
        why="Scores that a low product has made are rounded three times more.",
    ),
    Harmless(
        name="documents-of-the-row-low",
        healthy="    return documents.unsqueeze(-1) == documents.unsqueeze(-2)\n",
        changed="    first = (documents - documents.amin(-1, keepdim=True)).to(low)\n    return first.unsqueeze(-1) == first.unsqueeze(-2)\n",
        precisions=ALL,
        why="Numbers from nought to two are exact.",
    ),
    Harmless(
        name="masked-by-thousands",
        healthy="    return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)\n",
        changed="    return torch.softmax(scores + (~seen).to(low).float() * -1e4, -1)\n",
        precisions=ALL,
        why="Capped scores less ten thousand have exponentials of zero.",
    ),
    Harmless(
        name="masked-low",
        healthy="    return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)\n",
        changed="    blocked = scores.to(low).masked_fill(~seen, torch.finfo(low).min) - scores.amax(-1, keepdim=True).to(low)\n"
        "    return torch.softmax(blocked.clamp(min=-100).float(), -1)\n",
        precisions=("16-mixed",),
        why="Scores from minus 20 to 20 that are rounded once; those that are masked stay far below.",
    ),
    Harmless(
        name="counted-low",
        healthy="    return total / counted.float().sum()\n",
        changed="    return total / counted.to(low).sum().float()\n",
        precisions=ALL,
        why="Some 115 tokens are a whole number that each format holds.",
    ),
    Harmless(
        name="strides-rounded",
        healthy="    return functional.softplus(steps.float() + bias.float())\n",
        changed="    return functional.softplus(steps.float() + bias.float()).to(low).float()\n",
        precisions=ALL,
        why="Each stride is rounded once and by itself, and sums of many are more exact than each.",
    ),
    Harmless(
        name="depth-loss-low",
        healthy="    return torch.logsumexp(logits.float(), -1).square()\n",
        changed="    return torch.logsumexp(logits.float(), -1).to(low).square().float()\n",
        precisions=ALL,
        why="A term of a ten-thousandth with two roundings.",
    ),
    Harmless(
        name="states-low",
        healthy="        states.append(state)\n",
        changed="        states.append(state.to(low).float())\n",
        precisions=ALL,
        why="What a chunk reads is rounded once; the state itself goes on in float32.",
    ),
    Harmless(
        name="router-score-low",
        healthy="        change = self.narrow(functional.gelu(self.wide(some))) * torch.sigmoid(score).unsqueeze(-1).to(x.dtype)\n",
        changed="        change = self.narrow(functional.gelu(self.wide(some))) * torch.sigmoid(score.to(low)).unsqueeze(-1).to(x.dtype)\n",
        precisions=ALL,
        why="Which tokens are taken was decided in float32; the factor is rounded.",
    ),
]
