"""One change of a network's code: a bug, with the diagnoses of it that would be right, or what looks like one and does no harm."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planted:
    """A replacement of whole lines of a network's source, which low precision turns into a bug.

    `healthy` occurs once in network.py; `planted` takes its place, and its culprit lines end in `# culprit`. A bug in several places
    gives `more`, further pairs of that kind. `part` names what holds the error: "result", "loss", "weights" (after the steps), a module's
    output by the module's name, "function:NAME" (the first return value of a function of network.py), "gradient:PARAMETER", "parameter:NAME",
    "buffer:NAME" (after the steps) or "state:NAME" (an optimizer's state, one tensor of all parameters). A function or a module
    that is called more than once counts with all its calls; "function:NAME.1" takes the tensor at index 1 of a tuple it returns.
    `through` names the verbs that can see it: what only a loop of the user's own holds, `watch` alone can.
    """

    name: str
    healthy: str
    planted: str
    precisions: tuple[str, ...]
    part: str
    rules: tuple[str, ...]
    why: str
    source: str
    more: tuple[tuple[str, str], ...] = ()
    through: tuple[str, ...] = ("measure", "check", "watch")

    def applied(self, text: str) -> str:
        """The network's source with the bug in it."""
        text = replaced(text, self.name, ((self.healthy, self.planted), *self.more))
        if "# culprit\n" not in f"{text}\n":
            raise ValueError(f"{self.name}: no line of it ends in '# culprit'")
        return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Harmless:
    """A replacement of whole lines that looks like a bug of low precision and does no harm, for the reason that `why` gives.

    `healthy` and `more` are as in `Planted`; `changed` takes the place of `healthy`.
    """

    name: str
    healthy: str
    changed: str
    precisions: tuple[str, ...]
    why: str
    more: tuple[tuple[str, str], ...] = ()

    def applied(self, text: str) -> str:
        """The network's source with the change in it."""
        return replaced(text, self.name, ((self.healthy, self.changed), *self.more))


def replaced(text: str, name: str, pairs: tuple[tuple[str, str], ...]) -> str:
    """A source in which the second of each pair has taken the place of the first, which occurs once. `name` is for errors."""
    for before, after in pairs:
        if text.count(before) != 1:
            raise ValueError(f"{name}: its healthy text occurs {text.count(before)} times in network.py; it must occur once:\n{before}")
        text = text.replace(before, after)
    return text
