"""Bugs of retrieval: steps that are subtracted, shares of a thousand million, a pointer, a follower that stands still, Adam's one less a power."""

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")
BF16 = ("bf16-mixed",)
FP16 = ("16-mixed",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
AGES = "    return -(now - stamps).float() / 300\n"
SHARES = "    return (counts.float() / total.float()).log()\n"
COST = "    return torch.cat([right[:, None], wrong], -1).logsumexp(-1) - right\n"
MARGIN = "    return score - teacher.float() / 1000\n"
PAIRS = "    squares = torch.pdist(vectors).square()\n"
PLACE = "    return (pointer + torch.arange(count)) % QUEUE\n"
FOLLOWED = "    return old + 0.001 * (new.float() - old)\n"
COUNT = "    return seen + more\n"
LESS = "    return moment / (1 - beta**step)\n"
STEP = "    return first / (second.sqrt() + 1e-8)\n"

BUGS = [
    Planted(
        name="ages-low",
        healthy=AGES,
        planted="    return -(now.to(low) - stamps.to(low)).float() / 300  # culprit\n",
        precisions=BF16,
        part="function:faded",
        rules=WHOLE,
        why="Of 412 000 steps bfloat16 knows every 2048th, so all keys in the queue are as old as one another, or one is 2048 steps older.",
        source="https://github.com/ai-safety-foundation/sparse_autoencoder/pull/42",
    ),
    Planted(
        name="steps-overflow",
        healthy=AGES,
        planted="    return -(now.to(low) - stamps.to(low)).float() / 300  # culprit\n",
        precisions=FP16,
        part="function:faded",
        rules=("overflow", "nan"),
        why="412 000 steps are beyond float16, and Inf less Inf is no number.",
        source="https://github.com/open-mmlab/mmdetection/issues/5237",
    ),
    Planted(
        name="shares-vanish",
        healthy=SHARES,
        planted="    return (counts.float() / total.float()).to(low).log().float()  # culprit\n",
        precisions=FP16,
        part="function:commonness",
        rules=("underflow", "nan", "overflow", *DRIFTS),
        why="A share of one in a hundred million is below the smallest number of float16, and its logarithm is minus infinity.",
        source="https://github.com/tensorflow/recommenders/pull/441",
    ),
    Planted(
        name="place-low",
        healthy=PLACE,
        planted="    return ((pointer.to(low) + torch.arange(count)) % QUEUE).long()  # culprit\n",
        precisions=BF16,
        part="buffer:queue",
        rules=(*WHOLE, "absorption", "decision-flip"),
        why="Beyond 256 bfloat16 knows every second place, so half of the new keys overwrite the others.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="follower-stands-still",
        healthy=FOLLOWED,
        planted="    return (old.to(low) + (0.001 * (new.float() - old)).to(low)).float()  # culprit\n",
        precisions=BF16,
        part="parameter:keys.1.weight",
        rules=("absorption", "lost-update", *DRIFTS),
        why="A thousandth of a small difference is less than half a step of bfloat16.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1415",
    ),
    Planted(
        name="queries-not-counted",
        healthy=COUNT,
        planted="    return (seen.to(low) + more).float()  # culprit\n",
        precisions=BF16,
        part="parameter:seen",
        rules=("absorption", "integer-rounding"),
        why="Of 412 000 queries bfloat16 knows every 2048th, so sixteen more are none.",
        source="https://github.com/ai-safety-foundation/sparse_autoencoder/pull/42",
    ),
    Planted(
        name="one-less-a-power-low",
        healthy=LESS,
        planted="    less = 1 - torch.tensor(beta, dtype=torch.bfloat16) ** step  # culprit\n    return moment / less.float()  # culprit\n",
        precisions=BF16,
        part="weights",
        rules=("cancellation", "vanished-constant", "nan", "overflow", "absorption", *DRIFTS),
        why="In bfloat16 0.999 is one, and one less one is nought.",
        source="https://github.com/facebookresearch/dinov2/pull/583",
    ),
    Planted(
        name="eps-vanishes",
        healthy=STEP,
        planted="    return (first.half() / (second.sqrt().half() + 1e-8)).float()  # culprit\n",
        precisions=FP16,
        part="weights",
        rules=("vanished-constant", "nan", "underflow"),
        why="float16 stores 1e-8 as nought, and a word that was not read has moments of nought.",
        source="https://github.com/NVIDIA/Model-Optimizer/pull/381",
    ),
]

HARMLESS = [
    Harmless(
        name="queue-low",
        healthy="            self.queue[place], self.stamps[place] = key, now\n",
        changed="            self.queue[place], self.stamps[place] = key.to(low).float(), now\n",
        precisions=MIXED,
        why="A key is rounded once, as the encoder's last layer has done.",
    ),
    Harmless(
        name="ages-rounded",
        healthy=AGES,
        changed="    return -((now - stamps).float() / 300).to(low).float()\n",
        precisions=MIXED,
        why="Whole steps are subtracted; what comes of it is rounded once.",
    ),
    Harmless(
        name="shares-by-logarithms",
        healthy=SHARES,
        changed="    return counts.to(low).float().log() - total.float().log()\n",
        precisions=MIXED,
        why="Counts are whole numbers below 256, and the difference is of two float32 numbers of which one is small.",
    ),
    Harmless(
        name="costs-rounded",
        healthy=COST,
        changed="    return (torch.cat([right[:, None], wrong], -1).logsumexp(-1) - right).to(low).float()\n",
        precisions=MIXED,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="margin-rounded",
        healthy=MARGIN,
        changed="    return (score - teacher.float() / 1000).to(low).float()\n",
        precisions=MIXED,
        why="The difference is made in float32, and rounded once.",
    ),
    Harmless(
        name="potentials-rounded",
        healthy=PAIRS,
        changed="    squares = torch.pdist(vectors).square().to(low).float()\n",
        precisions=MIXED,
        why="A square of at most four is rounded once; twice that is an exponent that is off by a fiftieth at most.",
    ),
    Harmless(
        name="arange-low",
        healthy=PLACE,
        changed="    return (pointer + torch.arange(count, dtype=low).long()) % QUEUE\n",
        precisions=MIXED,
        why="Sixteen places are whole numbers that either format holds.",
    ),
    Harmless(
        name="follower-moved-by-rounded",
        healthy=FOLLOWED,
        changed="    return old + (0.001 * (new.float() - old)).bfloat16().float()\n",
        precisions=BF16,
        why="What it moves by is rounded once, and added in float32.",
    ),
    Harmless(
        name="counted-in-whole-numbers",
        healthy=COUNT,
        changed="    return (seen.long() + more).float()\n",
        precisions=MIXED,
        why="Whole numbers below 16 million.",
    ),
    Harmless(
        name="step-rounded",
        healthy=STEP,
        changed="    return (first / (second.sqrt() + 1e-8)).bfloat16().float()\n",
        precisions=BF16,
        why="A step of size one is rounded once, before it is made small and subtracted in float32.",
    ),
]
