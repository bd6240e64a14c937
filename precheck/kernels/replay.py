"""Tells chance from memory: repeats a call, or all calls in their order, and looks whether the fault comes again."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from precheck.kernels import memory, protocol
from precheck.kernels.bench import Bench
from precheck.kernels.states import State
from precheck.kernels.trial_result import Fault, Judged
from precheck.kernels.trials import Trial
from precheck.kernels.work import Work

AGAIN = 8
"""How often a correct call is repeated where every call must give the same result. A fault in one call of three is missed in one search of 25."""
OFTEN = 64
"""How often it is repeated where one wrong result distinguishes chance from memory. A fault in one call of 25 is missed in one search of 14."""
ENOUGH = 2**27
"""The work of repetitions, in elements that the reference computes; at least AGAIN are made in any case, or the last three of earlier calls."""
TIMES, MOST = 3, 2
"""How often calls are repeated in their order, and how often the fault has to come again. What a kernel remembers is wrong each time. What happens in
one sequence of eight comes twice in one search of 23."""
LAST, FIRST = 56, 8
"""How many of the last and of the first calls are repeated, where there were more."""


_SEQUENCES = (protocol.in_place, protocol.one_storage, protocol.renumbered, protocol.widened, protocol.twins)
"""Sequences in which calls share memory, or a call is made whose result is not looked at."""


class Replay:
    """Repeats the calls of a bench, from the state before its first call."""

    def __init__(self, bench: Bench, state: State) -> None:
        self.bench, self.state, self.work = bench, state, Work(bench)

    def fresh(self, trial: Trial) -> Judged:
        """Judges the call where nothing was run before."""
        self.work.note(trial)
        with self.state.restored():
            return self.bench.judge(trial)

    def by_chance(self, trial: Trial) -> bool:
        """Whether a call that is right with fresh state is wrong in a repetition with fresh state."""
        times = min(max(AGAIN, ENOUGH // max(self.work.of(trial), 1)), OFTEN)
        return any(self.fresh(trial).fault is not None for _ in range(times))

    def unwritten(self, trial: Trial, fault: Fault) -> bool:
        """Whether all that is wrong depends on what new memory holds: with NaN there it differs from that with zeros. Calls are repeated, since a
        result that varies may differ by chance."""
        if not self.bench.fills or fault.kind not in ("values", "lost", "unlike"):
            return False
        zeros, others = (self._filled(trial, fault.subject, fill) for fill in ("zero", "NaN"))
        wrong = fault.distance.wrong if fault.distance is not None and fault.distance.wrong is not None else zeros.isnan() != others.isnan()
        same = (zeros == others) | (zeros.isnan() & others.isnan())
        if memory.same(zeros, others) or wrong.shape != zeros.shape or bool((wrong & same).any()):
            return False
        runs = (("zero", zeros), ("NaN", others))
        return all(memory.same(self._filled(trial, fault.subject, fill), each) for _ in range(AGAIN) for fill, each in runs)

    def _filled(self, trial: Trial, name: str, fill: str) -> torch.Tensor:
        """A result where nothing was run before, with `fill` in new memory. Where the exact result is not finite, it is 0."""
        with self.state.restored():
            found = self.bench.call(trial.but(fill=fill), self.bench.make(trial))[0].values.get(name)
        right = self.bench.of(trial).exact.values.get(name)
        return torch.empty(0) if found is None or right is None or right.shape != found.shape else found.where(right.isfinite(), 0)

    def again(self, trial: Trial, history: list[Trial]) -> bool:
        """Whether the call is wrong again behind the calls of `history`, in their order. `history` ends before the call."""
        calls = history if len(history) <= FIRST + LAST else history[:FIRST] + history[-LAST:]

        def wrong() -> bool:
            done = 0
            with self.state.restored():
                for place, each in enumerate(calls):
                    if done < ENOUGH or place >= len(calls) - 3:
                        self.bench.call(each, self.bench.make(each))
                        done += self.work.of(each)
                return self.bench.judge(trial).fault is not None

        return _mostly(wrong)

    def comes_again(self, trial: Trial, history: list[Trial]) -> bool:
        """Whether the fault comes again behind the same calls, or in calls that share memory. A cache may go by addresses, which differ each time."""
        return self.again(trial, history) or any(self.sequence_again(each) for each in _SEQUENCES)

    def sequence_again(self, sequence: Callable[[Bench], Iterable[Judged]]) -> bool:
        """Whether a sequence of calls has a fault again, from a fresh state or from the present one."""

        def wrong() -> bool:
            return any(each.fault is not None for each in sequence(self.bench))

        def fresh() -> bool:
            with self.state.restored():
                return wrong()

        return _mostly(fresh) or _mostly(wrong)


def _mostly(wrong: Callable[[], bool]) -> bool:
    found = 0
    for left in range(TIMES, 0, -1):
        found += wrong()
        if found == MOST or found + left - 1 < MOST:
            break
    return found == MOST
