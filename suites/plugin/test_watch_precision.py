"""watch_precision: a user's own loop as a test, under each precision, with markers, known failures, reports, self-test and xdist."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from projects import Project

GAN = '''
def test_gan(watch_precision):
    torch.manual_seed(0)
    generator = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to(watch_precision.dtype)
    critic = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(watch_precision.dtype)
    steps = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (generator, critic)]
    scaler = watch_precision.precision.make_scaler()
    with watch_precision() as report:
        for _ in range(2):
            noise, real = torch.randn(16, 8, dtype=watch_precision.dtype), torch.randn(16, 4, dtype=watch_precision.dtype)
            for own, sign in ((steps[1], 1), (steps[0], -1)):
                loss = sign * (critic(generator(noise)).float() - critic(real).float()).mean()
                for each in steps:
                    each.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(own)
                scaler.update()
    assert report.precision == watch_precision.precision.name
    assert report.facts["shadowed"]
'''

ROUNDED = '''
def test_positions(watch_precision):
    with watch_precision(**OPTIONS):
        torch.arange(3000).to(torch.bfloat16).sin()
'''

WARNED = '''
def test_warned(watch_precision, monkeypatch):
    import precheck.judge.watched_runs
    from precheck.findings import Finding
    found = [Finding("headroom", "warning", "close"), Finding("nan", "warning", "odd")]
    monkeypatch.setattr(precheck.judge.watched_runs.RunJudge, "found", lambda self, seen: found)
    with watch_precision():
        torch.ones(4, 4) @ torch.ones(4, 4)
'''

ALLOWED = '@pytest.mark.allow_finding("integer-rounding", reason="known here")'


def test_a_loop_with_two_models_passes_under_each_precision(pytester: pytest.Pytester, project: Project) -> None:
    project(GAN, record=False)
    result = pytester.runpytest_inprocess("--precision=32,bf16,16-mixed,bf16-true,tf32")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["1 check under bf16-true: 1 passed, 0 failed"])


def test_errors_fail_the_test_at_the_end_of_the_block(pytester: pytest.Pytester, project: Project) -> None:
    project("OPTIONS = {}", ROUNDED, record=False)
    result = pytester.runpytest_inprocess("--precision=bf16", "--junitxml=junit.xml")
    result.assert_outcomes(failed=1)
    again = 'to see this again: pytest --precision=bf16-mixed "test_it.py::test_positions[[]bf16-mixed]"'
    result.stdout.fnmatch_lines(["integer-rounding: *", again, "1 check under bf16-mixed: 0 passed, 1 failed"])
    result.stdout.no_fnmatch_line("*watches.py*")
    properties = {each.get("name"): each.get("value") for each in ElementTree.parse(pytester.path / "junit.xml").iter("property")}
    assert properties["precheck_errors"] == "integer-rounding"


@pytest.mark.parametrize(
    ("marker", "outcome", "line"),
    [
        (ALLOWED, {"passed": 1}, "allowed: integer-rounding (known here) in *"),
        ('@pytest.mark.expect_finding("integer-rounding")', {"passed": 1}, "1 check under bf16-mixed: 1 passed, 0 failed"),
        (f"{ALLOWED}\n@pytest.mark.expect_finding('overflow')", {"failed": 1}, "expected overflow, and it found integer-rounding under bf16-mixed*"),
        ('@pytest.mark.precision("16-mixed")', {"skipped": 1}, "*"),
    ],
)
def test_markers(pytester: pytest.Pytester, project: Project, marker: str, outcome: dict[str, int], line: str) -> None:
    project("OPTIONS = {}", f"\n{marker}{ROUNDED}", record=False)
    result = pytester.runpytest_inprocess("--precision=bf16")
    result.assert_outcomes(**outcome)
    result.stdout.fnmatch_lines([line])


def test_what_the_block_allows_is_listed_and_what_nothing_needed_too(pytester: pytest.Pytester, project: Project) -> None:
    project('OPTIONS = {"allow": {"integer-rounding": "on purpose", "overflow": "never"}}', ROUNDED, record=False)
    result = pytester.runpytest_inprocess("--precision=bf16")
    result.assert_outcomes(passed=1)
    idle = "overflow is allowed (never), and was not found in *: leave it out of allow=, unless another precision needs it"
    said = ["allowed: integer-rounding (on purpose) in *", idle]
    result.stdout.fnmatch_lines(said)


def test_an_unknown_rule_is_one_clear_error(pytester: pytest.Pytester, project: Project) -> None:
    project('OPTIONS = {"allow": {"integer-roundin": "on purpose"}}', ROUNDED, record=False)
    result = pytester.runpytest_inprocess("--precision=bf16")
    said = "allow: there is no rule 'integer-roundin'; do you mean integer-rounding?"
    result.stdout.fnmatch_lines([said, "*0 passed, 0 failed, 1 without a verdict"])


def test_a_loop_that_does_not_cast_is_told_what_to_type(pytester: pytest.Pytester, project: Project) -> None:
    project("def test_it(watch_precision):\n    with watch_precision():\n        torch.ones(4, 4) @ torch.ones(4, 4)\n", record=False)
    result = pytester.runpytest_inprocess("--precision=bf16-true")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["nothing in this block is stored in bfloat16, so it did not run under bf16-true*model.to(watch_precision.dtype)*"])


OWN_AUTOCAST = """
def test_it(watch_precision):
    with watch_precision():
        with torch.autocast("cpu", dtype=torch.{}):
            loss = make()(data()).float().square().mean()
        loss.backward()
