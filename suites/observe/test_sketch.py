"""The sketch follows its definition, spreads as theory says, and does not depend on what must not change it."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precheck.observe.recording import sketch as sketches
from precheck.observe.recording.sketch import WIDTH, Folding, distance, fold, inner, sketch

BLOCK = WIDTH * WIDTH
SPREAD = 1 / math.sqrt(2 * WIDTH)  # theoretical relative standard deviation of a distance, 0.063
TRIALS = 400

brief = settings(max_examples=40, deadline=None, database=None)
sizes = st.integers(0, 3 * BLOCK) | st.sampled_from((0, 1, 126, 127, 128, BLOCK - 1, BLOCK, BLOCK + 1))


def bits(name: str, rows: int) -> numpy.ndarray:
    """The sign table of that name, bit by bit from the definition."""
    stream = hashlib.shake_256(f"precheck sketch {name}".encode()).digest((rows * WIDTH + 7) // 8)
    signs = [1 if stream[n // 8] >> (7 - n % 8) & 1 else -1 for n in range(rows * WIDTH)]
    return numpy.array(signs).reshape(rows, WIDTH)


def by_definition(values: numpy.ndarray, *, signs: bool = True) -> numpy.ndarray:
    """The sketch element by element: i = (m * 127 + r) * 127 + c goes to number c with the sign T[r, c] V[m, r] W[m, c]."""
    if not signs:
        return numpy.bincount(numpy.arange(len(values)) % WIDTH, weights=values, minlength=WIDTH)
    blocks = len(values) // BLOCK + 1
    t, v, w = bits("T", WIDTH), bits("V", blocks), bits("W", blocks)
    rows, c = numpy.divmod(numpy.arange(len(values)), WIDTH)
    m, r = numpy.divmod(rows, WIDTH)
    return numpy.bincount(c, weights=values * t[r, c] * v[m, r] * w[m, c], minlength=WIDTH)


def integers(count: int, seed: int = 0) -> torch.Tensor:
    """Whole numbers, whose sums float64 holds exactly, so that sketches of them can be compared with ==."""
    return torch.randint(-1000, 1001, (count,), generator=torch.Generator().manual_seed(seed))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@contextlib.contextmanager
def seed_of(name: str) -> Iterator[None]:
    """Other sign tables for a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketches, "_SEED", name)
        sketches._signs.cache_clear()
        yield
    sketches._signs.cache_clear()


# --- what it computes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, BLOCK - 1, BLOCK, BLOCK + 1, 65 * BLOCK + 5])
def test_sketch_is_its_definition(count: int) -> None:
    """Every element lands where and with the sign that the documented formula says, also past the first 64 blocks."""
    values = integers(count)
    assert sketch(values).tolist() == by_definition(values.numpy()).tolist()


def test_sketch_never_changes() -> None:
    """Golden files are compared with sketches made by later versions: these numbers must stay as they are for ever."""
    assert sketch(torch.arange(1000)).tolist() == PINNED


@pytest.mark.parametrize(
    ("count", "digest"),
    [(200_000, "de4f35d1ba7fce4bba649a0d28415297"), (2_000_000, "52e1f256194ee8fff172b83b9be1d3e8")],
)
def test_sketch_of_many_blocks_never_changes(count: int, digest: str) -> None:
    """The same for tables beyond the first block and beyond the least number of rows."""
    numbers = sketch(torch.arange(count) % 1009)
    assert hashlib.blake2b(numbers.astype("<i8").tobytes(), digest_size=16).hexdigest() == digest


@brief
@given(sizes, st.integers(-50, 50), st.integers(-50, 50))
def test_sketch_is_linear(count: int, a: int, b: int) -> None:
    """S(a x + b y) = a S(x) + b S(y), exactly where the arithmetic is exact."""
    x, y = integers(count, 1), integers(count, 2)
    assert (sketch(a * x + b * y) == a * sketch(x) + b * sketch(y)).all()


def test_result_is_127_float64() -> None:
    numbers = sketch(normal(3, 5))
    assert numbers.shape == (WIDTH,)
    assert numbers.dtype == numpy.float64


def test_empty_tensor_has_a_zero_sketch() -> None:
    assert sketch(torch.empty(0, 7)).tolist() == [0.0] * WIDTH


