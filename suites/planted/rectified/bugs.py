"""Bugs of a picture model's training: times near one, an average that stands still, a decay of one, and a norm of scaled gradients."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed",)
HALF = ("16-mixed",)
LOOP = ("watch",)
INFINITE = ("overflow", "nan")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", "absorption", *DRIFTS)
ANGLES = "    angles = 1000 * time.float()[:, None] * frequencies\n"
WEIGHT = "    return (1 / (1 - time).square()).clamp_max(1e7).sqrt()\n"
MOVED = "    return torch.maximum(9 / (10 + done.float()), torch.tensor(1 - DECAY, dtype=torch.float32))\n"
DOWN = "    share = done.float() / TOTAL\n    down = 5 * (1 - share.sqrt())\n"
NORM = "    return torch.stack([each.float().square().sum() for each in gradients]).sum().sqrt()\n"
LERP = "        torch._foreach_lerp_(list(model.average.parameters()), trained, moved_by(model.done).item())\n"
UNSCALE = "    scaler.unscale_(optimizer)\n"
SHARE = "    share = (0.1 / (gradient_norm([each.grad for each in trained]) + 1e-6)).clamp_max(1)\n"
MUL = "    torch._foreach_mul_([each.grad for each in trained], share)\n"
EULER = "        picture = picture + (after - time) * velocity\n    return picture\n"
EMBEDDED = "    return torch.cat((angles.cos(), angles.sin()), -1)\n"

BUGS = [
    Planted(
        name="times-low",
        healthy=ANGLES,
        planted="    angles = (1000 * time.bfloat16()[:, None]).float() * frequencies  # culprit\n",
        precisions=BF16,
        part="function:timestep_embedding",
        rules=(*DRIFTS, "integer-rounding"),
        why="Times near one thousand are known to four thousandths, and are turned by a radian each.",
        source="https://github.com/modelscope/DiffSynth-Studio/pull/1025",
        through=LOOP,
    ),
    Planted(
        name="weights-low",
        healthy=WEIGHT,
        planted="    time = time.bfloat16()  # culprit\n    return (1 / (1 - time).square()).clamp_max(1e7).sqrt().float()  # culprit\n",
        precisions=BF16,
        part="function:loss_weight",
        rules=(*DRIFTS, "overflow"),
        why="A time of 0.999 is one in bfloat16.",
        source="https://github.com/NVlabs/Sana/pull/424",
        through=LOOP,
    ),
    Planted(
        name="rate-low",
        healthy=DOWN,
        planted="    share = done.bfloat16() / TOTAL  # culprit\n    down = (5 * (1 - share.sqrt())).float()  # culprit\n",
        precisions=BF16,
        part="function:learning_rate",
        rules=WHOLE,
        why="Near the end of training the root of the share is one.",
        source="https://github.com/tensorflow/tensorflow/issues/38357",
        through=LOOP,
    ),
    Planted(
        name="clipped-with-the-scale-on",
        healthy=UNSCALE + SHARE + MUL,
        planted=SHARE.rstrip() + "  # culprit\n" + MUL.rstrip() + "  # culprit\n",
        precisions=HALF,
        part="weights",
        rules=("scaler-order",),
        why="Gradients are 65536 times as long, so all of them are cut to nothing.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/9599",
        through=LOOP,
    ),
    Planted(
        name="average-stands-still",
        healthy=LERP,
        planted="        low = [each.bfloat16() for each in trained]\n"
        "        torch._foreach_lerp_(list(model.average.parameters()), low, moved_by(model.done).item())  # culprit\n",
        more=(
            (
                "        self.register_buffer(\"seen\"",
                "        self.average.bfloat16()\n        self.register_buffer(\"seen\"",
            ),
            (
                "sampled(model.average, dict(model.average.named_parameters()), ",
                "sampled(model.average, {name: each.float() for name, each in model.average.named_parameters()}, ",
            ),
        ),
        precisions=BF16,
        part="parameter:average.blocks.0.qkv.weight",
        rules=("absorption", "lost-update", *DRIFTS),
        why="A two-thousandth of what a weight has moved is less than bfloat16's step.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1415",
        through=LOOP,
    ),
    Planted(
        name="weights-half",
        healthy=WEIGHT,
        planted="    time = time.half()  # culprit\n    return (1 / (1 - time).square()).float().clamp_max(1e7).sqrt()  # culprit\n",
        precisions=HALF,
        part="function:loss_weight",
        rules=(*DRIFTS, *INFINITE),
        why="A time of 0.999 is known to half a thousandth, and the inverse square of a thousandth is infinite.",
        source="https://github.com/huggingface/diffusers/issues/9405",
        through=LOOP,
    ),
    Planted(
        name="decay-low",
        healthy=MOVED,
        planted="    decay = torch.minimum((1 + done.float()) / (10 + done.float()), torch.tensor(DECAY)).bfloat16()  # culprit\n"
        "    return 1 - decay.float()\n",
        precisions=BF16,
        part="function:moved_by",
        rules=DRIFTS,
        why="A decay of 0.9998 is one in bfloat16, and the average takes nothing.",
        source="https://github.com/huggingface/diffusers/pull/813",
        through=LOOP,
    ),
]

HARMLESS = [
    Harmless(
        name="embedding-rounded",
        healthy=EMBEDDED,
        changed="    return torch.cat((angles.cos(), angles.sin()), -1).bfloat16().float()\n",
        precisions=BF16,
        why="Sines are rounded, not angles.",
    ),
    Harmless(
        name="weights-rounded",
        healthy=WEIGHT,
        changed="    return (1 / (1 - time).square()).clamp_max(1e7).sqrt().bfloat16().float()\n",
        precisions=BF16,
        why="What is rounded is the weight.",
    ),
    Harmless(
        name="norm-of-double",
        healthy=NORM,
        changed="    return torch.stack([each.double().square().sum() for each in gradients]).sum().sqrt().float()\n",
        precisions=("bf16-mixed", "16-mixed"),
        why="Wider than it need be.",
    ),
    Harmless(
        name="pictures-rounded",
        healthy=EULER,
        changed="        picture = picture + (after - time) * velocity\n    return picture.half().float()\n",
        precisions=HALF,
        why="A finished picture is rounded once.",
    ),
]
