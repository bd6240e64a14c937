"""The closer look: which noise runs are made, and that those which are not could have changed nothing."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import precheck
from precheck import measurement
from precheck.analysis.noise_floor import noise
from precheck.analysis.noise_floor.drift import UNDETERMINED, ComparedTensor
from precheck.measurement import Measurement, job_of
from precheck.observe.records import Record
from precheck.observe.run import run
from precheck.observe.setting import Setting
from precheck.precisions import resolve
from precheck.shared_runs.closer_look import CloserLook, _innocent, certain, is_early, settled


class Cancels(nn.Module):
    """Its mean of squares less a squared mean loses all digits in a low format."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = x + 30
        return ((shifted * shifted).mean(-1, keepdim=True) - shifted.mean(-1, keepdim=True) ** 2) * x


class Ranked(nn.Module):
    """Which elements it keeps is decided by differences that a low format does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = (x * 1e-3 + 1).argsort(-1)
        return x.gather(-1, order[:, :16])


class OneNumber(nn.Module):
    """Its only result is a mean whose digits a low format does not have. Few noise runs say little of one number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x + 30).square().mean() - (x + 30).mean().square()).float()


class Coarse(torch.autograd.Function):
    """Its gradient is half as large again in a low format."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1.5 if gradient.dtype is torch.bfloat16 else gradient


class CoarseBackward(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Coarse.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def squared(output: torch.Tensor) -> torch.Tensor:
    return output.float().square().mean()


def model(*middle: nn.Module) -> dict[str, Any]:
    torch.manual_seed(0)
    return {"model": nn.Sequential(nn.Linear(48, 48), *middle, nn.Linear(48, 8)), "inputs": torch.randn(64, 48), "loss": squared}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What kind of noise each disturbed run of a measurement has, and whether it ends with the loss."""
    kinds: list[str] = []

    def told(job: Any, setting: Setting) -> Any:
        disturbance: Any = setting.disturbance
        if disturbance is not None and not setting.module_inputs:
            kind = "every op" if disturbance.everywhere else "chained" if disturbance.chained else "plain"
            kinds.append(f"{kind}, early" if setting.early else kind)
        return run(job, setting)

    monkeypatch.setattr(measurement, "run", told)
    return kinds


def test_a_healthy_model_takes_one_noise_run(made: list[str]) -> None:
    report = precheck.measure(**model(nn.GELU()), precision="bf16-true")
    assert report.findings == []
    assert made == ["plain"]
    assert report.facts["noise_runs"] == 1


def test_an_error_of_the_forward_pass_takes_no_more_backward_passes(made: list[str]) -> None:
    report = precheck.measure(**model(Cancels()), precision="bf16-true")
    assert report.errors[0].module == "1"
    assert made == ["plain", "plain", "chained, early", "chained, early"]
    assert report.facts["unasked"]
    assert all("gradient" in key for key in report.facts["unasked"])
    assert f"; {sum(row.failed for row in report.boundaries) - 1} more tensors too" in report.errors[0].message


