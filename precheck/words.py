"""Formats names and numbers for messages. Removes characters that cannot be shown, since users may choose any names."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from pathlib import Path

LONGEST = 160
"""The most characters of a name. Longer names lose their middle."""
_TIMES = 9.95
"""The least share that is told as a multiple, "10 times". A percentage of four digits is hard to read."""
WIDEST_NAME = 60
"""The most characters of a tensor's name in a sentence or a table. Longer names lose their beginning."""
_UNSEEN = (
    r"[^\n -~\u00a1-\u00ac\u00ae-\u200a\u2010-\u2027\u202f-\u205f\u2070-\ud7ff\ue000-\ufefe\uff00-\ufff8\ufffc-\U000dffff\U000e0100-\U0010ffff]"
)


def writable(words: str) -> str:
    r"""Returns `words` with lone surrogates, which no encoding can write, as the escapes that Python shows: \ud800."""
    return words.encode("utf8", "backslashreplace").decode("utf8")


def printable(words: str) -> str:
    """Replaces control characters (except line ends) and marks of direction, which would change the text around them. Escapes lone surrogates."""
    return _unseen().sub("\ufffd", writable(words))


@functools.cache
def _unseen() -> re.Pattern[str]:
    """The compiled pattern. It is compiled at the first use, which makes pytest's start faster."""
    return re.compile(_UNSEEN)


@functools.cache
def dtype_name(dtype: object) -> str:
    """The name of a torch.dtype: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def sentence(words: str) -> str:
    """The words with a capital letter and a full stop."""
    return f"{words[0].upper()}{words[1:]}."


def of_norm(share: float) -> str:
    """An error relative to a tensor's norm, as text after "off by": "33% of its norm", "90 times its norm"."""
    if share == math.inf:
        return "its whole size, since the reference is zero"
    return f"{portion(share)} its norm" if share >= _TIMES else f"{percents(share)} of its norm"


def percents(share: float) -> str:
    """A share as text, with two digits: "33%", "0.36%", "0.0021%". From 100% on, as a whole number: "104%"."""
    return f"{digits(100 * share, 2)}%" if 0 < share < 0.995 else f"{share:.0%}"


def portion(share: float) -> str:
    """A share as text for a table, with two digits: "28%", "0.0021%", "90 times"."""
    if share == 0 or not math.isfinite(share):
        return f"{share:.0f}%" if share == 0 else str(share)
    return f"{short(share)} times" if share >= _TIMES else f"{short(100 * share)}%"


def op_words(op: str, dtype: str = "") -> str:
    """An op as messages name it: "cast to bfloat16 (aten._to_copy)". Others keep the name that torch gives them."""
    if op == "aten.view.dtype":
        return "rounding of bits (aten.view)"
    if op not in ("aten._to_copy.default", "aten._to_copy"):
        return op
    return f"cast{dtype and f' to {dtype}'} (aten._to_copy)"


def short(number: float) -> str:
    """A number as text, with two digits, or as a whole number up to 99999: "0.0034", "102", "1.7e+08"."""
    return f"{number:.0f}" if 99.5 <= number < 1e5 else f"{number:.2g}"


def digits(number: float, many: int = 4) -> str:
    """A number as text with so many digits, and no exponent where it is neither huge nor tiny: "412600", "0.0000039", "3.045e+12"."""
    if not 1e-7 <= abs(number) < 1e9:
        return f"{number:.{many}g}"
    places = many - 1 - math.floor(math.log10(abs(number)))
    rounded = round(number, places)
    return f"{rounded:.0f}" if places <= 0 else f"{rounded:.{places}f}".rstrip("0").rstrip(".")


def one_line(words: str) -> str:
    """Makes a text printable in one line: line ends become ⏎."""
    return printable(words).replace("\n", "⏎")


def cut(name: str, longest: int = LONGEST) -> str:
    """Shortens a name to at most `longest` characters: beginning, …, end."""
    half = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"


def module_words(name: str) -> str:
    """A name as text after "output of". One of numbers alone, as in an nn.Sequential, says what it is: "module 0.2.1"."""
    plain, call = call_words(name)
    path = plain.partition("[")[0]
    return f"{'module ' if path.replace('.', '').isdecimal() else ''}{plain}{call}"


def call_words(name: str) -> tuple[str, str]:
    """A tensor's name without the number of the call, and this number as text: "attn[1]" and " in call 2" for "attn#2[1]"."""
    number = re.search(r"#(\d+)(?=\[|$)", name)
    return (name[: number.start()] + name[number.end() :], f" in call {number[1]}") if number else (name, "")


def tensor_name(kind: str, tensor: str, step: int = 1) -> str:
    """The name of a tensor in a sentence: "gradient of layers.0", "update of head.weight, step 3", "what turned() returns", "loss"."""
    short = tensor if len(tensor) <= WIDEST_NAME else "…" + tensor[1 - WIDEST_NAME :]
    name = module_words(short)
    if kind == "returned":
        function, call = call_words(short)
        what = f"what {function} returns{call}"
    elif (kind, tensor) == ("gradient", "output"):
        what = "gradient of the output"
    else:
        plain = kind.removeprefix("parameter-")
        what = plain if tensor in (kind, "output") else f"{plain}{'' if name.startswith('[') else ' of '}{name}"
    return what if step == 1 else f"{what}, step {step}"


def in_package(line: str) -> str:
    """A line of an installed package with its import path: "keras/src/backend/torch/numpy.py:156". Any other line as it is."""
    parts = Path(line).parts
    places = [place for place, part in enumerate(parts) if part in ("site-packages", "dist-packages")]
    return Path(*parts[places[-1] + 1 :]).as_posix() if places else line


def described(value: object) -> str:
    """What somebody has passed, for the sentence on what is accepted: "None", "the class Linear", "an int", "a DataLoader"."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def suggestion(typed: object, known: Iterable[str]) -> str:
    """What to write in place of a name that does not exist: the nearest one, or all that there are."""
    import difflib

    names = list(known)
    close = difflib.get_close_matches(typed, names, n=1) if isinstance(typed, str) else []
    return f"do you mean {close[0]}?" if close else f"there are {', '.join(names)}"
