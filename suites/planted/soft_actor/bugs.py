"""Bugs of a soft actor-critic: places in a replay, squares of large states, potentials, a discount near one, and targets that stand still."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed",)
HALF = ("16-mixed",)
MIXED = ("bf16-mixed", "16-mixed")
LOOP = ("watch",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", "absorption", *DRIFTS)
INFINITE = ("overflow", "nan")
PLACE = "    place = start[:, None] + torch.arange(4)\n    return table[place]\n"
SPREAD = "    return (rows - rows.mean(0)).square().mean(0)\n"
SHAPED = "    return reward + 0.02 * (here - DISCOUNT * there).float()\n"
POWERS = "    powers = DISCOUNT ** torch.arange(reward.shape[1])\n"
CENTRED = "    centred = value - value.mean()\n"
SQUASHED = "    change = 2 * (math.log(2) - raw - F.softplus(-2 * raw))\n"
CHANCE = "    chance = priority / priority.sum()\n    weight = (CAPACITY * chance) ** -beta\n"
HEAD = (
    "        with torch.autocast(hidden.device.type, enabled=False):\n            return self.head(hidden.to(self.head.weight.dtype)).squeeze(-1)\n"
)
ALPHA = "        self.log_alpha = nn.Parameter(torch.tensor(-1.61))\n"
TARGETS = "        self.targets = copy.deepcopy(self.critics).requires_grad_(False)\n"
LERP = "            slow.lerp_(fast, TAU)\n"
LENGTH = "    length = torch.stack([(each.float() / scale).square().sum() for each in gradients]).sum().sqrt()\n"
STEP = "    scaler.step(optimizer)\n"

BUGS = [
    Planted(
        name="places-half",
        healthy=PLACE,
        planted="    place = start.half()[:, None] + torch.arange(4)  # culprit\n    return table[place.long()]\n",
        precisions=HALF,
        part="function:window",
        rules=WHOLE,
        why="Beyond 32768 float16 has every 32nd number, so a window is of other rows.",
        source="https://github.com/NVIDIA/cccl/issues/10976",
        through=LOOP,
    ),
    Planted(
        name="spread-by-squares-low",
        healthy=SPREAD,
        planted="    second = rows.square().mean(0).bfloat16()  # culprit\n    return (second - rows.mean(0).square()).clamp_min(0).float()\n",
        precisions=BF16,
        part="function:spread",
        rules=DRIFTS,
        why="States are in the thousands, and their spread is in the tens.",
        source="https://github.com/huggingface/lerobot/pull/4704",
        through=LOOP,
    ),
    Planted(
        name="potential-low",
        healthy=SHAPED,
        planted="    here, there = here.bfloat16(), there.bfloat16()  # culprit\n"
        "    return reward + 0.02 * (here.float() - DISCOUNT * there.float())\n",
        precisions=BF16,
        part="function:shaped",
        rules=WHOLE,
        why="A way of three metres is known to sixteen millimetres, and a step is twenty.",
        source="https://github.com/CMBSciPol/furax/pull/145",
        through=LOOP,
    ),
    Planted(
        name="discount-low",
        healthy=POWERS,
        planted="    discount = torch.tensor(DISCOUNT, dtype=torch.bfloat16)  # culprit\n"
        "    powers = discount.float() ** torch.arange(reward.shape[1])\n",
        precisions=BF16,
        part="function:returns",
        rules=(*DRIFTS, "vanished-constant"),
        why="0.999 is one in bfloat16.",
        source="https://github.com/SlopDotCash/asi/pull/388",
        through=LOOP,
    ),
    Planted(
        name="returns-low",
        healthy=CENTRED,
        planted="    value = value.bfloat16()  # culprit\n    centred = value.float() - value.float().mean()\n",
        precisions=BF16,
        part="function:normalised",
        rules=DRIFTS,
        why="Returns of eighty are rounded to halves, and differ by four.",
        source="https://github.com/volcengine/verl/issues/721",
        through=LOOP,
    ),
    Planted(
        name="density-of-tanh",
        healthy=SQUASHED,
        planted="    action = torch.tanh(raw.to(mean.dtype))  # culprit\n    change = torch.log(1 - action * action + NEAR).float()  # culprit\n",
        precisions=MIXED,
        part="function:squashed.1",
        rules=(*DRIFTS, "vanished-constant", "underflow", *INFINITE),
        why="The hyperbolic tangent of three is nearly one, and what is left of one is a hundredth.",
        source="https://github.com/fastino-ai/GLiNER2/pull/155",
        through=LOOP,
    ),
    Planted(
        name="chances-half",
        healthy=CHANCE,
        planted="    chance = (priority / priority.sum()).half()  # culprit\n    weight = (CAPACITY * chance.float()) ** -beta\n",
        precisions=HALF,
        part="function:importance",
        rules=("underflow", *DRIFTS, *INFINITE),
        why="A row that is seldom drawn has a chance of half a millionth, of which float16 keeps three bits.",
        source="https://github.com/tensorflow/recommenders/pull/441",
        through=LOOP,
    ),
    Planted(
        name="head-under-autocast",
        healthy=HEAD,
        planted="        return self.head(hidden).squeeze(-1).float()  # culprit\n",
        precisions=BF16,
        part="function:conservative",
        rules=DRIFTS,
        why="Values are near forty, and those of other actions differ by hundredths.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
        through=LOOP,
    ),
    Planted(
        name="temperature-stands-still",
        healthy=ALPHA,
        planted="        self.log_alpha = nn.Parameter(torch.tensor(-1.61, dtype=torch.bfloat16))  # culprit\n",
        more=((STEP, STEP.rstrip() + "  # culprit\n"),),
        precisions=BF16,
        part="parameter:log_alpha",
        rules=("lost-update", "absorption"),
        why="A step of 0.0003 is a twentieth of bfloat16's last digit there.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1417",
        through=LOOP,
    ),
    Planted(
        name="targets-stand-still",
        healthy=TARGETS,
        planted="        self.targets = copy.deepcopy(self.critics).requires_grad_(False).bfloat16()  # culprit\n",
        more=((LERP, "            slow.lerp_(fast.to(slow.dtype), TAU)  # culprit\n"),),
        precisions=BF16,
        part="parameter:targets.0.body.0.weight",
        rules=("lost-update", "absorption", *DRIFTS),
        why="A two-hundredth of what a step has moved is less than bfloat16 holds.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1415",
        through=LOOP,
    ),
    Planted(
        name="length-half",
        healthy=LENGTH,
        planted="    length = torch.stack([each.half().square().sum() for each in gradients]).sum().sqrt().float() / scale  # culprit\n",
        precisions=HALF,
        part="function:clipped",
        rules=("underflow", *DRIFTS, *INFINITE),
        why="With the loss scale on, squares of gradients are beyond float16, and all are cut to nothing.",
        source="https://github.com/facebookresearch/fairscale/pull/263",
        through=LOOP,
    ),
]

HARMLESS = [
    Harmless(
        name="returns-half",
        healthy=CENTRED,
        changed="    centred = (value - value.mean()).half().float()\n",
        precisions=MIXED,
        why="A return is rounded after the mean has been taken off, to a part in two thousand.",
    ),
    Harmless(
        name="actions-half",
        healthy='            taken = critic(state, inputs["action"].float() / 64)\n',
        changed='            taken = critic(state, inputs["action"].half() / 64)\n',
        precisions=MIXED,
        why="Actions are 64ths, which float16 holds.",
    ),
    Harmless(
        name="weights-rounded",
        healthy="    return weight / weight.max()\n",
        changed="    return (weight / weight.max()).half().float()\n",
        precisions=HALF,
        why="A weight of a row is off by a part in two thousand.",
    ),
]
