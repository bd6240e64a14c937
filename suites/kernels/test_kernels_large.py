"""Large examples are tried in smaller shapes; and what the reference's own error says of a candidate's."""

from __future__ import annotations

import pytest
import torch
from sets import REWRITES_BY_NAME

import precheck
from precheck.kernels import causes, dimensions, examples, noise, reduced_example, trials
from precheck.kernels.bench import MOST, Bench
from precheck.kernels.running import Wishes
from precheck.kernels.trials import Trial
from precheck.observe.listeners import telling


def bench(candidate: object, reference: object, inputs: object) -> Bench:
    example = examples.read(inputs, None, True)[0]
    return Bench(candidate, reference, example, dimensions.of(example), Wishes())  # type: ignore[arg-type]


def chosen(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return x.gather(-1, ids[:, None])[:, 0]


def test_a_large_example_becomes_smaller_and_stays_what_it_is() -> None:
    x, ids = torch.randn(512, 1024), torch.randint(0, 1024, (512,))
    small = reduced_example.smaller(bench(chosen, chosen, (x, ids)), None)
    assert small is not None
    columns, places = (leaf.tensor for leaf in small.example.leaves)
    assert columns.numel() <= reduced_example.ENOUGH
    assert len(places) == len(columns)
    assert len(set(columns.shape)) == 2  # which would vary together if they were equal
    assert int(places.max()) < columns.shape[1]
    assert reduced_example.smaller(bench(chosen, chosen, (x[:8], ids[:8])), None) is None


def test_a_size_that_has_to_stay_stays() -> None:
    def heads(x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != 768:
            raise ValueError(f"{x.shape[-1]} columns: 768 are needed")
        return x.softmax(-1)

    small = reduced_example.smaller(bench(heads, heads, torch.randn(900, 768)), None)
    assert small is not None
    assert small.example.leaves[0].tensor.shape[0] < 900


@pytest.mark.parametrize(("affordable", "most"), [(True, 2**24), (False, 2**24), (True, 2**16)])
def test_the_example_is_judged_as_it_is_too_where_that_can_be_borne(monkeypatch: pytest.MonkeyPatch, affordable: bool, most: int) -> None:
    monkeypatch.setattr(reduced_example, "WHOLE", most)
    monkeypatch.setattr(causes, "PATIENCE", 1.0)
    monkeypatch.setattr(reduced_example, "_seconds", lambda bench: 0.0 if affordable else float(bench.example.leaves[0].tensor.numel()) ** 9)

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1 if x.shape == (161, 512) else x * 2

    x = torch.randn(161, 512, generator=torch.Generator().manual_seed(0))
    report = precheck.compare_kernels(wrong, lambda x: x + x, x, budget=1, trials=5)
    affordable = affordable and x.numel() <= most
    assert [finding.rule for finding in report.errors] == (["kernel-contract"] if affordable else [])
    assert all("(161, 512)" in finding.message for finding in report.errors)
    assert ("example_in_smaller_shapes_alone" in report.facts) is not affordable
    assert not affordable or not precheck.compare_kernels(lambda x: x * 2, lambda x: x + x, x, budget=1, trials=5).errors


@pytest.mark.parametrize("late", [True, False])
def test_kinds_of_inputs_for_which_no_time_was_left_are_named(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    monkeypatch.setattr("precheck.kernels.session.Session.late", lambda session: late)
    report = precheck.compare_kernels(lambda x: x * 2, lambda x: x + x, torch.randn(2, 3), gradients=False)
    named = {"from call to call", "other layouts", "Inf and NaN", "other sizes", "long sums"}
    assert set(report.facts.get("not_tried", [])) == (named if late else set())


def test_who_looks_on_is_told_of_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precheck.observe.listeners.SILENCE", 0.0)
    heard: list[str] = []
    with telling(heard.append):
        precheck.compare_kernels(lambda x: x * 2, lambda x: x + x, torch.randn(3, 4), trials=20)
    assert "judging the kernel: in the example's shapes, at trial 2" in heard


def test_attention_may_begin_its_backward_pass_from_the_stored_result() -> None:
    """As torch's own does: the noise of the product behind the softmax's gradient has both of its operands as they were stored."""
    pair = REWRITES_BY_NAME["attention, derived from its result"]
    inputs = tuple(torch.randn(2, 8, 48, 64, generator=torch.Generator().manual_seed(place)).bfloat16() for place in range(3))
    judged = bench(pair.candidate, pair.reference, inputs).judge(Trial(seed=0, family="offset"))
    assert judged.fault is None, judged.fault

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 1.25

    wrong = bench(lambda q, k, v: pair.candidate(q, Twice.apply(k), v), pair.reference, inputs)
    assert wrong.judge(Trial(seed=4)).fault is not None


def test_terms_that_are_equal_round_alike_in_a_chain() -> None:
    drawn = torch.randn(3, 400, generator=torch.Generator().manual_seed(0))
    assert noise._repeats_along(drawn, 1) == 1
    assert noise._repeats_along(drawn[:, :4].repeat(1, 100), 1) == pytest.approx(10)
    assert noise._repeats_along(torch.ones(3, 400), 1) == pytest.approx(20)
    assert noise._repeats_along(torch.ones(0, 400), 1) == 1


def test_a_reference_runs_on_an_example_beyond_the_limit_once_and_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradients, and whether it draws random numbers, are looked for in smaller shapes: they take the memory of several runs."""
    monkeypatch.setattr(reduced_example, "WHOLE", 2**17)
    x, calls = torch.randn(520, 300, generator=torch.Generator().manual_seed(3)), []

    def reference(x: torch.Tensor, p: float = 0.0) -> torch.Tensor:
        calls.append((x.numel(), x.requires_grad))
        return torch.nn.functional.dropout(x.tanh(), p)

    report = precheck.compare_kernels(lambda x, p=0.0: x.tanh(), reference, x, trials=10)
    assert report.facts["example_in_smaller_shapes_alone"]
    assert [asked for numel, asked in calls if numel == x.numel()] == [False]
    assert any(asked for _, asked in calls)
    with pytest.raises(precheck.InputError, match="random"):
        precheck.compare_kernels(lambda x, p: x.tanh(), reference, (x, 0.5), trials=10)


def test_a_reference_that_refuses_an_example_beyond_the_limit_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduced_example, "WHOLE", 2**17)

    def reference(x: torch.Tensor) -> torch.Tensor:
        if len(x) > 500:
            raise RuntimeError("too many rows")
        return x.tanh()

    with pytest.raises(precheck.InputError, match="too many rows"):
        precheck.compare_kernels(torch.tanh, reference, torch.zeros(520, 300), trials=10)


def test_sizes_that_only_fit_together_are_no_larger_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four rows of six columns and twelve numbers, 65 538 numbers would take 21 846 rows of 32 769 columns."""

    def halves(codes: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if codes.dim() != 2 or x.shape != (2 * codes.shape[1],):
            raise ValueError("two numbers are needed for each column")
        return codes.repeat_interleave(2, 1).to(x.dtype) @ x

    made, of = [], trials.trial_inputs
    monkeypatch.setattr(trials, "trial_inputs", lambda *given, **named: made.append(given[1].elements(dict(given[2].sizes))) or of(*given, **named))
    judging = bench(halves, halves, (torch.ones(4, 6, dtype=torch.int64), torch.linspace(-1, 1, 12)))
    taken = judging.takes(Trial(sizes=(("=12", 120),)))
    assert taken is not None
    assert dict(taken.sizes) == {"=4": 40, "=6": 60, "=12": 120}
    assert judging.takes(Trial(sizes=(("=12", 65_538),))) is None
    assert max(made) <= MOST
