"""What is held against the budgets: who runs, and whose time or memory over whose makes a ratio."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch
from contenders import RIVALS
from ratios import Call, medians
from sized import GPT, Trained, adamw, loss_of, made

import precheck
from precheck.analysis.noise_floor.noise_sites import noise_for
from precheck.checking import Checking
from precheck.goldens import lifecycle
from precheck.goldens.file import Golden, encode
from precheck.measurement import job_of
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.job import Depth, Job
from precheck.observe.run import run
from precheck.observe.setting import low, reference
from precheck.observe.timing.clocks import Clock
from precheck.precisions import resolve

KINDS = {"bf16-true": {"dtype": torch.bfloat16}, "bf16-mixed": {"autocast": torch.bfloat16}}
NOISE = lifecycle.NOISE_RUNS


def steps_of(millions: int) -> tuple[int, ...]:
    """How long the checks are that are timed: in the first step every module is looked at, in later ones weights alone."""
    return (1, 4) if millions <= 17 else (1,)


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """The time of `over` above `times` × that of all of `under`, and the same of memory, which does not add up over repeats.

    `budget` is the design's, section 7; it is stated for time.
    """

    what: str
    over: str
    under: tuple[str, ...]
    budget: float | None = None
    times: float = 1.0

    def of(self, numbers: dict[str, float]) -> float:
        return numbers[self.over] / sum(numbers[name] for name in self.under)


RATIOS = (
    Ratio("a check of one step, over that step", "check 1", ("plain 1",), 1.15),
    Ratio("a check of four steps, over those", "check 4", ("plain 4",), 1.15),
    Ratio("diagnose, over low + float32", "watched", ("low", "float32"), 1.5),
    Ratio("a check at depth ops, over low + float32", "check at ops", ("low", "float32"), 1.4),
    Ratio(f"recording {NOISE} noise runs, over {1 + NOISE} float32 steps", "noise", ("float32",), 1.3, times=1.0 + NOISE),
    Ratio("diagnose, over low", "watched", ("low",)),
    *(Ratio(f"{rival}, over low", rival, ("low",)) for rival in RIVALS),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """One figure of one size: `value` is to stay below `budget`, where there is one; `memory` is the same ratio of bytes."""

    what: str
    kind: str
    millions: int
    value: float
    budget: float | None = None
    memory: float | None = None

    @property
    def missed(self) -> bool:
        return self.budget is not None and self.value > self.budget


@dataclasses.dataclass(frozen=True, slots=True)
class Contestant:
    """A call, and the bytes that are there before it and that it needs."""

    call: Call
    held: Callable[[], int]


def results(millions: int, kind: str, clock: Clock, *, device: str, rounds: int) -> tuple[list[Result], dict[str, dict[str, float]]]:
    """Every figure of that size, from one run in which all take turns; and the seconds and bytes of each."""
    contestants = contest(millions, kind, device)
    seconds = medians({name: each.call for name, each in contestants.items()}, rounds, clock)
    memory = {name: float(each.held() + clock.peak(each.call)) for name, each in contestants.items()}
    ratios = [ratio for ratio in RATIOS if ratio.over in contestants]
    found = [Result(ratio.what, kind, millions, ratio.of(seconds) / ratio.times, ratio.budget, ratio.of(memory)) for ratio in ratios]
    return [*found, golden(millions, device)], {"seconds": seconds, "memory": memory}


def contest(millions: int, kind: str, device: str) -> dict[str, Contestant]:
    """All that take turns. Whatever watches the low model watches the same one, since a step on it is a step, watched or not."""
    plain, wide = Trained(millions, device=device, **KINDS[kind]), Trained(millions, device=device)
    found = {
        "low": Contestant(plain.step, lambda: plain.held),
        "float32": Contestant(wide.step, lambda: wide.held),
        "watched": Contestant(lambda: watched(plain), lambda: plain.held),
        "check at ops": checked(millions, kind, device, 1, depth="ops"),
        "noise": noise(millions, kind, device),
    }
    for steps in steps_of(millions):
        found[f"plain {steps}"] = Contestant(lambda steps=steps: plain.training(steps), lambda: weights(plain.model))
        found[f"check {steps}"] = checked(millions, kind, device, steps)
    return found | {name: Contestant(rival(plain), lambda: plain.held) for name, rival in RIVALS.items()}


def watched(trained: Trained) -> precheck.Report:
    with precheck.watch(trained.model) as report:
        trained.step()
    return report


def weights(model: GPT) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def job(millions: int, device: str, *, steps: int = 1) -> Job:
    model, ids = made(millions, device)
    return job_of(model, ids, loss=loss_of(ids), optimizer=adamw, steps=steps)


@functools.cache
def recorded(millions: int, device: str, steps: int) -> tuple[Job, Golden]:
    """The golden of so many steps, which serves all precisions."""
    asked = job(millions, device, steps=steps)
    return asked, lifecycle.record(asked)


def checked(millions: int, kind: str, device: str, steps: int, *, depth: Depth = "boundaries") -> Contestant:
    """The whole of a check, from inputs to verdict, beside a golden that has been read; autocast is CUDA's, as by default."""
    (asked, kept), precision = recorded(millions, device, steps), resolve(kind)
    return Contestant(lambda: Checking(asked, precision, kept, depth=depth).report("a golden"), lambda: weights(asked.model))


def noise(millions: int, kind: str, device: str) -> Contestant:
    """The reference and the noise runs from which a golden's floors are made."""
    asked, precision, log = lifecycle.thinned(job(millions, device)), resolve(kind), DecisionLog()
    seen = run(asked, low(precision, records=log))

    def recording() -> None:
        run(asked, reference(torch.float32, precision, follows=log))
        for number in range(NOISE):
            disturbance = noise_for(asked.model, seen, log, precision, seed=number + 1)
            run(asked, reference(torch.float32, precision, follows=log, disturbance=disturbance))

    return Contestant(recording, lambda: weights(asked.model))


def golden(millions: int, device: str) -> Result:
    """Of forward and gradients, without what an optimizer did: its bytes are on disk, not in memory, and no ratio."""
    _, kept = recorded(millions, device, 1)
    records = [each for each in kept.records if each.record.kind != "update"]
    return Result("golden: KB a tensor", "any", millions, len(encode(Golden(records, kept.provenance))) / 1000 / len(records), 0.6)
