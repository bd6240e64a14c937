"""One bug planted into a network: which lines change, where it is a bug, and which diagnoses of it would be right."""

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
        for healthy, planted in ((self.healthy, self.planted), *self.more):
            if text.count(healthy) != 1:
                raise ValueError(f"{self.name}: its healthy text occurs {text.count(healthy)} times in network.py; it must occur once:\n{healthy}")
            text = text.replace(healthy, planted)
        if "# culprit\n" not in f"{text}\n":
            raise ValueError(f"{self.name}: no line of it ends in '# culprit'")
        return text
