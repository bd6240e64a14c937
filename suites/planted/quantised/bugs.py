"""Bugs of quantising: differences from coarse weights, sums over batches, words that hold four numbers, and logarithms that are nearly equal."""

from planted_bug import Harmless, Planted

BF16 = ("bf16-mixed", "bf16-true")
MIXED = ("bf16-mixed", "16-mixed")
HALF = ("16-mixed",)
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = ("integer-rounding", "decision-flip", "absorption", *DRIFTS)
INFINITE = ("overflow", "nan")
REST = "    return weight.float() - coarse.float()\n"
NOISE = "    return 10 * torch.log10(weight.float().square().mean(1) / rest.square().mean(1))\n"
TOTAL = "        self.total, self.seen = torch.zeros(width, width), 0\n"
ADD = (
    "        with torch.autocast(rows.device.type, enabled=False):\n            rows = rows.flatten(0, -2).float()\n"
    "            self.total += rows.T @ rows\n"
)
WORD = "    words = ((level.long() + 128).unflatten(-1, (-1, 4)) << shifts).sum(-1)\n"
TURNED = "    turned, half = hidden.float(), 1\n"
END = "    return turned / math.sqrt(size)\n"
PAIRS = "        turned = torch.stack((pairs.select(-2, 0) + pairs.select(-2, 1), pairs.select(-2, 0) - pairs.select(-2, 1)), -2).flatten(-3)\n"
EXPONENT = "    return torch.exp2(largest.log2().floor())\n"
NEAREST = "    return codes[(weight.float().flatten()[:, None] - codes).abs().argmin(1)]\n"
LOGS = "    before, after = before.float().log_softmax(-1), after.float().log_softmax(-1)\n"
STATE = "    state = largest[0]\n    for each in largest[1:]:\n        state = state + 0.01 * (each - state)\n    return state\n"
LEVELS = "    return (weight.unflatten(-1, (-1, GROUP)) / scale).round()\n"
LARGEST = "    largest = weight.float().unflatten(-1, (-1, GROUP)).abs().amax(-1)\n"

