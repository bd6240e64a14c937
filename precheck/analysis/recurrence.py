"""States that a loop stores low in each turn, where these roundings are what the user's result is off by, though no single step amplifies.

n independent roundings of a state whose size stays are √n times one of them, 0.42 √n unit roundoffs; those of a sum that grows evenly are
0.24 √n; those that all go one way, as where half of what is added is lost, grow with n. A state that is kept wide has none of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Set

from precheck.analysis import attribution
from precheck.analysis.attribution import Attribution
from precheck.analysis.calls import ADDED, OWN
from precheck.analysis.errors import DIGIT, UNSTABLE
from precheck.analysis.exemption import exempts
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.lineage import determined, felt
from precheck.analysis.rounding import RECURRENT
from precheck.analysis.turns import State, Turns
from precheck.observe.shadow.operations import Observation, Value


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Carried(Fact):
    """A state that is stored low in each turn. Errors are relative."""

    turns: int
    lines: frozenset[str]  # that carry it on
    dtype: str
    off: float
    kept_wide: float  # what it would be off by


class Recurrence:
    """The states of a run that is analysed in parts."""

    def __init__(self) -> None:
        self.turns = Turns()

    def facts(self, observation: Observation, readers: Readers, explained: Set[Value]) -> list[Carried]:
        """One for each loop. `explained`: values whose error follows from what is found already."""
        self.turns.follow(observation.judged)
        found = []
        for values in self.turns.ended():
            for value in _told_by(values):
                state = self.turns.states[value]
                made = value not in explained and _taken(value, state, readers) and _off(value, state)
                if made and (facts := _made(value, state, observation)):
                    found += facts
                    break
        return found

    def keep(self, values: Set[Value]) -> None:
        """Only these are left."""
        self.turns.keep(values)


def _told_by(values: list[Value]) -> Iterator[Value]:
    """Of states that one op carries on, the latest; and the one that is furthest off, if all of them together, as one tensor, are off by too much.

    Of many that are rounded right, one or another is off by more than its share.
    """
    latest, worst = values[-1], max(values, key=lambda value: value.drift if math.isfinite(value.drift) else 0.0)
    yield latest
    size = math.hypot(*(value.norm for value in values))
    if worst is not latest and size and math.hypot(*(value.drift * value.norm for value in values)) > ADDED * felt(worst) * size:
        yield worst


def _off(value: Value, state: State) -> bool:
    """Whether a state has come round often enough, and is off by more than its storage may cost, in a way that float32 is not."""
    if state.turns < RECURRENT or carries_a_remainder(state) or residual_stream(state) or value.nonfinite:
        return False
    chaotic = value.wander > UNSTABLE and value.twin_drift > DIGIT
    if chaotic or not ADDED * felt(value) < value.drift < math.inf:
        return False
    return value.maker is not None and determined(value.maker, value)


@exempts(
    "accumulated-drift", needed_by=("deep_stream", "cut-residual (mended)"),
    reason="each layer of a network adds to the stream what it makes of it, and rounds as much itself; 48 and 72 layers in bfloat16, each rounded "
           "right, are off by 4.2 and 6.4 unit roundoffs",
)  # fmt: skip
def residual_stream(state: State) -> bool:
    """A state to which each turn adds what other weights have made of it, and which no turn scales, as one scales a recurrent cell's state.

    A sampler's latents are none: it calls one network again and again, and to keep them in float32 costs nothing.
    """
    return state.network and not state.scaled


@exempts(
    "accumulated-drift", needed_by=("textbook_compensation",),
    reason="Kahan summation's remainder is nothing in float32, and gives back what the sum lost",
)  # fmt: skip
def carries_a_remainder(state: State) -> bool:
    """A state made of what a sum, or a rounding, has lost."""
    return state.compensated


def _made(value: Value, state: State, observation: Observation) -> list[Carried]:
    """The fact, if most of the error is that of the lines which carry the state on."""
    whose = Attribution(value, observation.operations)
    mine = {each: share for each, share in whose.shares.items() if each.blamed in state.lines and attribution.written(each)}
    own = min(1.0, sum(mine.values()))
    if own < OWN or not mine or value.maker is None:
        return []
    cause = whose.cause(mine.__contains__) or value.maker
    return [Carried(
        mechanism="accumulated-drift", operation=value.maker if value.maker.blamed == cause.blamed else cause, measured=value.drift / felt(value),
        limit=ADDED, turns=state.turns + 1, lines=state.lines, dtype=value.dtype, off=value.drift, kept_wide=value.drift * math.sqrt(1 - own),
    )]  # fmt: skip


def _taken(value: Value, state: State, readers: Readers) -> bool:
    """Whether the user has it, or something else than the loop itself reads it."""
    return value.alive or any(reader.reads or reader.blamed not in state.lines for reader in readers.get(value, ()))
