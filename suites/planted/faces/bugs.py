"""Bugs of margins in angles: sines near nought, averages that stand still, counts, squared differences of near embeddings."""

from __future__ import annotations

from planted_bug import Harmless, Planted

MIXED = ("bf16-mixed", "16-mixed")
LOW = "torch.get_autocast_dtype('cpu')"

BUGS = [
    Planted(
        name="centres-stand-still",
        healthy="        new[c] = keep * centres[c] + (1 - keep) * emb[label == c].mean(0)\n",
        planted=f"        old, to = centres[c].to({LOW}), emb[label == c].mean(0).to({LOW})  # culprit\n"
        "        new[c] = (old + (1 - keep) * (to - old)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:turned",
        rules=("absorption", "lost-update", "accumulated-drift", "local-drift"),
        why="A five-hundredth of a difference is less than half of what bfloat16 moves by.",
        source="https://github.com/NVIDIA/Model-Optimizer/pull/738",
    ),
    Planted(
        name="turned-by-cosines",
        healthy="    chord = (F.normalize(old, dim=-1) - F.normalize(new, dim=-1)).norm(dim=-1)\n"
        "    return torch.rad2deg(2 * torch.asin(chord / 2))\n",
        planted=f"    cos = (F.normalize(old, dim=-1) * F.normalize(new, dim=-1)).sum(-1).to({LOW})  # culprit\n"
        "    return torch.rad2deg(torch.acos(cos.float().clamp(-1, 1)))  # culprit\n",
        precisions=MIXED,
        part="function:turned",
        rules=("cancellation", "amplified-rounding", "local-drift", "accumulated-drift"),
        why="The cosine of a tenth of a degree is one in either format.",
        source="https://github.com/esheldon/smatch/pull/21",
    ),
    Planted(
        name="angles-between-alike-low",
        healthy="    return F.normalize(a.float(), dim=-1) @ F.normalize(b.float(), dim=-1).T\n",
        planted=f"    a, b = F.normalize(a.float(), dim=-1).to({LOW}), F.normalize(b.float(), dim=-1).to({LOW})\n"
        "    return 1 - 0.5 * ((20 + a)[:, None] - (20 + b)).float().square().sum(-1)  # culprit\n",
        precisions=MIXED,
        part="function:cosines",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="Numbers near twenty are known to an eighth or a 64th, and directions differ by a fifth in each.",
        source="https://github.com/NVIDIA/cuvs/issues/991",
    ),
    Planted(
        name="rare-classes-low",
        healthy="    effective = (1 - torch.exp(-0.2 / share.clamp(min=1e-6) / 50)).clamp(min=1e-6)\n",
        planted=f"    effective = (1 - torch.exp(-0.2 / share.clamp(min=1e-6) / 50).to({LOW})).float().clamp(min=1e-6)  # culprit\n",
        precisions=MIXED,
        part="function:class_weights",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="One less 0.95 is known to a twelfth in bfloat16, and weights of classes differ by tenths.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
    ),
]

HARMLESS = [
    Harmless(
        name="proxies-rounded",
        healthy="            cos = cosines(emb, self.proxies)\n",
        changed=f"            cos = cosines(emb, self.proxies.to({LOW}))\n",
        precisions=MIXED,
        why="A weight is rounded once, as autocast rounds it for a product.",
    ),
    Harmless(
        name="queue-low",
        healthy="            far = F.relu(cosines(emb, self.queue) - 0.2).square().mean()\n",
        changed=f"            far = F.relu(cosines(emb, self.queue.to({LOW})) - 0.2).square().mean()\n",
        precisions=MIXED,
        why="Each stored direction is rounded once.",
    ),
    Harmless(
        name="counts-half",
        healthy="    return seen + torch.bincount(label, minlength=CLASSES)\n",
        changed="    return (seen.half() + torch.bincount(label, minlength=CLASSES).half()).long()\n",
        precisions=MIXED,
        why="Whole numbers up to 650 are exact in float16.",
    ),
    Harmless(
        name="mean-of-faces-rounded",
        healthy="        new[c] = keep * centres[c] + (1 - keep) * emb[label == c].mean(0)\n",
        changed=f"        new[c] = keep * centres[c] + (1 - keep) * emb[label == c].mean(0).to({LOW}).float()\n",
        precisions=MIXED,
        why="What is rounded counts by a five-hundredth.",
    ),
    Harmless(
        name="margin-by-the-angle",
        healthy="    moved = right * math.cos(MARGIN) - sine * math.sin(MARGIN)\n",
        changed="    moved = torch.cos(torch.acos(right) + MARGIN)\n",
        precisions=MIXED,
        why="The same function in float32.",
    ),
    Harmless(
        name="logits-rounded",
        healthy="    logp = F.log_softmax(logits.float(), -1).gather(1, label[:, None]).squeeze(1)\n",
        changed="    logp = F.log_softmax(logits.half().float(), -1).gather(1, label[:, None]).squeeze(1)\n",
        precisions=("bf16-mixed",),
        why="A finer rounding than that of the layers before it, of logits up to 24.",
    ),
    Harmless(
        name="weights-rounded",
        healthy="    return effective / effective.sum() * CLASSES\n",
        changed=f"    return (effective / effective.sum() * CLASSES).to({LOW}).float()\n",
        precisions=MIXED,
        why="Weights of classes are rounded once.",
    ),
    Harmless(
        name="shares-of-rounded-counts",
        healthy="    share = seen.float() / seen.sum()\n",
        changed="    share = seen.half().float() / seen.sum()\n",
        precisions=MIXED,
        why="Counts up to 650 are exact in float16.",
    ),
    Harmless(
        name="angle-for-a-log",
        healthy='        self.log("train/angle", own.mean())\n',
        changed='        self.log("train/angle", own.to(torch.bfloat16).mean())\n',
        precisions=("bf16-mixed",),
        why="A mean of angles, each rounded once, for a log.",
    ),
]
