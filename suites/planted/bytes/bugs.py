"""Bugs of a byte model: hashes, entropies that differ little, long sums that are read as differences, and places far from the first."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding")
ROW = "    row = torch.zeros_like(ids)\n"
HASHED = "    return row\n"
RISE = "    return F.pad(entropy[:, 1:] - entropy[:, :-1], (1, 0))\n"
PLACE = "    place = torch.arange(TIME).expand_as(patch)\n"
BEGIN = "    begin = torch.where(opened, place, 0).cummax(1).values\n    return (place - begin).float()\n"
ANGLE = "    angle = place[..., None].float() * rate\n"
RUNNING = "    running = F.pad(x.float().cumsum(1), (0, 0, 1, 0))\n"
MEAN = "    return (running.gather(1, last) - running.gather(1, first)) / count.clamp_min(1)[..., None]\n"
UNIT = "    unit = F.normalize(x.float(), dim=-1)\n"
TURNED = "    return F.pad((1 - cosine) / 2, (1, 0))\n"
KEPT = "    kept = (-chance).log1p()\n"
TOTAL = "    total = kept.cumsum(-1)\n"
LEFT = "    return left.tril().exp().tril()\n"
GAIN = "    return 8 - cost / math.log(2)\n"

BUGS = [
    Planted(
        name="hash-low",
        healthy=ROW,
        planted="    row = torch.zeros_like(ids, dtype=torch.bfloat16)  # culprit\n",
        more=(
            ("        row = (row * PRIME + padded[:, back : back + ids.shape[1]]) % TABLE\n",
             "        row = (row * PRIME + padded[:, back : back + ids.shape[1]]) % TABLE  # culprit\n"),
            (HASHED, "    return row.long()\n"),
        ),
        precisions=BF16,
        part="function:ngram_rows",
        rules=WHOLE,
        why="A thousand times 31 is rounded to the hundredth before its remainder is taken: most n-grams read other rows.",
        source="https://github.com/tenstorrent/tt-mlir/pull/8998",
    ),
    Planted(
        name="hash-half",
        healthy=ROW,
        planted="    row = torch.zeros_like(ids, dtype=torch.float16)  # culprit\n",
        more=(
            ("        row = (row * PRIME + padded[:, back : back + ids.shape[1]]) % TABLE\n",
             "        row = (row * PRIME + padded[:, back : back + ids.shape[1]]) % TABLE  # culprit\n"),
            (HASHED, "    return row.long()\n"),
        ),
        precisions=("16-mixed",),
        part="function:ngram_rows",
        rules=WHOLE,
        why="A thousand times 31 is rounded to the sixteenth in float16 before its remainder is taken.",
        source="https://github.com/tenstorrent/tt-mlir/pull/8998",
    ),
    Planted(
        name="entropies-low",
        healthy=RISE,
        planted="    entropy = entropy.bfloat16()  # culprit\n    return F.pad(entropy[:, 1:] - entropy[:, :-1], (1, 0)).float()  # culprit\n",
        precisions=BF16,
        part="function:rises",
        rules=DRIFTS,
        why="All entropies are four nats and a half but for hundredths, and bfloat16 knows a 32nd: most bytes seem as hard to guess as the last.",
        source="https://github.com/genlm/genlm-backend/pull/66",
    ),
    Planted(
        name="entropies-half",
        healthy=RISE,
        planted="    entropy = entropy.half()  # culprit\n    return F.pad(entropy[:, 1:] - entropy[:, :-1], (1, 0)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:rises",
        rules=DRIFTS,
        why="Float16 knows a 256th of four nats and a half, where rises are hundredths.",
        source="https://github.com/genlm/genlm-backend/pull/66",
    ),
    Planted(
        name="places-low",
        healthy=PLACE,
        planted="    place = torch.arange(TIME, dtype=torch.bfloat16).expand_as(patch)  # culprit\n",
        more=((BEGIN, "    begin = torch.where(opened, place, 0).cummax(1).values\n    return (place - begin).float()  # culprit\n"),),
        precisions=BF16,
        part="function:place_in_patch",
        rules=WHOLE,
        why="Places beyond 256 are rounded, and a patch has two or three bytes.",
        source="https://github.com/verl-project/verl/pull/4170",
    ),
    Planted(
        name="waves-low",
        healthy=ANGLE,
        planted="    angle = (place[..., None].bfloat16() * rate.bfloat16()).float()  # culprit\n",
        precisions=BF16,
        part="function:waves",
        rules=WHOLE,
        why="Angles of six hundred radians are rounded to four.",
        source="https://github.com/utensils/mold/issues/786",
    ),
    Planted(
        name="waves-half",
        healthy=ANGLE,
        planted="    angle = (place[..., None].half() * rate.half()).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:waves",
        rules=WHOLE,
        why="Angles of three hundred radians are rounded to a quarter of one in float16.",
        source="https://github.com/EleutherAI/gpt-neox/issues/1003",
    ),
    Planted(
        name="running-sum-low",
        healthy=RUNNING,
        planted="    running = F.pad(x.bfloat16().cumsum(1), (0, 0, 1, 0))  # culprit\n",
        more=((MEAN, "    return (running.gather(1, last) - running.gather(1, first)).float() / count.clamp_min(1)[..., None]  # culprit\n"),),
        precisions=BF16,
        part="function:pooled",
        rules=(*DRIFTS, "absorption"),
        why="Sums of ten thousand are rounded to 64, and a patch adds forty.",
        source="https://github.com/scikit-image/scikit-image/pull/5372",
    ),
    Planted(
        name="running-sum-half",
        healthy=RUNNING,
        planted="    running = F.pad(x.half().cumsum(1), (0, 0, 1, 0))  # culprit\n",
        more=((MEAN, "    return (running.gather(1, last) - running.gather(1, first)).float() / count.clamp_min(1)[..., None]  # culprit\n"),),
        precisions=("16-mixed",),
        part="function:pooled",
        rules=(*DRIFTS, "absorption"),
        why="Sums of ten thousand are rounded to eight in float16, and a patch adds forty.",
        source="https://github.com/scikit-image/scikit-image/pull/5372",
    ),
    Planted(
        name="directions-low",
        healthy=UNIT,
        planted="    unit = F.normalize(x.to(torch.bfloat16), dim=-1)  # culprit\n",
        more=((TURNED, "    return F.pad((1 - cosine) / 2, (1, 0)).float()  # culprit\n"),),
        precisions=BF16,
        part="function:changes",
        rules=DRIFTS,
        why="Cosines of 0.995 are rounded to a 256th and taken off one.",
        source="https://github.com/flashinfer-ai/flashinfer/pull/4105",
    ),
    Planted(
        name="decays-low",
        healthy=TOTAL,
        planted="    total = kept.to(LOW).cumsum(-1).float()  # culprit\n",
        more=(("STEPS = 1\n", "STEPS = 1\nLOW = torch.bfloat16\n"),),
        precisions=BF16,
        part="function:fading",
        rules=(*DRIFTS, "absorption"),
        why="Logarithms add up to minus twenty, which is rounded to an eighth, and neighbours differ by a twentieth.",
        source="https://github.com/huggingface/transformers/pull/25431",
    ),
    Planted(
        name="costs-low",
        healthy=GAIN,
        planted="    cost = cost.bfloat16()  # culprit\n    return (8 - cost / math.log(2)).float()  # culprit\n",
        precisions=BF16,
        part="function:gained",
        rules=DRIFTS,
        why="An untrained model saves a fifth of a bit of eight, and costs are rounded to a 32nd of a nat.",
        source="https://github.com/erfanzar/EasyDeL/pull/267",
    ),
]

HARMLESS = [
    Harmless(
        name="rises-rounded",
        healthy=RISE,
        changed="    return F.pad(entropy[:, 1:] - entropy[:, :-1], (1, 0)).bfloat16().float()\n",
        precisions=BF16,
        why="A difference is rounded after it has been taken, and only its sign is asked for.",
    ),
    Harmless(
        name="places-of-patches-low",
        healthy="    return (place - begin).float()\n",
        changed="    return (place - begin).bfloat16().float()\n",
        precisions=BF16,
        why="No patch has 256 bytes, so bfloat16 has each place in one.",
    ),
    Harmless(
        name="waves-rounded",
        healthy="    return torch.cat([angle.sin(), angle.cos()], -1)\n",
        changed="    return torch.cat([angle.sin(), angle.cos()], -1).half().float()\n",
        precisions=("16-mixed",),
        why="Sines are rounded once.",
    ),
    Harmless(
        name="chances-rounded",
        healthy=KEPT,
        changed="    kept = (-chance).log1p().bfloat16().float()\n",
        precisions=BF16,
        why="Each logarithm is rounded once, and their sum is float32.",
    ),
    Harmless(
        name="left-rounded",
        healthy=LEFT,
        changed="    return left.tril().exp().tril().bfloat16().float()\n",
        precisions=BF16,
        why="What is left is rounded, and not the sums that it comes of.",
    ),
]
