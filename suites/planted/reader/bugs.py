"""Bugs of a reader: characters and places beyond 256 as low floats, and a window of padding alone."""

from planted_bug import Harmless, Planted

ALL = ("bf16-mixed", "16-mixed", "bf16-true")
BF16 = ("bf16-mixed", "bf16-true")
DRIFTS = ("amplified-rounding", "accumulated-drift", "local-drift", "cancellation")
WHOLE = (*DRIFTS, "integer-rounding", "decision-flip")
PLACE = "    place = (starts[:, None] + torch.arange(LENGTH)).float()\n"
LEFT = "    left = (token - starts[:, None]).float()\n    right = (starts[:, None] + LENGTH - 1 - token).float()\n"
TOKEN = "    return (offsets <= character[:, None]).sum(-1) - 1\n"
BIAS = "    return (1 - mask.float())[:, None, None] * -1e9\n"
LONG = "    place = offsets.float()\n    start, end = "
GAPS = "    return F.pad(offsets.diff(dim=-1), (1, 0)).float() / 8\n"
SCORE = "    score = start.float()[:, :, None] + end.float()[:, None]\n"

BUGS = [
    Planted(
        name="places-low",
        healthy=PLACE,
        planted="    place = (starts.to(like.dtype)[:, None] + torch.arange(LENGTH, dtype=like.dtype)).float()  # culprit\n",
        precisions=BF16,
        part="function:waves",
        rules=WHOLE,
        why="The third window begins at token 192, and bfloat16 knows every second token from 256 on.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="context-low",
        healthy=LEFT,
        planted="    token, starts = token.to(like.dtype), starts.to(like.dtype)  # culprit\n"
        "    left = token - starts[:, None]\n    right = starts[:, None] + LENGTH - 1 - token\n",
        precisions=BF16,
        part="function:window_of",
        rules=WHOLE,
        why="Tokens beyond 256 are moved by one or two, so that two windows know them as well, and the first is taken.",
        source="https://github.com/huggingface/transformers/pull/29285",
    ),
    Planted(
        name="characters-low",
        healthy=TOKEN,
        planted="    return (offsets.to(like.dtype) <= character.to(like.dtype)[:, None]).sum(-1) - 1  # culprit\n",
        precisions=BF16,
        part="loss",
        rules=WHOLE,
        why="The answer begins at character 2000, which bfloat16 knows to eight.",
        source="https://github.com/huggingface/transformers/pull/18165",
    ),
    Planted(
        name="padding-infinite",
        healthy=BIAS,
        planted="    return (1 - mask.to(like.dtype))[:, None, None] * -1e9  # culprit\n",
        precisions=("16-mixed",),
        part="result",
        rules=("nan", "overflow"),
        why="A window that is padding alone has no score but -inf.",
        source="https://github.com/apple/coremltools/pull/2727",
    ),
]

HARMLESS = [
    Harmless(
        name="gaps-rounded",
        healthy=GAPS,
        changed="    return F.pad(offsets.diff(dim=-1), (1, 0)).to(like.dtype).float() / 8\n",
        precisions=ALL,
        why="Differences of whole numbers are small whole numbers, and exact.",
    ),
    Harmless(
        name="context-of-one-window-low",
        healthy=LEFT,
        changed="    left = (token - starts[:, None]).to(like.dtype).float()\n"
        "    right = (starts[:, None] + LENGTH - 1 - token).to(like.dtype).float()\n",
        precisions=ALL,
        why="Places in a window are exact, and those outside of it are negative and never chosen.",
    ),
    Harmless(
        name="mask-rounded",
        healthy=BIAS,
        changed="    return (1 - mask.to(like.dtype)).float()[:, None, None] * -1e9\n",
        precisions=ALL,
        why="Noughts and ones are exact.",
    ),
    Harmless(
        name="chances-rounded",
        healthy="            long = length(told.exp(), offsets[:1], like)\n",
        changed="            long = length(told, offsets[:1], like)\n",
        more=((LONG, "    place, chances = offsets.float(), chances.exp()\n    start, end = "),),
        precisions=ALL,
        why="The exponential is taken in another function, in the same format.",
    ),
    Harmless(
        name="ends-rounded-once",
        healthy=SCORE,
        changed="    score = (start.float()[:, :, None] + end.float()[:, None]).to(like.dtype).float()\n",
        precisions=ALL,
        why="A score of some units is rounded once.",
    ),
]