"""


@pytest.mark.parametrize(("own", "runs", "other", "format"), [("bfloat16", "bf16", "16", "float16"), ("float16", "16", "bf16", "bfloat16")])
def test_a_loop_whose_own_autocast_goes_before_the_fixture_s_has_no_verdict(
    pytester: pytest.Pytester, project: Project, own: str, runs: str, other: str, format: str
) -> None:
    project(OWN_AUTOCAST.format(own), record=False)
    result = pytester.runpytest_inprocess(f"--precision={runs}-mixed,{other}-mixed")
    result.assert_outcomes(passed=1, failed=1)
    said = f"no product of the forward pass ran in {format}, so it did not run under {other}-mixed: it computes in {own}.*"
    result.stdout.fnmatch_lines([f'{said}@pytest.mark.precision("{runs}-mixed")', f"*1 check under {other}-mixed: *1 without a verdict*"])


@pytest.mark.parametrize("precision", ["bf16", "bf16-true", "32-true"])
def test_a_block_in_which_nothing_runs_is_no_verdict(pytester: pytest.Pytester, project: Project, precision: str) -> None:
    project("def test_it(watch_precision):\n    with watch_precision():\n        pass\n", record=False)
    result = pytester.runpytest_inprocess(f"--precision={precision}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["no op of torch ran in this block, so nothing was watched: run the training steps*", "*1 without a verdict"])


def test_what_the_block_raises_is_the_tests_own(pytester: pytest.Pytester, project: Project) -> None:
    project("def test_it(watch_precision):\n    with watch_precision():\n        raise LookupError('mine')\n", record=False)
    result = pytester.runpytest_inprocess("--precision=bf16")
    result.stdout.fnmatch_lines(["E * LookupError: mine", "1 check under bf16-mixed: 0 passed, 0 failed, 1 without a verdict"])
    result.stdout.no_fnmatch_line("*watches.py*")


def test_known_failures(pytester: pytest.Pytester, project: Project) -> None:
    project("OPTIONS = {}", ROUNDED, record=False)
    pytester.runpytest_inprocess("--precision=bf16", "--known-failures-write").assert_outcomes(xfailed=1)
    assert "integer-rounding" in (pytester.path / "precision-known.toml").read_text()
    result = pytester.runpytest_inprocess("--precision=bf16")
    result.assert_outcomes(xfailed=1)
    result.stdout.no_fnmatch_line("*checks that no longer exist*")
    project("OPTIONS = {}", ROUNDED.replace("3000", "100"), record=False)
    pytester.runpytest_inprocess("--precision=bf16", "--known-failures-write").stdout.fnmatch_lines(["*mended*integer-rounding*"])


@pytest.mark.parametrize("options", [(), ("-n1", "-p", "no:hypothesispytest", "-p", "no:benchmark")], ids=["alone", "xdist"])
@pytest.mark.usefixtures("forked_python")
def test_reports_of_a_session(pytester: pytest.Pytester, project: Project, options: tuple[str, ...]) -> None:
    if options:
        pytest.importorskip("xdist")
    project("OPTIONS = {}", ROUNDED, record=False)
    forms = [f"--drift-report={form}:drift.{form}" for form in ("json", "markdown", "sarif")]
    run = pytester.runpytest_subprocess if options else pytester.runpytest_inprocess
    run("--precision=bf16", *forms, *options).assert_outcomes(failed=1)
    (test,) = json.loads((pytester.path / "drift.json").read_text())["tests"]
    assert test["failed"]
    assert test["report"]["precision"] == "bf16-mixed"
    assert "test_it.py:" in (pytester.path / "drift.markdown").read_text()
    (result,) = json.loads((pytester.path / "drift.sarif").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "integer-rounding"


def test_goldens_are_none_of_a_watched_blocks_business(pytester: pytest.Pytester, project: Project) -> None:
    golden = project("OPTIONS = {}", ROUNDED, record=False)
    pytester.runpytest_inprocess("--golden-refresh").assert_outcomes(passed=1)
    assert not golden.exists()


def test_the_self_test_says_of_a_block_whether_it_could_have_failed(pytester: pytest.Pytester, project: Project) -> None:
    idle = "\ndef test_idle(watch_precision):\n    with watch_precision():\n        torch.ones(3) + 1\n"
    project(GAN, idle, record=False)
    result = pytester.runpytest_inprocess("--precision=bf16", "--precheck-selftest")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*no op of the block computes in what bf16-mixed rounds to*", "*1 of these could not have failed"])


def test_a_test_that_passed_with_warnings_says_so(pytester: pytest.Pytester, project: Project) -> None:
    project(WARNED, record=False)
    result = pytester.runpytest_inprocess("--precision=bf16", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_warned[[]bf16-mixed] PASSED (2 warnings)*",
            "1 check under bf16-mixed: 1 passed (1 of them with warnings), 0 failed",
            "passed with 2 warnings: test_it.py::test_warned[[]bf16-mixed]: headroom: close; 1 more warning",
        ]
    )


BROKEN = '''
def test_broken(watch_precision):
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("not today")

    layer = torch.nn.Linear(4, 4)
    scaler = torch.amp.GradScaler("cpu")
    with watch_precision() as report:
        loss = layer(torch.ones(2, 4 if BREAKS == "step" else 3)).sum()
        scaler.scale(loss).backward()
        scaler.step(Broken(layer.parameters(), lr=0.1))
'''


@pytest.mark.parametrize(("breaks", "says"), [("step", "not today"), ("shape", "mat1 and mat2 shapes cannot be multiplied")])
def test_an_error_of_the_user_s_is_shown_without_our_frames(pytester: pytest.Pytester, project: Project, breaks: str, says: str) -> None:
    project(f"BREAKS = {breaks!r}", BROKEN, record=False)
    shown = pytester.runpytest_inprocess("--precision=bf16").stdout.str()
    assert any("RuntimeError: " in line and says in line for line in shown.splitlines())
    assert "precheck/observe" not in shown.replace("\\", "/")
    assert "scaler-order" not in shown


def test_a_call_without_with_fails_since_it_watches_nothing(pytester: pytest.Pytester, project: Project) -> None:
    project("def test_it(watch_precision):\n    watch_precision(torch.nn.Linear(4, 4))\n", record=False)
    result = pytester.runpytest_inprocess("--precision=bf16")
    result.stdout.fnmatch_lines(["watch_precision() was called without `with`, so nothing was watched: write `with watch_precision():`"])
    assert result.ret == 1


def test_without_parentheses_it_says_so(pytester: pytest.Pytester, project: Project) -> None:
    project("def test_it(watch_precision):\n    with watch_precision:\n        torch.ones(2)\n", record=False)
    result = pytester.runpytest_inprocess("--precision=bf16")
    result.stdout.fnmatch_lines(["watch_precision stands in a `with` without its parentheses; write `with watch_precision() as report:`"])
    assert result.ret == 1
