"""Bugs of a Perceiver: rounded coordinates and frequencies, guards that vanish."""

from __future__ import annotations

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="coordinates-low",
        healthy="    x = x * scales * pi\n",
        planted="    x = x.to(torch.bfloat16) * scales.to(torch.bfloat16) * pi  # culprit\n",
        precisions=BF16,
        part="function:fourier_encode",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="A coordinate is known to a 256th, and the fastest wave of it turns 64 times.",
        source="https://github.com/megvii-research/PETR/issues/136",
    ),
    Planted(
        name="coordinates-half",
        healthy="    x = x * scales * pi\n",
        planted="    x = (x * scales * pi).half()  # culprit\n",
        precisions=("16-mixed",),
        part="function:fourier_encode",
        rules=("amplified-rounding", "accumulated-drift", "local-drift"),
        why="Angles up to 200 are known to an eighth in float16.",
        source="https://github.com/megvii-research/PETR/issues/136",
    ),
    Planted(
        name="offsets-low",
        healthy="    centered = points - points.mean(1, keepdim=True)\n",
        planted="    points = points.to(torch.bfloat16)  # culprit\n    centered = (points - points.mean(1, keepdim=True)).float()  # culprit\n",
        precisions=("bf16-mixed",),
        part="function:relative_offsets",
        rules=("cancellation", "amplified-rounding", "integer-rounding", "local-drift"),
        why="A mean of 230 is known to one in bfloat16, and coordinates from 256 to two.",
        source="https://github.com/kornia/kornia/pull/4336",
    ),
    Planted(
        name="entropy-guard-vanishes",
        healthy="    attn = attn.float()\n",
        planted="    attn = attn.half()\n",
        more=(("    return -(attn * (attn + 1e-9).log()).sum(-1) / log(attn.shape[-1])\n",
               "    return -(attn * (attn + 1e-9).to(attn.dtype).log()).sum(-1) / log(attn.shape[-1])  # culprit\n"),),
        precisions=("16-mixed",),
        part="function:entropy_of",
        rules=("vanished-constant", "nan", "overflow"),
        why="The logarithm of a masked weight is -Inf, and nought times it is NaN.",
        source="https://github.com/lightonai/pylate/issues/239",
    ),
]  # fmt: skip

HARMLESS = [
    Harmless(
        name="attention-low",
        healthy="        attn = sim.softmax(dim=-1)\n",
        changed="        attn = sim.softmax(dim=-1).to(v.dtype)\n",
        precisions=ALL,
        why="Weights are rounded before the product with values, as the healthy code does a line later.",
    ),
    Harmless(
        name="masked-in-low",
        healthy="            sim = sim.masked_fill(~mask[:, None, None, :], -torch.finfo(sim.dtype).max)\n",
        changed="            sim = sim.masked_fill(~mask[:, None, None, :], torch.finfo(torch.float16).min)\n",
        precisions=ALL,
        why="-65504 is far below every similarity, which is 10 at most.",
    ),
    Harmless(
        name="normalised-low",
        healthy="    return F.normalize(t.float(), dim=-1, eps=1e-6)\n",
        changed="    return F.normalize(t.float(), dim=-1, eps=1e-6).to(t.dtype).float()\n",
        precisions=ALL,
        why="A direction is rounded once, as the projection before it has been.",
    ),
    Harmless(
        name="scale-low",
        healthy='            sim = einsum("b h i d, b h j d -> b h i j", q, k) * self.log_scale.float().exp()\n',
        changed='            sim = einsum("b h i d, b h j d -> b h i j", q * self.log_scale.float().exp(), k)\n',
        precisions=ALL,
        why="The same product in another order.",
    ),
    Harmless(
        name="points-as-integers",
        healthy="    points = points.float()\n",
        changed="    points = points.half().float()\n",
        precisions=ALL,
        why="Whole numbers up to 264 are exact in float16.",
    ),
    Harmless(
        name="features-rounded",
        healthy="    x = torch.cat((x.sin(), x.cos()), dim=-1)\n",
        changed="    x = torch.cat((x.sin(), x.cos()), dim=-1).to(torch.bfloat16)\n",
        precisions=("bf16-mixed", "bf16-true"),
        why="What is rounded is between -1 and 1, and the next layer rounds it anyway.",
    ),
    Harmless(
        name="entropy-of-rounded",
        healthy="    attn = attn.float()\n",
        changed="    attn = attn.to(torch.bfloat16).float()\n",
        precisions=BF16,
        why="An entropy is flat in its weights: each is rounded once and for itself.",
    ),
    Harmless(
        name="orders-of-magnitude-low",
        healthy="    scales = torch.logspace(0.0, log(max_freq / 2) / log(10), num_bands, dtype=torch.float32, device=x.device)\n",
        changed="    scales = 2.0 ** torch.linspace(0, 6, num_bands * 2 - 5, device=x.device).to(torch.float32)\n"
        "    scales = scales[: num_bands] if len(scales) == num_bands else torch.logspace(0.0, log(max_freq / 2) / log(10), num_bands)\n",
        precisions=("bf16-mixed",),
        why="The branch that is taken makes the same numbers.",
    ),
]