def test_scalar_tensor_is_its_first_element() -> None:
    """A loss is one element: the sketch's norm is its magnitude exactly."""
    numbers = sketch(torch.tensor(-2.75))
    assert numpy.flatnonzero(numbers).tolist() == [0]
    assert abs(numbers[0]) == 2.75


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [5, 2 * BLOCK, 2 * BLOCK + 9])
def test_dtype_does_not_matter(dtype: torch.dtype, count: int) -> None:
    """A stored value counts as what it is; nothing is rounded on the way."""
    stored = (integers(count).abs() % 100).to(dtype)
    assert (sketch(stored) == by_definition(stored.double().numpy())).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_sums_of_short_formats_are_off_by_less_than_they_may_be(dtype: torch.dtype) -> None:
    """Of 127 elements each: 127 * 2^-24 of their magnitudes, of which a number of the sketch sums all of a column."""
    values = normal(3 * BLOCK + 50).to(dtype)
    folding = Folding(values)
    for block, bits in folding.parts():
        folding.add(block, bits, tame=True)
    allowed = 127 * 2.0**-24 * by_definition(values.double().abs().numpy(), signs=False)
    off = numpy.abs(folding.told()[:WIDTH].numpy() - by_definition(values.double().numpy()))
    assert (off <= allowed).all()
    assert off.any(), "sums in float32 were asked for"
    assert float(folding.told()[WIDTH]) == pytest.approx(float(values.double().square().sum()), rel=1e-5)


def test_complex_is_refused_with_the_remedy() -> None:
    with pytest.raises(TypeError, match="view_as_real"):
        sketch(torch.zeros(3, dtype=torch.complex64))


STRIDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t(),
    "every other column": lambda x: x[:, ::2],
    "expanded": lambda x: x[:1].expand(300, -1),
    "offset": lambda x: x.flatten()[13:],
    "channels last": lambda x: x.reshape(2, 60, 10, 60)[:, :, :, :40].contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("view", STRIDED.values(), ids=STRIDED)
