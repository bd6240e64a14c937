"""Bugs of a memory: digits of rounded places, weights that underflow when they are raised to a power, a memory that does not feel what is written."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="digits-low",
        healthy="    return ((places.unsqueeze(-1) // 2 ** torch.arange(DIGITS)) % 2).float()\n",
        planted="    return ((places.to(low).unsqueeze(-1) // 2 ** torch.arange(DIGITS)) % 2).float()  # culprit\n",
        precisions=ALL,
        part="function:digits",
        rules=("integer-rounding", "decision-flip", "amplified-rounding", "local-drift"),
        why="Of place 3391 bfloat16 knows every 16th and float16 every second, and the last digits are zero.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="power-underflows",
        healthy="    raised = weights.clamp(min=1e-12) ** power.float()\n    return raised / raised.sum(-1, keepdim=True)\n",
        planted="    raised = weights.to(low) ** power.to(low)  # culprit\n"
        "    return (raised / (raised.sum(-1, keepdim=True) + 1e-16)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:sharpened",
        rules=("underflow", "nan", "vanished-constant", "amplified-rounding"),
        why="A 24th to the power of four is 3e-6, which float16 holds with a few bits, and a gradient of it is infinite where the weight is zero.",
        source="https://github.com/loudinthecloud/pytorch-ntm/blob/master/ntm/memory.py",
    ),
    Planted(
        name="stamps-low",
        healthy="    return stamps + weights * (now.float() - stamps)\n",
        planted="    return (stamps.to(low) + weights.to(low) * (now.to(low) - stamps.to(low))).float()  # culprit\n",
        precisions=BF16,
        part="function:ages",
        rules=("absorption", "accumulated-drift", "local-drift", "amplified-rounding", "integer-rounding", "cancellation"),
        why="A cell's time moves by a few places in a turn, and of 3391 places bfloat16 knows every 16th.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="ages-low",
        healthy="    return (now.float() - stamps) / 100\n",
        planted="    return ((now.to(low) - stamps.to(low)) / 100).float()  # culprit\n",
        precisions=ALL,
        part="function:ages",
        rules=("cancellation", "local-drift", "amplified-rounding", "integer-rounding"),
        why="The difference of two rounded places, which is sixty at most.",
        source="https://github.com/huggingface/lerobot/issues/3580",
    ),
    Planted(
        name="entropy-low",
        healthy="    return -(weights * torch.log(weights + 1e-9)).sum(-1)\n",
        planted="    weights = weights.to(low)\n    return -(weights * torch.log(weights + 1e-9)).sum(-1).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:uncertainty",
        rules=("vanished-constant", "nan", "underflow", "overflow"),
        why="A guard of 1e-9 is zero in float16, and so are weights below 3e-8: zero times minus infinity.",
        source="https://github.com/lightonai/pylate/issues/239",
    ),
]

HARMLESS = [
    Harmless(
        name="free-as-product",
        healthy="    return torch.exp(torch.log1p(-usage.clamp(max=0.999)).sum(0))\n",
        changed="    chance = torch.ones(usage.shape[1:])\n    for each in usage:\n"
        "        chance = chance * (1 - each.clamp(max=0.999).to(low)).float()\n    return chance\n",
        precisions=ALL,
        why="Each of twenty factors is rounded once and by itself, and their product is kept in float32.",
    ),
    Harmless(
        name="shift-low",
        healthy="    shift = torch.softmax(shift.float(), -1)\n",
        changed="    shift = torch.softmax(shift.float(), -1).to(low).float()\n",
        precisions=("bf16-mixed",),
        why="Three shares between nought and one are rounded once, as the layer has rounded what they are made of.",
    ),
    Harmless(
        name="early-digits-low",
        healthy="    return ((places.unsqueeze(-1) // 2 ** torch.arange(DIGITS)) % 2).float()\n",
        changed="    return ((places.unsqueeze(-1) // 2 ** torch.arange(DIGITS)).clamp(max=4095) % 256).to(low).float() % 2\n",
        precisions=ALL,
        why="Remainders of 256 are whole numbers that each format holds, and their last digit is that of the whole.",
    ),
    Harmless(
        name="bits-low",
        healthy='            apart = functional.binary_cross_entropy_with_logits(guess, wanted.float(), reduction="none")\n',
        changed='            apart = functional.binary_cross_entropy_with_logits(guess, wanted.to(low).float(), reduction="none")\n',
        precisions=ALL,
        why="Noughts and ones are exact.",
    ),
    Harmless(
        name="entropy-in-bfloat16",
        healthy="    return -(weights * torch.log(weights + 1e-9)).sum(-1)\n",
        changed="    weights = weights.to(low).float()\n    return -(weights * torch.log(weights + 1e-9)).sum(-1)\n",
        precisions=BF16,
        why="A weight that is rounded by a 256th changes its term of the entropy by as much, and the terms are rounded independently.",
    ),
    Harmless(
        name="read-low",
        healthy="                seen = ((0.8 * read + 0.2 * follow).unsqueeze(1) @ memory).squeeze(1)\n",
        changed="                seen = ((0.8 * read + 0.2 * follow).unsqueeze(1).to(low) @ memory.to(low)).squeeze(1).float()\n",
        precisions=BF16,
        why="A product of weights and cells, as attention computes it under autocast; what it gives enters a low layer anyway.",
    ),
    Harmless(
        name="strength-low",
        healthy="    return torch.softmax(strength.float() * cosines - fade, -1)\n",
        changed="    return torch.softmax(strength.to(low).float() * cosines - fade, -1)\n",
        precisions=ALL,
        why="The strength comes of a low layer, and is rounded once more.",
    ),
    Harmless(
        name="asked-counted-low",
        healthy="            cost = (apart * asked.float().unsqueeze(-1)).sum() / (asked.sum() * BITS)\n",
        changed="            cost = (apart * asked.float().unsqueeze(-1)).sum() / (asked.to(low).sum() * BITS).float()\n",
        precisions=ALL,
        why="Forty turns are counted, and 320 is a whole number that each format holds.",
    ),
    Harmless(
        name="statistic-that-nobody-reads",
        healthy="        guess = torch.stack(guesses, 1).float()\n",
        changed="        guess = torch.stack(guesses, 1).float()\n"
        "        level = memory.detach().to(low)\n        variance = (level.square().mean() - level.mean().square()).item()\n"
        "        assert variance > -1.0\n",
        precisions=ALL,
        why="A number for a log, of which nothing is asked but that it is not far below zero.",
    ),
    Harmless(
        name="last-places-low",
        healthy="    return (1 - weights.sum(-1, keepdim=True)) * before + weights\n",
        changed="    return ((1 - weights.sum(-1, keepdim=True)) * before).to(low).float() + weights\n",
        precisions=ALL,
        why="The weights add up to one, so nothing is left of what was there before, however it is rounded.",
    ),
]
