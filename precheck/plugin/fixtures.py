"""Defines the fixtures `precision`, `precision_device`, `check_precision`, `watch_precision`, `check_parity`, `check_invariance`,
`check_kernel` and `gpu_benchmark`.

torch is imported when a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from precheck.plugin.markers import restricted
from precheck.plugin.settings import KEY
from precheck.precisions import Precision, PrecisionError, resolve

if TYPE_CHECKING:
    import torch

    from precheck.plugin.checks import CheckPrecision
    from precheck.plugin.pairs import CheckInvariance, CheckKernel, CheckParity
    from precheck.plugin.watches import WatchPrecision

WITHOUT_GOLDENS = frozenset({"watch_precision", "check_parity", "check_invariance", "check_kernel"})


@pytest.fixture(scope="session")
def precision(request: pytest.FixtureRequest) -> Precision:
    """The precision of this test: one after the other of those in --precision (32-true if none is given).

    Of session scope, so that it is safe under hypothesis' @given. `.name`, `.compute_dtype`, `.param_dtype`, `.autocast()`, …
    """
    settings = request.config.stash[KEY]
    return _resolved(getattr(request, "param", settings.precisions[0]), request.config)


def _resolved(value: Any, config: pytest.Config) -> Precision:
    """Resolves a precision. It may be a name, if the test parametrizes `precision` or the user overrides the fixture."""
    __tracebackhide__ = True
    try:
        return resolve(value, policy=config.stash[KEY].policy)
    except PrecisionError as error:
        message = str(error)
    pytest.fail(message, pytrace=False)


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Parametrizes a test that uses `precision`, directly or by a fixture, with the run's precisions that its markers allow."""
    if "precision" not in metafunc.fixturenames or _given_otherwise(metafunc):
        return
    settings = metafunc.config.stash[KEY]
    wanted, reason = list(settings.precisions), ""
    if not settings.refresh:  # goldens are recorded in float32 in any case
        wanted, reason = restricted(metafunc.definition, settings.precisions)
    chosen: list[Any] = wanted or [pytest.param(settings.precisions[0], marks=pytest.mark.skip(reason=reason))]
    names = [each.name for each in wanted] or [settings.precisions[0].name]
    metafunc.parametrize("precision", chosen, ids=names, indirect=True, scope="session")


