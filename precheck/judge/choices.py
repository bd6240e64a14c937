"""Choices that a low format made by chance: distinct scores that it holds as equals."""

from __future__ import annotations

from precheck.findings import Severity
from precheck.judge.events import Suspect
from precheck.judge.lineage import Origins, placed
from precheck.observe.shadow.operations import Observation, Operation

ROWS = 5
SHARE = 0.005
"""Rows whose top-k changed through ties, at least this many and this share: healthy programs changed 1 row of 32 at most."""
SWAPPED = 1 / 8
"""Share of what a row chooses that ties must swap to matter: one of eight experts, beams or candidates. Of twenty neighbours, of fifty tokens to
draw from or of the units of a sparse code a tie swaps the last, and what is made of all of them is as it was."""
BLURRED = 0.025
BLUR = 16.0
"""Rounding error over the spread of a row's scores, in unit roundoffs: four bits of what a choice can see are lost, as when an
offset common to all scores takes them. Healthy routers and classifiers lose about one."""


BY_DIFFERENCE = frozenset({"topk", "argmax", "argmin", "max", "min"})


def blurred(operation: Operation) -> bool:
    """A choice that came out otherwise since rounding hides what tells its scores apart."""
    flips = operation.flips
    if flips is None or flips.changed < ROWS or operation.packet not in BY_DIFFERENCE or not operation.inputs[0].roundoff:
        return False
    return flips.changed / flips.total >= BLURRED and flips.blur >= BLUR * operation.inputs[0].roundoff


def flipped(observation: Observation, origins: Origins) -> list[Suspect]:
    """decision-flip: a choice among scores that the format made equal, or whose differences it made noise.

    Noise that the cast of a weight brought in can be kept out by not casting it, and is an error. What computing brings in may be
    all that the differences ever were, as in a model that has learnt nothing yet, and is a warning.
    """
    found = []
    for operation in observation.judged:
        flips = operation.flips
        if flips is None or operation.phase == "backward" or not operation.inputs or flips.changed < ROWS:
            continue
        scores, share = operation.inputs[0], flips.changed / flips.total
        if scores.low and flips.ties >= ROWS and flips.ties / flips.total >= SHARE:
            text = (f"{100 * share:.1f} % of {flips.total} rows choose otherwise than the reference, {100 * flips.ties / flips.total:.1f} % because "
                    f"{scores.dtype} makes distinct scores equal")  # fmt: skip
            found.append(Suspect("decision-flip", operation, text, flips.ties / flips.total, SHARE, "error" if flips.swapped >= SWAPPED else "note"))
        elif blurred(operation):
            text = (f"{100 * share:.1f} % of {flips.total} rows choose otherwise than the reference: rounding is {100 * flips.blur:.2g} % of what "
                    f"tells the scores apart, where one rounding is {100 * scores.rounded:.1g} %")  # fmt: skip
            cause = origins.of(scores) or operation
            text = f"its rounding decides {placed(operation)}: {text}" if cause is not operation else text
            severity: Severity = "error" if cause.base == "_to_copy" and cause.parameter else "warning"
            found.append(Suspect("decision-flip", cause, text, flips.blur / scores.roundoff, BLUR, severity))
    return found