class Positions(nn.Module):
    """Whole numbers up to 400 in the format of its input. Little of their error reaches its result."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1e-6 * torch.arange(400, dtype=x.dtype).cos().mean()


def test_an_error_of_an_op_in_the_forward_pass_leaves_gradients_unasked(made: list[str]) -> None:
    """No boundary shows it, and a gradient is off as well. Without it, that gradient takes closer runs of every op."""
    report = precheck.measure(**model(Positions(), CoarseBackward()), precision="bf16-true")
    assert [error.rule for error in report.errors] == ["integer-rounding"]
    assert report.facts["unasked"]
    assert not any("every op" in kind for kind in made)
    assert "gradient of module 0" not in report.summary().partition("worst tensors")[0]
    made.clear()
    report = precheck.measure(**model(CoarseBackward()), precision="bf16-true")
    assert "accumulated-drift" in [error.rule for error in report.errors]
    assert any("every op" in kind for kind in made)


def test_flips_that_are_too_many_for_few_noise_runs_take_no_more(made: list[str]) -> None:
    torch.manual_seed(0)
    ranked = nn.Sequential(nn.Linear(48, 48), Ranked())
    report = precheck.measure(ranked, torch.randn(64, 48), loss=squared, precision="bf16-true", depth="boundaries")
    assert [error.rule for error in report.errors] == ["decision-flip"]
    assert made.count("plain") == report.facts["noise_runs"] == 2


def test_a_single_number_is_told_by_more_forward_passes(made: list[str]) -> None:
    torch.manual_seed(0)
    given = {"model": nn.Sequential(nn.Linear(48, 48), OneNumber()), "inputs": torch.randn(64, 48), "loss": lambda out: out}
    report = precheck.measure(**given, precision="bf16-true", depth="boundaries")
    assert (report.errors[0].rule, report.errors[0].module) == ("accumulated-drift", "1")
    assert made.count("plain") == 2
    assert made.count("plain, early") == 6
    assert "every op" not in made


def test_an_error_of_the_backward_pass_is_asked_all(made: list[str]) -> None:
    report = precheck.measure(**model(CoarseBackward()), precision="bf16-true", depth="boundaries")
    assert (report.errors[0].phase, report.errors[0].rule) == ("backward", "accumulated-drift")
    # "every op" has the roundings inside modules in it; eight plain runs, since two do not show what rounding does once in a while
    assert made == ["plain", "every op", "plain", "every op", *["plain"] * 6]
    assert "unasked" not in report.facts


def test_a_run_that_ends_with_the_loss_has_of_the_forward_pass_what_a_whole_one_has() -> None:
    given = model(nn.GELU())
    it = Measurement(job_of(given.pop("model"), given.pop("inputs"), **given, optimizer=torch.optim.Adam, steps=2), resolve("bf16-true"))
    it._make_reference()
    for chained in (False, True):
        whole, early = (it._noise_run(7, chained=chained, early=each) for each in (False, True))
        assert early.records.keys() == {key for key, record in whole.records.items() if is_early(record)}
        assert all(numpy.array_equal(record.sketch, whole.records[key].sketch) for key, record in early.records.items())


def row(drift: float, own: float, *errors: float, kind: Any = "output", numel: int = 4000, result: bool = False, norm: float = 1e3) -> ComparedTensor:
    """Of a drift beside its own rounding and the errors of noise runs."""
    record = Record(kind, "a", 1, (numel,), "bfloat16", numpy.zeros(127), norm, amax=1.0)
    record.is_result = result
    floor = math.sqrt(own**2 + sum(error**2 for error in errors) / len(errors))
    return ComparedTensor(record, record, drift, floor, noise.allowed(record.numel, len(errors)))


class Noises:
    """Makes no runs: says what was asked of it, and finds what two noise runs have found."""

    brief = False

    def __init__(self, rows: list[ComparedTensor], sums: dict[str, tuple[str, str]] | None = None) -> None:
        self.rows, self.asked, self.sums = rows, list[str](), sums or {}

    def added_up(self) -> dict[str, tuple[str, str]]:
        return self.sums

    def chained(self, count: int, *, everywhere: bool, early: bool) -> list[ComparedTensor]:
        self.asked.append(f"{count} of every op" if everywhere else f"{count} chained")
        return self.rows

    def narrowed(self, rows: list[ComparedTensor], *, early: bool) -> list[ComparedTensor]:
        self.asked.append("narrower floors")
        return rows

    def contradicted(self, rows: dict[str, ComparedTensor], *, early: bool) -> set[str]:
        self.asked += ["float64"] * bool(rows)
        return set()


@pytest.mark.parametrize(
    ("kind", "numel", "drift", "asked"),
    [
        ("output", 4000, 2.9, []),  # whatever more runs say, it is no error
        ("parameter-gradient", 4000, 2.9, []),
        ("output", 4000, 3.1, ["2 chained", "4 chained", "float64", "narrower floors"]),
        ("output", 1, 25.0, ["2 chained", "4 chained", "float64", "narrower floors"]),  # by eight runs, a number may be 20 floors off
    ],
)
def test_what_is_within_its_limit_takes_no_look(kind: str, numel: int, drift: float, asked: list[str]) -> None:
    found = row(drift, 0.0, 1.0, 1.0, kind=kind, numel=numel)
    noises = Noises([found])
    looked = CloserLook(noises, [found], settled=False, halting=False)
    looked.taken({})
    assert list(dict.fromkeys(noises.asked)) == asked
    assert looked.explained == set()


@pytest.mark.parametrize(
    ("kind", "closer", "asked", "explained"),
    [
        ("parameter-gradient", 2.0, ["1 of every op"], True),  # 4 floors of the noise run, 2 of the closer one
        ("output", 2.0, ["1 chained"], True),
        ("output", 1.8, ["1 chained"], True),  # 2.2, and 2.8 at most by two closer runs
        ("output", 1.6, ["1 chained"], False),  # 2.5: another closer run may show that it is beyond its limit
        ("parameter-gradient", 9.0, ["1 of every op"], False),  # a floor as large as that may be a stroke of luck
        ("output", math.inf, ["1 chained"], False),
    ],
)
def test_one_closer_run_explains_what_one_noise_run_leaves_open(kind: str, closer: float, asked: list[str], explained: bool) -> None:
    result, before = row(0.0, 0.0, 1.0, result=True), row(4.0, 0.0, 1.0, kind=kind)
    after = dataclasses.replace(row(4.0, 0.0, closer, kind=kind), floor_unknown=math.isinf(closer))
    noises = Noises([result, after])
    looked = CloserLook(noises, [result, before], settled=False, halting=False)
    assert looked.at_once() is explained
    assert noises.asked == asked
    assert looked.explained == ({before.record.key} if explained else set())
    if explained:
        looked.taken({})
        assert noises.asked == asked  # no more is asked


def test_a_run_that_fails_by_an_op_asks_about_its_forward_pass_only() -> None:
    output, gradient = row(9.0, 0.0, 1.0, 1.0), row(9.0, 0.0, 1.0, 1.0, kind="parameter-gradient")
    noises = Noises([output, gradient])
    looked = CloserLook(noises, [output, gradient], settled=True, halting=True, fails=True)
    looked.taken({gradient.record.key: gradient})
    assert looked.unasked == {gradient.record.key}
    assert not any("every op" in asked for asked in noises.asked)


def test_a_result_that_rounding_may_drown_takes_another_noise_run() -> None:
    noises = Noises([])
    assert not CloserLook(noises, [row(400.0, 1.0, 400.0, result=True, norm=1e3)], settled=False, halting=False).at_once()
    assert noises.asked == []


@pytest.mark.parametrize(
    ("terms", "output", "closer", "explained"),
    [(1.0, 1.0, 1.0, True), (2.1, 1.0, 1.0, False), (1.0, 2.1, 1.0, False), (4.0, 1.0, 2.0, True), (4.0, 1.0, 1.1, False)],
)
def test_a_sum_that_autograd_takes_of_right_terms_is_explained(terms: float, output: float, closer: float, explained: bool) -> None:
    """Its terms are right up to the limit of a warning or by closer runs, whose floor is `closer`, and so are the places over which it is taken."""
    kinds = [("parameter-gradient", "gate.bias", 9.0, 1.0), ("gradient", "gate", terms, closer), ("output", "gate", output, 1.0)]

    def made(*, closer: bool) -> list[ComparedTensor]:
        found = [(name, row(drift, 0.0, *2 * [floor if closer else 1.0], kind=kind)) for kind, name, drift, floor in kinds]
        return [dataclasses.replace(each, record=dataclasses.replace(each.record, name=name)) for name, each in found]

    noises = Noises(made(closer=True), {"parameter-gradient:gate.bias@1": ("gradient:gate@1", "output:gate@1")})
    looked = CloserLook(noises, made(closer=False), settled=True, halting=False)
    looked.taken({})
    assert ("parameter-gradient:gate.bias@1" in looked.explained) is explained


@pytest.mark.parametrize("numel", [1, 3, 30, 4000])
@pytest.mark.parametrize("first", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("drift", [0.5, 1.0, 1.5, 2.2, 4.0, 30.0])
def test_what_is_settled_by_one_noise_run_is_no_error_whatever_another_says(drift: float, first: float, numel: int) -> None:
    result = row(0.0, 1.0, first, result=True)
    both = [row(drift, 1.0, first, second, numel=numel) for second in (0.0, 0.3 * first, first, 10 * first)]
    if settled([result, row(drift, 1.0, first, numel=numel)]):
        assert not any(each.failed or each.r > noise.allowed(numel, noise.MOST) for each in both)
    else:
        assert row(drift, 1.0, first, numel=numel).r * math.sqrt(2) > noise.WARN


def test_nothing_is_settled_without_a_result_or_where_rounding_may_drown_it() -> None:
    assert settled([row(0.0, 1.0, 1.0, result=True)])
    assert not settled([row(0.0, 1.0, 1.0)])
    assert not settled([row(400.0, 1.0, 400.0, result=True, norm=1e3)])


@pytest.mark.parametrize("numel", [1, 2, 8, 30, 4000])
def test_a_result_that_rounding_drowns_is_settled_once_in_a_thousand_times_at_most(numel: int) -> None:
    """Of 100 000 results whose rounding is as large as may be before they are drowned, drawn with the errors of one noise run and of the run."""
    draws = numpy.random.default_rng(0).chisquare(numel, (2, 100_000)) / numel
    noisy, off = (numpy.sqrt(each) * UNDETERMINED * 1e3 for each in draws)
    passed = sum(
        settled([row(float(drift), 1e-6, float(first), result=True, norm=1e3, numel=numel)])
        for first, drift in zip(noisy[:20_000], off[:20_000], strict=True)
    )
    assert passed <= 40  # 20 on average
    assert settled([row(8.0, 1e-6, 8.0, result=True, norm=1e3, numel=numel)])


@pytest.mark.parametrize("numel", [1, 3, 30, 4000])
@pytest.mark.parametrize("drift", [3.5, 6.0, 9.0, 13.0, 50.0])
def test_what_certainly_fails_does_so_beside_any_runs_that_luck_allows(drift: float, numel: int) -> None:
    luck = noise.allowed(numel, 2) / 1.5
    if certain([row(drift, 0.1, 1.0, 1.0, numel=numel, result=True)], 2, 8):
        assert row(drift, 0.1, 1.0, 1.0, *[luck] * 6, numel=numel, result=True).failed
    assert not certain([row(2.9, 1e-3, 1.0, 1.0, numel=numel, result=True)], 2, 8)


def test_of_what_nobody_gets_only_plain_drift_is_certain() -> None:
    assert certain([row(8.0, 0.1, 1.0, 1.0, result=True)], 2, 8)
    assert not certain([row(8.0, 0.1, 1.0, 1.0)], 2, 8)
    assert certain([row(20.0, 0.1, 1.0, 1.0)], 2, 8)


def test_closer_runs_explain_by_what_they_add_to_noise_runs() -> None:
    """Of one number, four runs allow 74 times their floor and eight runs 14 times. Four closer runs with the same floor as eight noise runs show no
    rounding inside modules, and explain nothing. Where they do show some, their own limit holds for it."""
    before = row(20.0, 1.0, *[0.0] * 8, numel=1)
    alike, larger = row(20.0, 1.0, *[0.0] * 4, numel=1), row(20.0, 1.0, *[1.0] * 4, numel=1)
    assert before.failed
    assert not alike.failed
    assert not _innocent(alike, before)
    assert _innocent(larger, before)
