"""Bugs of linear attention: decays near one, angles of positions, carried sums, squares of what has no scale."""

from __future__ import annotations

from planted_bug import Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BFLOAT = ("bf16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="decay-low",
        healthy="    return 1 - torch.exp2(exponents)\n",
        planted="    return 1 - torch.exp2(exponents).to(like.dtype)  # culprit\n",
        precisions=BFLOAT,
        part="function:decay_powers",
        rules=("amplified-rounding", "absorption", "accumulated-drift", "cancellation"),
        why="1 - 2^-10 is 1 in bfloat16, and 1 - 2^-8 - what is next to it: the slow heads never forget, so all chunks count the same.",
        source="https://github.com/fkodom/yet-another-retnet/pull/25",
    ),
    Planted(
        name="angles-low",
        healthy="    positions = torch.arange(LENGTH, device=x.device, dtype=torch.float32)\n",
        planted="    positions = torch.arange(LENGTH, device=x.device, dtype=x.dtype)  # culprit\n",
        precisions=BFLOAT,
        part="function:rotated",
        rules=("integer-rounding", "amplified-rounding", "accumulated-drift"),
        why="bfloat16 holds no odd number between 256 and 512, so pairs of positions are turned by the same angle.",
        source="https://github.com/huggingface/transformers/issues/28685",
    ),
    Planted(
        name="running-sums-low",
        healthy="    total = torch.zeros_like(parts[:, :, 0], dtype=torch.float32)\n",
        planted="    total = torch.zeros_like(parts[:, :, 0], dtype=like.dtype)  # culprit\n",
        precisions=BFLOAT,
        part="function:running_sums",
        rules=("absorption", "local-drift", "accumulated-drift"),
        why="The sums that linear attention carries grow with the length, and are stored in the queries' format after "
        "every two tokens: what is added "
        "late is rounded away.",
        source="https://github.com/idiap/fast-transformers/issues/32",
        more=(("        total = (total + part).to(total.dtype)\n", "        total = (total + part).to(total.dtype)  # culprit\n"),),
    ),
    Planted(
        name="squares-overflow",
        healthy="        heads = heads.float()\n",
        planted="        heads = heads.contiguous()\n",
        precisions=("16-mixed",),
        part="function:head_norm",
        rules=("overflow", "nan", "underflow", "accumulated-drift"),
        why="The sums over hundreds of tokens are beyond 256, whose square float16 cannot hold: the root mean square is Inf and the head's output 0.",
        source="https://github.com/pytorch/pytorch/pull/133085",
        more=(
            (
                "        return heads * torch.rsqrt((heads * heads).mean(-1, keepdim=True) + 1e-6)\n",
                "        return heads * torch.rsqrt((heads * heads).mean(-1, keepdim=True) + 1e-6)  # culprit\n",
            ),
        ),
    ),
    Planted(
        name="angle-products-low",
        healthy="    angles = positions.unsqueeze(-1) * frequencies\n",
        planted="    angles = positions.to(x.dtype).unsqueeze(-1) * frequencies.to(x.dtype)  # culprit\n",
        precisions=ALL,
        part="function:rotated",
        rules=("amplified-rounding", "integer-rounding", "accumulated-drift"),
        why="The angle of position 500 is a product rounded to a step of 2 in bfloat16, 0.25 in float16; sine and cosine need it to a hundredth.",
        source="https://github.com/EleutherAI/gpt-neox/pull/1016",
    ),
]