def _given_otherwise(metafunc: pytest.Metafunc) -> bool:
    """Whether the test parametrizes `precision` itself, or uses a user's fixture of that name that does not use the plugin's."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", "")
        if "precision" in ([name.strip() for name in names.split(",")] if isinstance(names, str) else names):
            return True
    for definition in reversed(metafunc._arg2fixturedefs.get("precision", ())):
        if definition.func.__module__ == __name__:
            return False
        if "precision" not in definition.argnames:
            return True
    return False


def warn(item: pytest.Item, *, checked: bool) -> None:
    """Warns of a passed test that asks for a checking fixture and never calls it: it passes whatever the model does, and looks like a check. Also of
    a test of unittest, which pytest runs once, however many precisions were asked for."""
    asked = sorted(_asked(item) & {"check_precision", *WITHOUT_GOLDENS})
    first, *others = (each.name for each in item.config.stash[KEY].precisions)
    if asked and not checked:
        item.warn(pytest.PytestWarning(f"this test asks for {' and '.join(asked)}, and made no check: precheck has judged nothing in it"))
    if checked and others and isinstance(item, pytest.Function) and hasattr(item.cls, "assertEqual"):
        rest = f"pytest --precision={','.join(others)}"
        item.warn(pytest.PytestWarning(f"pytest runs a test of unittest once, so this one was judged under {first} alone; for the others: {rest}"))


def _asked(item: pytest.Item) -> set[str]:
    """The fixtures that the arguments of a test name, and those that these use. An autouse fixture is not asked for by each test of its class."""
    info: Any = getattr(item, "_fixtureinfo", None)
    waiting, found = list(info.argnames) if info is not None else [], set[str]()
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting += [each for made in info.name2fixturedefs.get(name, ())[-1:] for each in made.argnames if each not in found]
    return found


@pytest.fixture(scope="session")
def precision_device(request: pytest.FixtureRequest) -> torch.device:
    """The torch.device of --precision-device; `auto` is the first CUDA device if there is one, else the CPU."""
    import torch

    name = request.config.stash[KEY].device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


@pytest.fixture
def check_precision(request: pytest.FixtureRequest, precision: Precision | str) -> CheckPrecision:
    """check_precision(model, inputs, *, loss=None, optimizer=None, steps=1, seed=0, depth=None, allow=None) -> Report.

    Runs the model under the test's precision, compares it with the golden of this test, and fails the test if there are errors.
    `inputs` is a tensor (one argument), a tuple (positional arguments) or a dict (keyword arguments). `loss` takes the model's output
    and returns a scalar; without it only the forward pass runs. `optimizer` takes parameters and returns an optimizer, as the classes
    of torch.optim do. The model comes back as it was. `allow` turns the errors of a rule into notes, which give your reason:
    allow={"lost-update": "the reason"}.
    """
    from precheck.plugin.checks import CheckPrecision

    return CheckPrecision(request.node, _resolved(precision, request.config))


@pytest.fixture
def watch_precision(request: pytest.FixtureRequest, precision: Precision | str) -> Iterator[WatchPrecision]:
    """with watch_precision(model=None, *, allow=None) as report: a whole loop of your own, with any number of models and optimizers.

    Watches the block under the test's precision, op by op beside float32, and fails the test at its end if there are errors. Under
    *-mixed the block runs under autocast, under tf32 and fp8 with emulated rounding:

        def test_gan(watch_precision):
            with watch_precision():
                for real in batches:
                    train_discriminator(real)
                    train_generator()

    Under bf16-true, 16-true and bf16-master your loop casts its own weights, to `watch_precision.dtype`, which is float32 elsewhere.
    Under 16-mixed `watch_precision.precision.make_scaler()` is the GradScaler to use, which does nothing elsewhere:

        generator = Generator().to(watch_precision.dtype)
        scaler = watch_precision.precision.make_scaler()

    Findings name modules as `model` does; without it, as the first module with children that runs. `allow` is as in check_precision. There is
    no golden.
    """
    from precheck.plugin.watches import WatchPrecision

    watching = WatchPrecision(request.node, _resolved(precision, request.config))
    yield watching
    watching.at_end()


@pytest.fixture
def check_parity(request: pytest.FixtureRequest, precision: Precision | str) -> CheckParity:
    """check_parity(model, other, inputs, *, loss=None, optimizer=None, steps=1, seed=0, match=None, allow=None) -> Report.

    Runs both on the same inputs and random numbers under the test's precision. The test fails if `other` computes another function than `model`, or
    if `other` has more error than rounding explains and `model` has not:

        def test_port(check_parity):
            check_parity(original, port, tokens, loss=lambda out: out.logits.float().mean(), match={"h": "layers"})

    `match` maps names of other to names of model, if names and weights do not match them. The verdict is `report.verdict`: "bitwise",
    "rounding", "less accurate", "different" or "undecidable". There is no golden; both come back as they were.
    """
    from precheck.plugin.pairs import CheckParity

    return CheckParity(request.node, _resolved(precision, request.config))


@pytest.fixture
def check_invariance(request: pytest.FixtureRequest, precision: Precision | str) -> CheckInvariance:
    """check_invariance(model, inputs, over=None, *, loss=None, reduction="mean", step=None, seed=0, allow=None) -> Report.

    Runs the model in ways that should give the same result, under the test's precision. The test fails if they differ by more than rounding
    explains:

        def test_decoding(check_invariance):
            check_invariance(model, {"input_ids": tokens}, over=("batch", "padding", "cache", "prefill"))

    The ways: repeat, order, batch, microbatches, padding, cache, prefill, position, threads, checkpointing, dropout, packing, ranks; or a
    dict of them with amounts, over={"padding": 8}. `step(model, tokens, state)` decodes where a model has no past_key_values. There is no golden.
    """
    from precheck.plugin.pairs import CheckInvariance

    return CheckInvariance(request.node, _resolved(precision, request.config))


@pytest.fixture
def check_kernel(request: pytest.FixtureRequest) -> CheckKernel:
    """check_kernel(candidate, reference, inputs, *, precision=None, gradients=True, sizes=None, budget=None, trials=None, ...) -> Report.

    Judges a kernel beside the function that it should compute, on other inputs like the example, and fails the test where it is wrong:

        def test_softmax(check_kernel):
            check_kernel(my_softmax, torch.nn.functional.softmax, {"input": torch.randn(8, 64), "dim": -1})

    The class of the fault is the rule of the finding: kernel-edge, kernel-stride, kernel-accumulation, … Inputs keep their formats unless
    `precision` says otherwise: the test does not run once for each of --precision. `trials` is the most trials; without it they take as many
    seconds of the processor as `budget` says, 20 by default. `speed` and `allow` are those of `compare_kernels`.
    """
    from precheck.plugin.pairs import CheckKernel

    return CheckKernel(request.node, _resolved("32-true", request.config))


NO_BENCHMARK = "gpu_benchmark needs pytest-benchmark, which is not loaded: pip install pytest-benchmark, or leave -p no:benchmark out"


class WithoutBenchmark:
    """The fixture `gpu_benchmark` without pytest-benchmark. Otherwise it is that of precheck.plugin.benchmark."""

    @pytest.fixture
    def gpu_benchmark(self) -> None:
        """gpu_benchmark(model, inputs, ...): speed, memory and error under each precision; needs pytest-benchmark."""
        pytest.fail(NO_BENCHMARK, pytrace=False)
