"""`python suites/bench/verdict_costs.py`: what a whole verdict costs, over one low and one float32 step of the same network.

A passing `measure` counts to its report, a failing one to its whole text, the search for a remedy included, as under pytest.
`--profile NAME` shows instead where the time of the networks of that name goes. `--planted` takes the networks of suites/planted
in place of this folder's, each with its first bug, and `--planted=all` with all of its bugs, one after the other.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from costed import NETWORKS, Network

import precheck
from precheck.measurement import job_of
from precheck.observe.listeners import collecting, telling
from precheck.observe.timing.clocks import CpuClock
from precheck.observe.timing.contestant import Contestant, borrowed
from precheck.observe.timing.rounds import interleaved
from precheck.precisions import resolve
from precheck.remedies import curable, searched

PLANTED = Path(__file__).resolve().parents[1] / "planted"
TRIALS = 12
"""What `remedy_trials` is by default."""


def planted(*, all_bugs: bool) -> Iterator[Network]:
    """The networks of suites/planted with their bugs, under the first precision in which each does harm. Loops of the user's own are left out."""
    sys.path.insert(0, str(PLANTED))
    from networks import names, network
    from one_case import arguments

    for found in map(network, names()):
        if not hasattr(found.code(), "step"):
            for bug in found.bugs if all_bugs else found.bugs[:1]:
                code = found.code(bug)
                yield Network(f"{found.name}/{bug.name}", bug.precisions[0], lambda code=code: arguments(code), fails=True)


class Silence:
    """The longest time between two things that a listener is told, in seconds."""

    def __init__(self) -> None:
        self.last, self.longest, self.before = time.perf_counter(), 0.0, ""

    def hears(self, words: str) -> None:
        now = time.perf_counter()
        if now - self.last > self.longest:
            self.longest, self.where = now - self.last, f"after {self.before!r}"
        self.last, self.before = now, words


def steps(network: Network) -> float:
    """Seconds of one low and one float32 step together."""
    job = job_of(**network.make())
    with borrowed(job):
        timings = interleaved([Contestant(job, resolve(name)) for name in (network.precision, "32-true")], CpuClock(), min_rounds=5, max_time=0.5)
    return sum(timing.median for timing in timings)


def verdict(network: Network) -> precheck.Report:
    """As `check_precision` gives it: the report, and where it fails the cure and the text."""
    given = network.make()
    with collecting() as measured:
        report = precheck.measure(**given, precision=network.precision)
    if curable(report):
        job, failed = job_of(**given), measured[-1] if measured else None
        cure = searched(job, resolve(network.precision), report, most=TRIALS, patient=False, failed=failed, parts_only=True)
        report.cure = cure.call if cure else ""
    if report.errors:
        report.summary()
    return report


def row(network: Network) -> tuple[float, str]:
    plain = steps(network)
    verdict(network) if plain < 0.05 else None  # the first use of a kernel, of a module
    silence, begun = Silence(), time.perf_counter()
    with telling(silence.hears):
        report = verdict(network)
        silence.hears("")
    taken = time.perf_counter() - begun
    told = "fails" if report.errors else "passes"
    unlike = "" if bool(report.errors) is network.fails else "  (not as it should be)"
    rules = ", ".join(dict.fromkeys(finding.rule for finding in report.errors))
    return taken / plain, (
        f"{network.name:<26} {network.precision:<11} {told:<7} {taken / plain:7.1f}  "
        f"{plain * 1e3:8.1f} ms {taken:8.2f} s  silent {silence.longest:5.2f} s  {rules}{unlike}"
    )


def profiled(network: Network, lines: int) -> None:
    verdict(network)
    watched = cProfile.Profile()
    watched.runcall(verdict, network)
    for order in ("cumulative", "tottime"):
        pstats.Stats(watched, stream=sys.stdout).sort_stats(order).print_stats(lines)


def main() -> int:
    """0, whatever it costs: a clock decides nothing."""
    parser = argparse.ArgumentParser(prog="python suites/bench/verdict_costs.py", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names and precisions (default: all)")
    parser.add_argument("--profile", type=int, metavar="LINES", help="show where the time goes, in so many lines")
    parser.add_argument("--planted", nargs="?", const="first", choices=("first", "all"), help="networks of suites/planted with bugs")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    networks = planted(all_bugs=asked.planted == "all") if asked.planted else NETWORKS
    chosen = [each for each in networks if all(name in f"{each.name} {each.precision}" for name in asked.names)]
    ratios: dict[bool, list[float]] = {False: [], True: []}
    for network in chosen:
        if asked.profile:
            profiled(network, asked.profile)
            continue
        ratio, words = row(network)
        ratios[network.fails].append(ratio)
        print(words, flush=True)
    told(ratios)
    return 0


def told(ratios: dict[bool, list[float]]) -> None:
    for fails, figures in ratios.items():
        if figures:
            ordered = sorted(figures)
            ninth = ordered[min(len(ordered) - 1, round(0.9 * (len(ordered) - 1)))]
            kind = "failing" if fails else "passing"
            print(f"{kind}: median {statistics.median(ordered):.1f}, p90 {ninth:.1f}, worst {ordered[-1]:.1f} of {len(ordered)}")


if __name__ == "__main__":
    sys.exit(main())
