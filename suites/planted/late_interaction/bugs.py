"""Bugs of late interaction: margins of large scores, numbers of packed words, odds of frequent words, a temperature of a fiftieth."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding", "decision-flip")
STARTS = "    return F.pad(lengths.cumsum(0), (1, 0))[:-1]\n"
UNIT = "    x = x.float()\n    return x / (x.square().sum(-1, keepdim=True) + 1e-8).sqrt()\n"
MARGINS = "    return scores[:, :1] - scores[:, 1:]\n"
TEACHER = "    return (thousandths[:, :1] - thousandths[:, 1:]).float() / 1000\n"
CONTRAST = "    return (scores / TEMPERATURE).log_softmax(-1)[torch.arange(QUERIES), right]\n"
FALSE = "    return scores.masked_fill(~allowed, -1e4)\n"
RARITY = "    return ((CORPUS - holding).double() / holding.double()).log().float()\n"
RECENT = "    return 0.5 ** ((today - days).float() / 30)\n"
CHANCES = "    own, other = (student / 4).log_softmax(-1), (teacher / 4).log_softmax(-1)\n    return (other.exp() * (other - own)).sum(-1)\n"
STEPS = "    steps = ((left / 0.1).floor() + 8).clamp(0, 15).long()\n"
ANGLES = "    angles = places.float()[:, None] * rates\n"

BUGS = [
    Planted(
        name="starts-low",
        healthy=STARTS,
        planted="    return F.pad(lengths.to(torch.bfloat16).cumsum(0), (1, 0))[:-1].long()  # culprit\n",
        precisions=("bf16-true",),
        part="function:waves",
        rules=(*WHOLE, "absorption"),
        why="Words are numbered to 780, of which bfloat16 has every fourth.",
        source="https://github.com/huggingface/transformers/issues/28685",
    ),
    Planted(
        name="places-low",
        healthy=ANGLES,
        planted="    angles = (places.to(low)[:, None] * rates.to(low)).float()  # culprit\n",
        precisions=BF16,
        part="function:waves",
        rules=WHOLE,
        why="Of place 289 bfloat16 knows every second, and the fastest wave turns every six.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="guard-vanishes",
        healthy=UNIT,
        planted="    return (x.to(low) / (x.to(low).square().sum(-1, keepdim=True) + 1e-8).sqrt()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:unit",
        rules=("vanished-constant", "nan", "overflow", "underflow"),
        why="Padding has a length of nought, and so has the guard in float16.",
        source="https://github.com/lightonai/pylate/issues/239",
    ),
    Planted(
        name="teacher-low",
        healthy=TEACHER,
        planted="    scores = (thousandths.float() / 1000).to(low)  # culprit\n    return (scores[:, :1] - scores[:, 1:]).float()  # culprit\n",
        precisions=ALL,
        part="function:teacher_margins",
        rules=DRIFTS,
        why="A teacher's scores of 11.2 are known to a 16th or a 128th, and differ by a fifth.",
        source="https://github.com/amazon-science/chronos-forecasting/issues/193",
    ),
    Planted(
        name="thousandths-low",
        healthy=TEACHER,
        planted="    return (thousandths[:, :1].to(low) - thousandths[:, 1:].to(low)).float() / 1000  # culprit\n",
        precisions=BF16,
        part="function:teacher_margins",
        rules=WHOLE,
        why="Whole thousandths of 11200 are known to 64.",
        source="https://github.com/google/objax/issues/182",
    ),
    Planted(
        name="mask-of-large-number",
        healthy=FALSE,
        planted="    return (scores.to(low) - 1e9 * (~allowed).to(low)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:without_false",
        rules=("overflow", "nan"),
        why="A billion is infinite in float16, and infinity times nought is no number.",
        source="https://github.com/huggingface/transformers/pull/17306",
    ),
    Planted(
        name="divergence-low",
        healthy="    return (other.exp() * (other - own)).sum(-1)\n",
        planted="    own, other = own.to(low), other.to(low)  # culprit\n    return (other.exp() * (other - own)).sum(-1).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:divergence",
        rules=DRIFTS,
        why="Both are 1.4, known to a 128th, and their difference is a twentieth of which the mean is nearly nought.",
        source="https://github.com/OpenRLHF/OpenRLHF/issues/525",
    ),
    Planted(
        name="odds-low",
        healthy=RARITY,
        planted="    share = (holding.double() / CORPUS).to(low)\n"
        "    return ((1 - share).clamp_min(1e-4) / share.clamp_min(1e-4)).log().float()  # culprit\n",
        precisions=BF16,
        part="function:rarity",
        rules=DRIFTS,
        why="Nearly all passages hold the word, and one less 0.997 is nought or a 256th.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
    Planted(
        name="corpus-overflows",
        healthy=RARITY,
        planted="    return ((CORPUS - holding).to(low) / holding.to(low)).log().float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:rarity",
        rules=("overflow", "nan"),
        why="Eight million passages are beyond float16, and infinity over infinity is no number.",
        source="https://github.com/business-science/pytimetk/issues/274",
    ),
    Planted(
        name="numbers-low",
        healthy="    return words.float() - table[numbers].float()\n",
        planted="    return words.float() - table[numbers.to(torch.bfloat16).long().clamp_max(CENTROIDS - 1)].float()  # culprit\n",
        precisions=BF16,
        part="function:residuals",
        rules=WHOLE,
        why="Of three thousand centroids bfloat16 has every 16th.",
        source="https://github.com/keras-team/keras/issues/10531",
    ),
    Planted(
        name="days-low",
        healthy=RECENT,
        planted="    return 0.5 ** ((today.to(low) - days.to(low)).float() / 30)  # culprit\n",
        precisions=ALL,
        part="function:recency",
        rules=WHOLE,
        why="Of 20300 days bfloat16 knows every 128th and float16 every 16th.",
        source="https://github.com/NVIDIA-Merlin/Merlin/issues/942",
    ),
]

HARMLESS = [
    Harmless(
        name="unit-rounded",
        healthy=UNIT,
        changed="    x = x.float()\n    return (x / (x.square().sum(-1, keepdim=True) + 1e-8).sqrt()).to(low)\n",
        precisions=ALL,
        why="A unit vector is rounded once.",
    ),
    Harmless(
        name="margins-rounded",
        healthy=MARGINS,
        changed="    return (scores[:, :1] - scores[:, 1:]).to(low)\n",
        precisions=ALL,
        why="The difference is made in float32.",
    ),
    Harmless(
        name="teacher-rounded",
        healthy=TEACHER,
        changed="    return (thousandths[:, :1] - thousandths[:, 1:]).to(low).float() / 1000\n",
        precisions=ALL,
        why="Whole numbers are subtracted before they are rounded, and a thousandth is taken afterwards.",
    ),
    Harmless(
        name="temperature-after-the-largest",
        healthy=CONTRAST,
        changed="    gaps = scores - scores.max(-1, keepdim=True).values.detach()\n"
        "    return (gaps.to(low).float() / TEMPERATURE).log_softmax(-1)[torch.arange(QUERIES), right]\n",
        precisions=("16-mixed",),
        why="The largest score is taken off first, so those that count are near nought.",
    ),
    Harmless(
        name="mask-of-ten-thousand",
        healthy=FALSE,
        changed="    return scores + (-1e4 * (~allowed).to(low)).float()\n",
        precisions=MIXED,
        why="Ten thousand is a number of float16, and is nothing after a softmax in bfloat16 too.",
    ),
    Harmless(
        name="odds-rounded",
        healthy=RARITY,
        changed="    return ((CORPUS - holding).double() / holding.double()).log().to(low).float()\n",
        precisions=ALL,
        why="The logarithm is rounded once.",
    ),
    Harmless(
        name="odds-by-logarithms",
        healthy=RARITY,
        changed="    return ((CORPUS - holding).float().log() - holding.float().log()).to(low)\n",
        precisions=BF16,
        why="Logarithms are made and subtracted in float32.",
    ),
    Harmless(
        name="codes-low",
        healthy=STEPS,
        changed="    steps = ((left / 0.1).floor() + 8).clamp(0, 15).to(low).long()\n",
        precisions=ALL,
        why="Steps are whole numbers up to 15.",
    ),
    Harmless(
        name="days-modulo",
        healthy=RECENT,
        changed="    return 0.5 ** ((today - days).to(low) / 30).float()\n",
        precisions=("16-mixed",),
        why="Ages of sixty days are exact; what is rounded of an exponent of two is one rounding of the bonus.",
    ),
]