def test_strides_do_not_matter(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Elements are numbered in the order of their indices, however they lie in memory."""
    x = view(integers(72_000).view(240, 300))
    assert (sketch(x) == by_definition(x.reshape(-1).numpy())).all()


@pytest.mark.parametrize("blocks", [1, 2, 7, 1000])
def test_chunk_size_does_not_matter(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many blocks are worked on at a time changes nothing, not even by rounding where sums are exact."""
    x = integers(40 * BLOCK + 77)
    expected = sketch(x)
    monkeypatch.setattr(sketches, "_CPU_BLOCKS", blocks)
    assert (sketch(x) == expected).all()


def test_shards_add_up() -> None:
    """Zeroing two complementary parts and adding the sketches gives the sketch of the whole."""
    x = integers(3 * BLOCK)
    keep = torch.arange(len(x)) < 20_000
    assert (sketch(x * keep) + sketch(x * ~keep) == sketch(x)).all()


# --- non-finite elements ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("count", [40, 2 * BLOCK + 40])
def test_nonfinite_elements_count_as_zero(dtype: torch.dtype, count: int) -> None:
    x = normal(count).to(dtype).double()
    zeroed = x.clone()
    for place, value in ((0, math.nan), (7, math.inf), (count - 1, -math.inf)):
        x[place], zeroed[place] = value, 0.0
    assert (sketch(x.to(dtype), finite=False) == sketch(zeroed)).all()


def test_finite_elements_are_left_as_they_are() -> None:
    """`finite=False` on a tensor without any non-finite element is the plain sketch, the greatest float32 included."""
    x = torch.cat([normal(BLOCK), torch.tensor([torch.finfo(torch.float32).max, -1e-45])])
    assert (sketch(x, finite=False) == sketch(x)).all()


def test_nothing_overflows() -> None:
    """Sums of a hundred elements near float32's maximum leave float32, and still come out."""
    x = torch.full((80 * BLOCK,), 3e38)
    assert distance(sketch(x), numpy.zeros(WIDTH)) == pytest.approx(float(x.double().norm()), rel=5 * SPREAD)


# --- how well it estimates --------------------------------------------------------------------------------------------

BASE = normal(96, 1024)
ERRORS: dict[str, torch.Tensor] = {
    "bf16 rounding": BASE.bfloat16().float() - BASE,
    "fp16 rounding": BASE.half().float() - BASE,
    "scale 1.003": BASE * 0.003,
    "constant shift": torch.full_like(BASE, 1e-2),
    "one row": 1e-2 * BASE * (torch.arange(96) == 11)[:, None],
    "one column": 1e-2 * BASE * (torch.arange(1024) == 37),
    "rank 1": 1e-2 * normal(96, 1, seed=1) * normal(1, 1024, seed=2),
    "same error in every row": 1e-2 * normal(1, 1024, seed=3).expand(96, -1),
    "period 256": 1e-2 * (torch.arange(BASE.numel()) % 256 == 3).view_as(BASE),
    "heavy tail": 1e-3 * normal(96, 1024, seed=4) / normal(96, 1024, seed=5).abs(),  # Cauchy
}


def ratios(error: torch.Tensor, trials: int = TRIALS) -> numpy.ndarray:
    """Estimated over true norm of an error, squared, for as many independent sets of signs."""
    true = float(error.double().norm())
    estimates = []
    for trial in range(trials):
        with seed_of(f"trial {trial}"):
            estimates.append(distance(sketch(BASE.double() + error), sketch(BASE)) / true)
    return numpy.square(estimates)


def predicted_deviation(error: torch.Tensor) -> float:
    """Standard deviation of the squared ratio under independent signs: 2 sum_c ((sum d^2)^2 - sum d^4) over the numbers c."""
    squares = error.double().flatten().square().numpy()
    c = numpy.arange(len(squares)) % WIDTH
    second = numpy.bincount(c, weights=squares, minlength=WIDTH)
    fourth = numpy.bincount(c, weights=squares**2, minlength=WIDTH)
    return math.sqrt(2 * float(numpy.sum(second**2 - fourth))) / float(squares.sum())


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_spread_is_what_theory_says(error: torch.Tensor) -> None:
    """Over many sets of signs the squared distance is unbiased, with the variance of independent signs.

    The limits are five standard errors: of a mean, sigma / sqrt(N); of a standard deviation, about 1/sqrt(2N) of it, times
    1.5 for the tail that a sum of squares has beyond a Gaussian's (excess kurtosis under 2.5 widens it by sqrt(1 + 2.5/2)).
    """
    squared, sigma = ratios(error), predicted_deviation(error)
    assert abs(squared.mean() - 1) < 5 * sigma / math.sqrt(TRIALS) + 1e-6
    assert squared.std() == pytest.approx(sigma, rel=5 * 1.5 / math.sqrt(2 * TRIALS), abs=1e-6)


@pytest.mark.parametrize("kind", ["bf16 rounding", "fp16 rounding", "scale 1.003", "constant shift", "rank 1"])
def test_dense_errors_spread_by_6_percent(kind: str) -> None:
    """For errors all over the tensor the distance's relative deviation is 1/sqrt(2 * 127), and no estimate is 5 times that off.

    Rank 1 squares two Gaussian factors, which costs the sum of squares of a number up to a tenth of evenness.
    """
    deviations = numpy.sqrt(ratios(ERRORS[kind], 200)) - 1
    assert deviations.std() == pytest.approx(SPREAD, rel=0.35)
    assert numpy.abs(deviations).max() < 5 * SPREAD


def test_spread_test_can_fail() -> None:
    """Without V, a constant shift adds up to the same sum in every block: the very defect the V table is there for."""
    plain = sketches._table

    def without_v(name: str, rows: int) -> numpy.ndarray:
        return numpy.ones((rows, WIDTH), numpy.int8) if name == "V" else plain(name, rows)

    error = ERRORS["constant shift"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketches, "_table", without_v)
        squared = ratios(error, 200)
    sketches._signs.cache_clear()
    assert squared.std() > 1.5 * predicted_deviation(error)


@pytest.mark.parametrize("place", [0, 126, 127, BLOCK, 70 * BLOCK + 5])
def test_single_element_is_exact(place: int) -> None:
    """One wrong element is measured without any spread, wherever it is."""
    x = integers(70 * BLOCK + 6).double()
    y = x.clone()
    y[place] += 3.0
    assert distance(sketch(x), sketch(y)) == 3.0


@pytest.mark.parametrize("count", [4096, 100_003, 1_200_000])
@pytest.mark.parametrize(("relative", "dtype"), [(1e-6, torch.float32), (1e-7, torch.float64), (1e-9, torch.float64)], ids=str)
def test_small_differences_are_recovered(relative: float, dtype: torch.dtype, count: int) -> None:
    """A relative difference of 1e-6 in float32, and far less in float64, is found to within five deviations of the estimate."""
    x = normal(count).to(dtype)
    y = x + relative * normal(count, seed=1).to(dtype)
    true = float((y.double() - x.double()).norm())
    assert distance(sketch(x), sketch(y)) == pytest.approx(true, rel=5 * SPREAD)


def test_inner_product_is_estimated() -> None:
    """<S(x), S(y)> is within five deviations, ||x|| ||y|| sqrt(2 / 127) each, of <x, y>; <S(x), S(x)> is the squared norm's."""
    x, y = BASE.double().flatten(), ERRORS["scale 1.003"].double().flatten()
    unit = math.sqrt(2 / WIDTH)
    assert inner(sketch(x), sketch(y)) == pytest.approx(float(x @ y), rel=5 * unit)
    z = normal(len(x), seed=9).double()
    assert abs(inner(sketch(x), sketch(z)) - float(x @ z)) < 5 * unit * float(x.norm() * z.norm())
    assert inner(sketch(x), sketch(x)) == pytest.approx(distance(sketch(x), numpy.zeros(WIDTH)) ** 2)


# --- what must not reach it -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def low_matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


SURROUNDINGS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
    "default device meta": lambda: torch.device("meta"),
    "medium matmul precision": low_matmul_precision,
}


