"""Bugs of speech synthesis: frames counted low, a phase that grows, a pitch's spread, the logarithm of silence."""

from __future__ import annotations

from planted_bug import Planted

BF16, LOW = ("bf16-mixed", "bf16-true"), ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="ends-low",
        healthy="    ends = durations.cumsum(1)\n",
        planted="    ends = durations.to(low).cumsum(1)  # culprit\n",
        precisions=BF16,
        part="result",
        rules=("integer-rounding", "absorption", "decision-flip"),
        why="The ends of phonemes are frame numbers to 360, of which bfloat16 has every second one.",
        source="https://github.com/tenstorrent/tt-metal/issues/33742",
    ),
    Planted(
        name="pitch-by-moments",
        healthy="    wide = pitch.float()\n    mean = wide.mean(-1, keepdim=True)\n    variance = (wide - mean).square().mean(-1, keepdim=True)\n",
        planted="    wide = pitch.to(like.dtype)\n    mean = wide.mean(-1, keepdim=True)\n"
        "    variance = ((wide * wide).mean(-1, keepdim=True) - mean * mean).clamp_min(0)  # culprit\n",
        precisions=LOW,
        part="function:standardised",
        rules=("cancellation", "amplified-rounding", "local-drift"),
        why="A pitch of 200 with a spread of 8 has a mean square of 40064, less a squared mean of 40000: bfloat16 has steps of 256 "
        "there, float16 of 32.",
        source="https://github.com/tenstorrent/tt-metal/issues/45968",
    ),
    Planted(
        name="phase-low",
        healthy="    phase = 2 * math.pi * turns.cumsum(1)\n",
        planted="    phase = 2 * math.pi * turns.to(low).cumsum(1)  # culprit\n",
        precisions=LOW,
        part="function:harmonics",
        rules=("amplified-rounding", "absorption", "cancellation", "local-drift", "accumulated-drift"),
        why="The phase grows to hundreds of turns, and only its fraction matters: bfloat16 knows it in steps of one or two turns.",
        source="https://github.com/hexgrad/kokoro/pull/353",
    ),
    Planted(
        name="mel-floor-low",
        healthy="        return torch.log(bands.clamp_min(1e-9)).float()\n",
        planted="        return torch.log(bands.to(low).clamp_min(1e-9)).float()  # culprit\n",
        precisions=("16-mixed",),
        part="function:log_mel",
        rules=("vanished-constant", "nan", "underflow", "overflow"),
        why="The floor of 1e-9 is zero in float16, so silence has minus infinity as the logarithm of its energy.",
        source="https://github.com/adobe-research/convmelspec/pull/3",
    ),
]
