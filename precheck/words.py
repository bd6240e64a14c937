"""Names and messages as they can be shown: users choose them, and may choose anything."""

from __future__ import annotations

import functools
import re

LONGEST = 160
"""Characters of a name; of longer ones the middle is left out."""
WIDEST_NAME = 60
"""Characters of a tensor's name in a sentence or a table; of longer ones the beginning is left out."""
_UNSEEN = (
    r"[^\n -~\u00a1-\u00ac\u00ae-\u200a\u2010-\u2027\u202f-\u205f\u2070-\ud7ff\ue000-\ufefe\uff00-\ufff8\ufffc-\U000dffff\U000e0100-\U0010ffff]"
)


def writable(words: str) -> str:
    r"""`words` with half a surrogate pair, which no encoding has, as the escape that Python shows: \ud800."""
    return words.encode("utf8", "backslashreplace").decode("utf8")


def printable(words: str) -> str:
    """Without what acts on the text around it: control characters (line ends excepted), marks of direction; halves of characters escaped."""
    return _unseen().sub("\ufffd", writable(words))


@functools.cache
def _unseen() -> re.Pattern[str]:
    """Compiled when it is first needed: pytest's start pays for what is not."""
    return re.compile(_UNSEEN)


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def of_norm(share: float) -> str:
    """How far a tensor is off, beside its norm: "33.47% of its norm", "90.2 times its norm"."""
    return f"{percents(share)} of its norm" if share < 10 else f"{share:.3g} times its norm"


def percents(share: float) -> str:
    """ "33.47%", "9017%"; of what that would show as "0.00%" two digits: "0.0021%"."""
    return f"{100 * share:.2g}%" if 0 < share < 5e-5 else f"{share:.2%}" if share < 10 else f"{share:.0%}"


def short(number: float) -> str:
    """Two digits, and whole numbers as they are up to 99999: "0.0034", "102", "1.7e+08"."""
    return f"{number:.0f}" if 99.5 <= number < 1e5 else f"{number:.2g}"


def one_line(words: str) -> str:
    """Printable, with signs in the place of line ends."""
    return printable(words).replace("\n", "⏎")


def cut(name: str, longest: int = LONGEST) -> str:
    """A name of at most `longest` characters: beginning, …, end."""
    half = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"


def tensor_name(kind: str, tensor: str, step: int = 1) -> str:
    """ "gradient of layers.0", "update of head.weight, step 3", "what turned() returns"; only the kind where both are the same, "loss"."""
    name = tensor if len(tensor) <= WIDEST_NAME else "…" + tensor[1 - WIDEST_NAME :]
    if kind == "returned":
        what = f"what {name} returns"
    else:
        what = kind if tensor in (kind, "output") else f"{kind}{'' if name.startswith('[') else ' of '}{name}"
    return what if step == 1 else f"{what}, step {step}"