@pytest.mark.parametrize("surrounding", SURROUNDINGS.values(), ids=SURROUNDINGS)
def test_surroundings_do_not_matter(surrounding: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
    """The caller's modes change no bit, neither while the tables are made nor, of tables made in them, afterwards."""
    x = normal(3 * BLOCK + 50)
    expected = sketch(x)
    sketches._signs.cache_clear()
    with surrounding():
        assert (sketch(x) == expected).all()
    assert (sketch(x.requires_grad_()) == expected).all()


def test_tables_are_real_though_first_made_among_fake_tensors() -> None:
    """A fake table in the cache would spoil every later sketch."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    expected = sketch(BASE)
    sketches._signs.cache_clear()
    with FakeTensorMode():
        sketches._signs(torch.device("cpu"), sketches._LEAST_ROWS, torch.int32)
    assert (sketch(BASE) == expected).all()


def test_tensor_and_graph_are_left_alone() -> None:
    """The tensor's bits stay, and the result hangs on no graph."""
    x = normal(2 * BLOCK + 3).requires_grad_()
    x.data[5] = math.nan
    before = x.detach().clone()
    folded = fold(x, finite=False)
    assert not folded.requires_grad
    assert torch.equal(x.detach().view(torch.int32), before.view(torch.int32))


PINNED = [
    762, -2292, 1278, -1530, 246, 2316, 1294, -254, 2302, 2576, 2814, -3644, 302, 26, 1016, -508, 826, -1846, -254, 1600, -1310,
    1058, 1314, -1870, -858, 508, -306, -2702, 254, -254, -1016, -2156, 1842, -1844, -2236, -324, -580, -1016, 508, 430, 254,
    -590, -1608, 2712, 254, 2974, 3924, 348, 0, -2482, -962, 0, -2136, -1630, -2648, -872, -1748, 1130, -116, -1896, -3662,
    -376, 2156, -1270, 1144, -254, 132, -642, -2168, -4108, 2934, -762, -1558, 2578, 2476, 150, 254, 662, 3614, 666, 508, -1594,
    -762, 1270, -930, -932, 3056, 0, -4084, 2388, -762, -1888, 1016, 1710, 1458, -508, 254, -1524, 0, -818, -762, 1218, -1016,
    1016, 762, -3468, 0, 1230, -978, -2250, -2032, -1984, -1957, -522, 1257, -750, -1005, -264, -1515, -8, 247, 260, -1265, 258,
    -1007, -764, -1523,
]  # fmt: skip
"""The sketch of 0, 1, ... 999."""