BUGS = [
    Planted(
        name="left-over-low",
        healthy=REST,
        planted="    return (weight.bfloat16() - coarse.bfloat16()).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:left_over",
        rules=DRIFTS,
        why="What six bits take away is a fiftieth of a weight, of which bfloat16 knows a tenth.",
        source="https://github.com/intel/auto-round/pull/1665",
    ),
    Planted(
        name="noise-half",
        healthy=NOISE,
        planted="    small = rest.half()\n    noise = (small * small).float()  # culprit\n"
        "    return 10 * torch.log10(weight.float().square().mean(1) / noise.mean(1))\n",
        precisions=HALF,
        part="function:ratio_of_noise",
        rules=("underflow", *DRIFTS, *INFINITE),
        why="The square of what is left over is less than float16 holds.",
        source="https://github.com/google-deepmind/jax_privacy/pull/309",
    ),
    Planted(
        name="curvature-low",
        healthy=TOTAL,
        planted="        self.total, self.seen = None, 0\n",
        more=(
            (
                ADD,
                "        rows = rows.flatten(0, -2)\n        part = rows.T @ rows  # culprit\n"
                "        self.total = part if self.total is None else self.total + part  # culprit\n",
            ),
            ("        mean = self.total / self.seen\n", "        mean = self.total.float() / self.seen\n"),
        ),
        precisions=MIXED,
        part="function:importance",
        rules=(*WHOLE,),
        why="Autocast multiplies low, and the sum of forty batches is as low; what columns share is nearly all of it.",
        source="https://github.com/vllm-project/llm-compressor/pull/847",
    ),
    Planted(
        name="curvature-stored-low",
        healthy=TOTAL,
        planted="        self.total, self.seen = torch.zeros(width, width, dtype=torch.bfloat16), 0  # culprit\n",
        more=(
            ("            self.total += rows.T @ rows\n", "            self.total += rows.T @ rows  # culprit\n"),
            ("        mean = self.total / self.seen\n", "        mean = self.total.float() / self.seen\n"),
        ),
        precisions=BF16,
        part="function:importance",
        rules=(*WHOLE,),
        why="Forty batches are added up in bfloat16.",
        source="https://github.com/chrishayuk/larql/pull/339",
    ),
    Planted(
        name="words-low",
        healthy=WORD,
        planted="    words = ((level + 128).unflatten(-1, (-1, 4)) * torch.exp2(shifts)).to(torch.bfloat16).sum(-1).long()  # culprit\n",
        precisions=("bf16-true",),
        part="function:stored",
        rules=(*WHOLE, "overflow"),
        why="Of a word of 32 bits bfloat16 keeps the first eight: one of four levels.",
        source="https://github.com/intel/auto-round/pull/2273",
    ),
    Planted(
        name="rotated-half",
        healthy=TURNED,
        planted="    turned, half = hidden.half(), 1\n",
        more=((PAIRS, PAIRS.rstrip() + "  # culprit\n"), (END, "    return (turned / math.sqrt(size)).float()\n")),
        precisions=HALF,
        part="function:rotated",
        rules=INFINITE,
        why="Activations that are not negative add up to more than float16 holds, before they are divided.",
        source="https://github.com/huggingface/transformers/pull/11855",
    ),
    Planted(
        name="exponents-low",
        healthy=EXPONENT,
        planted="    return torch.exp2(largest.log2().to(torch.bfloat16).floor()).float()  # culprit\n",
        precisions=BF16,
        part="function:shared_exponents",
        rules=(*WHOLE,),
        why="A logarithm just below a whole number is rounded to it, and the group's exponent is one too high.",
        source="https://github.com/PTO-ISA/SuperNPUBench/pull/49",
    ),
    Planted(
        name="nearest-by-product",
        healthy=NEAREST,
        planted="    flat = weight.float().flatten()\n"
        "    apart = flat.square()[:, None] - 2 * flat[:, None] @ codes[None] + codes.square()  # culprit\n"
        "    return codes[apart.argmin(1)]\n",
        precisions=("bf16-mixed",),
        part="function:coded",
        rules=WHOLE,
        why="Autocast computes the product low, and neighbours in the codebook differ by less.",
        source="https://github.com/elixir-nx/scholar/pull/354",
    ),
    Planted(
        name="logarithms-low",
        healthy=LOGS,
        planted="    before, after = before.float().log_softmax(-1).bfloat16(), after.float().log_softmax(-1).bfloat16()  # culprit\n"
        "    before, after = before.float(), after.float()\n",
        precisions=BF16,
        part="function:divergence",
        rules=DRIFTS,
        why="Logarithms of four are known to a 64th, and quantising moves them by as much.",
        source="https://github.com/ikawrakow/ik_llama.cpp/pull/325",
    ),
    Planted(
        name="observed-low",
        healthy=STATE,
        planted="    state = largest[0].bfloat16()\n    for each in largest[1:]:\n"
        "        state = state + (0.01 * (each - state)).bfloat16()  # culprit\n"
        "    return state.float()\n",
        precisions=BF16,
        part="function:observed",
        rules=(*WHOLE, "lost-update"),
        why="A hundredth of the difference is less than half of the last digit.",
        source="https://github.com/d8ahazard/sd_dreambooth_extension/pull/1415",
    ),
]

HARMLESS = [
    Harmless(
        name="levels-stored-low",
        healthy=LEVELS,
        changed="    return (weight.unflatten(-1, (-1, GROUP)) / scale).round().bfloat16().float()\n",
        precisions=BF16,
        why="bfloat16 holds every whole number up to 256.",
    ),
    Harmless(
        name="largest-rounded",
        healthy=STATE,
        changed="    state = largest[0].half().float()\n    for each in largest[1:]:\n"
        "        state = state + 0.01 * (each.half().float() - state)\n    return state\n",
        precisions=HALF,
        why="What is read is rounded, and the state is not.",
    ),
    Harmless(
        name="rotated-low",
        healthy=END,
        changed="    return (turned / math.sqrt(size)).bfloat16().float()\n",
        precisions=("bf16-mixed",),
        why="Activations are low in the model as well.",
    ),
]
