"""Bugs of diffusion transformers: times, schedules and densities near one, places beyond 256, masks of the wrong format."""

from __future__ import annotations

from planted_bug import Planted

BF16, LOW = ("bf16-mixed", "bf16-true"), ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="time-scaled-low",
        healthy="    times = sigma.float() * TIMES\n",
        planted="    times = sigma.to(like.dtype) * TIMES  # culprit\n",
        precisions=BF16,
        part="function:time_features",
        rules=("integer-rounding", "amplified-rounding", "local-drift"),
        why="The noise level is rounded at 1 and then multiplied by 1000: 987.5 becomes 988 or 984, and the network is told of another "
        "time.",
        source="https://github.com/Tencent-Hunyuan/UniRL/pull/438",
    ),
    Planted(
        name="schedule-low",
        healthy="    even = torch.linspace(1.0, 0.0, count + 1)\n",
        planted="    even = torch.linspace(1.0, 0.0, count + 1, dtype=low)  # culprit\n",
        precisions=LOW,
        part="function:step_sizes",
        rules=("cancellation", "amplified-rounding", "local-drift", "accumulated-drift", "absorption"),
        why="Near one bfloat16 has steps of 1/256, and the shift compresses that end to steps of 1/180: some Euler steps take no noise "
        "away, others "
        "twice what they should.",
        source="https://github.com/Comfy-Org/ComfyUI/pull/16001",
        more=(
            (
                "    return SHIFT * even / (1 + (SHIFT - 1) * even)\n",
                "    return SHIFT * even / (1 + (SHIFT - 1) * even)  # culprit\n",
            ),
            ("    return (noise[:-1] - noise[1:]).float()\n", "    return (noise[:-1] - noise[1:]).float()  # culprit\n"),
        ),
    ),
    Planted(
        name="time-density-low",
        healthy="    sigma = sigma.float()\n    logit = torch.log(sigma / (1 - sigma))\n",
        planted="    sigma = sigma.to(like.dtype)\n    logit = torch.log(sigma / (1 - sigma))  # culprit\n",
        precisions=LOW,
        part="function:time_weights",
        rules=("cancellation", "amplified-rounding", "overflow", "nan", "local-drift", "accumulated-drift"),
        why="One minus a time of 0.9955 is 0.0039 in bfloat16, or nothing: the weight of such a sample is another, or infinite.",
        source="https://github.com/huggingface/diffusers/pull/3005",
        more=(
            (
                "    density = torch.exp(-0.5 * (logit - 5.0).square()) / (math.sqrt(2 * math.pi) * sigma * (1 - sigma))\n",
                "    density = torch.exp(-0.5 * (logit - 5.0).square()) / (math.sqrt(2 * math.pi) * sigma * (1 - sigma))  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="places-low",
        healthy="    angles = torch.arange(frames, device=like.device).float().unsqueeze(-1) * rates\n",
        planted="    angles = torch.arange(frames, device=like.device, dtype=like.dtype).unsqueeze(-1) * rates.to(like.dtype)  # culprit\n",
        precisions=BF16,
        part="function:place_features",
        rules=("integer-rounding", "amplified-rounding"),
        why="From 256 on bfloat16 has every second number only, and angles of 300 are rounded to whole radians.",
        source="https://github.com/vllm-project/vllm/pull/54620",
    ),
    Planted(
        name="mask-of-float32",
        healthy="    return torch.zeros(padding.shape, dtype=like.dtype, device=like.device).masked_fill(padding, torch.finfo(like.dtype).min)\n",
        planted="    added = torch.zeros(padding.shape, device=like.device).masked_fill(padding, torch.finfo(torch.float32).min)\n"
        "    return added.to(like.dtype)  # culprit\n",
        precisions=LOW,
        part="result",
        rules=("overflow", "nan"),
        why="float32's least number is minus infinity in either low format. A sample without a text has a row of minus infinities, "
        "whose softmax "
        "is no number; in float32 the row was even.",
        source="https://github.com/ahrefs/ocannl/issues/548",
    ),
]
