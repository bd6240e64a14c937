"""Bugs planted into the diffusion UNet."""

from __future__ import annotations

from planted_bug import Planted

BF16, LOW = ("bf16-mixed", "bf16-true"), ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="timestep-low",
        healthy="    angles = timesteps.float()[:, None] * rates\n",
        planted="    angles = timesteps.to(dtype)[:, None] * rates.to(dtype)  # culprit\n",
        precisions=LOW,
        part="function:embedded",
        rules=("integer-rounding", "amplified-rounding"),
        why="A timestep such as 995 is rounded, and its product with the rates again, before the sine: the network is told of another timestep.",
        source="https://github.com/modelscope/DiffSynth-Studio/issues/562",
    ),
    Planted(
        name="noise-schedule-low",
        healthy="    betas = torch.linspace(1e-4, 0.02, TIMESTEPS, device=like.device, dtype=torch.float32)\n"
        "    return torch.cumprod(1 - betas, dim=0)\n",
        planted="""    betas = torch.linspace(1e-4, 0.02, TIMESTEPS, device=like.device, dtype=torch.float32).to(like.dtype)
    alphas = 1 - betas  # culprit
    return torch.cumprod(alphas, dim=0)  # culprit
""",
        precisions=("bf16-true",),
        part="function:kept_signal",
        rules=("absorption", "accumulated-drift", "local-drift", "cancellation", "amplified-rounding"),
        why="1 - 1e-4 is 1 in bfloat16 and a thousand such factors are multiplied, so the schedule is another one.",
        source="https://github.com/AUTOMATIC1111/stable-diffusion-webui/issues/14071",
    ),
    Planted(
        name="signal-to-noise-low",
        healthy="    snr = kept.float() / (1 - kept.float())\n",
        planted="    kept = kept.to(low)\n    snr = (kept / (1 - kept)).float()  # culprit\n",
        precisions=LOW,
        part="function:snr_weights",
        rules=("cancellation", "amplified-rounding", "absorption", "overflow", "nan", "underflow", "local-drift"),
        why="For early timesteps the kept signal is close to 1 and rounded: 1 - kept loses its digits or is zero, and the weight of "
        "the sample with it.",
        source="https://github.com/huggingface/diffusers/pull/3005",
        more=(
            ("def snr_weights(kept: torch.Tensor)", "def snr_weights(kept: torch.Tensor, low: torch.dtype)"),
            (
                "        return averaged(snr_weights(kept) * (guess.float() - wave.float()).square())\n",
                "        return averaged(snr_weights(kept, guess.dtype) * (guess.float() - wave.float()).square())\n",
            ),
        ),
    ),
    Planted(
        name="variance-of-squares-low",
        healthy="    grouped = x.float().reshape(b, GROUPS, -1)\n"
        "    mean = grouped.mean(-1, keepdim=True)\n"
        "    variance = (grouped - mean).square().mean(-1, keepdim=True)\n",
        planted="""    grouped = x.reshape(b, GROUPS, -1)
    mean = grouped.mean(-1, keepdim=True)
    variance = (grouped.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0).float()  # culprit
""",
        precisions=LOW,
        part="function:group_norm",
        rules=("cancellation", "amplified-rounding", "accumulated-drift"),
        why="The variance is the difference of two large and nearly equal numbers, each rounded, for groups whose mean is far from zero.",
        source="https://github.com/google/objax/issues/182",
    ),
    Planted(
        name="interpolation-grid-low",
        healthy="    place = torch.arange(length, device=x.device) * ((x.shape[-1] - 1) / (length - 1))\n",
        planted="    place = torch.arange(length, device=x.device).to(x.dtype) * ((x.shape[-1] - 1) / (length - 1))  # culprit\n",
        precisions=BF16,
        part="function:stretched",
        rules=("integer-rounding", "amplified-rounding", "decision-flip", "cancellation"),
        why="The place in the shorter signal is stored low, where the fraction of 200.4 is lost: samples are taken from wrong places.",
        source="https://github.com/pytorch/pytorch/issues/88939",
    ),
    Planted(
        name="loss-summed-low",
        healthy="    return errors.mean()\n",
        planted="""    pairs = errors.to(low).view(-1, 2)
    total = torch.zeros_like(pairs[0])
    for pair in pairs:
        total = total + pair  # culprit
    return total.float().sum() / errors.numel()
""",
        precisions=BF16,
        part="function:averaged",
        rules=("absorption", "local-drift"),
        why="A running sum of a thousand errors is kept low: from some hundred on, an error near 1 no longer changes it.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
        more=(
            ("def averaged(errors: torch.Tensor)", "def averaged(errors: torch.Tensor, low: torch.dtype)"),
            (
                "        return averaged(snr_weights(kept) * (guess.float() - wave.float()).square())\n",
                "        return averaged(snr_weights(kept) * (guess.float() - wave.float()).square(), guess.dtype)\n",
            ),
        ),
    ),
]
