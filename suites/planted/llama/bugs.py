"""Bugs of decoders with rotary positions."""

from __future__ import annotations

from planted_bug import Planted

BUGS = [
    Planted(
        name="rope-positions-low",
        healthy="        angles = positions.float()[:, None] * frequencies\n",
        planted="        angles = (positions.to(dtype)[:, None] * frequencies).float()  # culprit\n",
        precisions=("bf16-true",),
        part="function:rotary_table.0",
        rules=("integer-rounding", "amplified-rounding"),
        why="Positions above 256 are no bfloat16 numbers, so neighbours share one. The model cannot tell them apart in a long text.",
        source="https://github.com/huggingface/transformers/pull/28760",
    ),
    Planted(
        name="rope-angles-by-matmul",
        healthy=(
            '    with torch.autocast("cpu", enabled=False):\n'
            "        angles = positions.float()[:, None] * frequencies\n"
        ),
        planted="    angles = positions.float()[:, None] @ frequencies[None, :]  # culprit\n",
        precisions=("bf16-mixed", "16-mixed"),
        part="function:rotary_table.0",
        rules=("integer-rounding", "amplified-rounding", "local-drift"),
        why="Autocast carries the matrix product out in the low format. Angles of hundreds of radians lose their phase.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="rope-frequencies-in-a-buffer",
        healthy="    frequencies = rotary_frequencies()\n",
        planted="    frequencies = frequencies.float()\n",
        more=(
            (
                "def rotary_table(positions: Tensor, dtype: torch.dtype)",
                "def rotary_table(positions: Tensor, dtype: torch.dtype, frequencies: Tensor)",
            ),
            ("        angles = positions.float()[:, None] * frequencies\n", "        angles = positions.float()[:, None] * frequencies  # culprit\n"),
            (
                "        self.embed = nn.Embedding",
                '        self.register_buffer("frequencies", rotary_frequencies())  # culprit\n        self.embed = nn.Embedding',
            ),
            ("rotary_table(positions, x.dtype)\n", "rotary_table(positions, x.dtype, self.frequencies)  # culprit\n"),
        ),
        precisions=("bf16-true",),
        part="function:rotary_table.0",
        rules=("amplified-rounding", "integer-rounding", "local-drift", "accumulated-drift"),
        why="The cast of the model rounds the buffer too, and a position multiplies the error of its frequency: far positions lose their phase.",
        source="https://github.com/EleutherAI/gpt-neox/issues/1003",
    ),
    Planted(
        name="positions-by-cumsum",
        healthy="        positions = torch.arange(start, start + tokens.shape[1])\n",
        planted="        positions = torch.ones(start + tokens.shape[1], dtype=x.dtype).cumsum(0)[start:] - 1  # culprit\n",
        precisions=("bf16-true",),
        part="function:rotary_table.0",
        rules=("integer-rounding", "absorption", "local-drift"),
        why="The running count of a mask in the model's own format holds whole numbers only up to 256. Later tokens share positions.",
        source="https://github.com/huggingface/transformers/pull/47238",
    ),
    Planted(
        name="norm-eps-of-the-format",
        healthy="        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)\n",
        planted="        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + torch.finfo(dtype).eps)  # culprit\n",
        precisions=("bf16-true",),
        part="blocks.0.attention_norm",
        rules=("dtype-leak", "vanished-constant", "accumulated-drift"),
        why="bfloat16's own epsilon is 0.008, far above the mean square of small embeddings. The norm shrinks them instead of scaling them to one.",
        source="https://github.com/pytorch/pytorch/issues/189581",
    ),
]
