"""Differences of nearly equal numbers in a few lines of torch: what counts as one, which line is named, and what makes its error good."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from scenario import finds, passes

import precheck

LOW, HALF = torch.bfloat16, torch.float16


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def momenta(mass: float) -> torch.Tensor:
    """Four-momenta of fast particles of that mass."""
    direction = torch.nn.functional.normalize(normal(64, 3), dim=-1)
    return torch.cat([torch.full((64, 1), (900 + mass**2) ** 0.5), 30 * direction], -1)


METRIC = torch.tensor([1.0, -1.0, -1.0, -1.0])


def squared_masses() -> torch.Tensor:
    p = momenta(1.5)
    with torch.autocast("cpu", HALF):
        return torch.einsum("ni,ni->n", p * METRIC, p).float().sqrt()  # fault


def squared_masses_of_heavy_particles() -> torch.Tensor:
    p = momenta(60)
    with torch.autocast("cpu", HALF):
        return torch.einsum("ni,ni->n", p * METRIC, p).float().sqrt()


def test_a_matrix_product_of_few_terms_that_all_cancel_is_a_difference() -> None:
    finds(squared_masses, "cancellation", says="a sum whose terms cancel")
    passes(squared_masses_of_heavy_particles)


def guarded() -> torch.Tensor:
    return torch.ones(8).half() / (torch.zeros(8).half() + 1e-8)  # fault


def added_alone() -> torch.Tensor:
    return torch.zeros(8).half() + 1e-8


def test_a_sum_that_the_format_has_no_number_for_is_no_cancellation() -> None:
    """A zero and an eps are no nearly equal numbers: the eps has vanished."""
    finds(guarded, "vanished-constant", says="1e-08 is zero in float16 and guards nothing")
    passes(added_alone)


def stepped(gradient: torch.Tensor) -> torch.Tensor:
    weight = torch.nn.Parameter(1 + 0.001 * normal(256))
    weight.grad = gradient
    torch.optim.SGD([weight], lr=1e-3).step()
    return weight.detach()


def noise_as_gradient() -> torch.Tensor:
    weight, target = 1 + 0.001 * normal(256), 1 + 0.001 * normal(256, seed=2)
    return stepped((weight.to(LOW) - target.to(LOW)).float())  # fault


def difference_as_gradient() -> torch.Tensor:
    weight, target = 1 + 0.001 * normal(256), 1 + 0.001 * normal(256, seed=2)
    return stepped((weight - target).to(LOW).float())


def test_a_gradient_without_a_digit_is_not_made_good_by_the_weight() -> None:
    finds(noise_as_gradient, "cancellation")
    passes(difference_as_gradient)


def standardised() -> torch.Tensor:
    features = -6 + 3 * normal(300, 40)
    features[:, -1] = -15.942385 + 0.001 * normal(300, seed=1)
    features = features.double().to(torch.float32)
    variance = (features * features).mean(0) - features.mean(0) ** 2  # fault
    return (features - features.mean(0)) / (variance.clamp_min(0).sqrt() + 1e-5)


def test_a_root_hands_on_the_error_that_it_makes_larger() -> None:
    """The variance of one column of forty has no digit, which is little of the norm of all. The root makes it much, and has rounded nothing."""
    with precheck.watch(precision="32-true") as report:
        held = standardised()
    (finding,) = report.findings
    lines, first = inspect.getsourcelines(standardised)
    fault = first + next(place for place, line in enumerate(lines) if line.rstrip().endswith("# fault"))
    assert finding.source.endswith(f":{fault}"), report.summary()
    assert bool(held.isfinite().all())


def log_density_of_drawn_weights() -> torch.Tensor:
    mean, noise = (0.2 * normal(64, 64)).to(LOW), normal(64, 64, seed=1).to(LOW)
    weights = mean + 0.01 * noise
    return -((weights - mean) ** 2 / (2 * 0.01**2)).sum()  # fault


def log_density_of_their_noise() -> torch.Tensor:
    mean, noise = (0.2 * normal(64, 64)).to(LOW), normal(64, 64, seed=1).to(LOW)
    offset = 0.01 * noise
    return -(offset**2 / (2 * 0.01**2)).sum() + 0 * (mean + offset).sum()


def straight_through() -> torch.Tensor:
    z = normal(64, 64).to(LOW)
    q = 0.01 * normal(64, 64, seed=1).to(LOW)
    return ((z + (q - z)).float() - q.float().mean()).square().mean().log()  # fault


def test_a_sum_undone_and_a_difference_undone_are_told_apart() -> None:
    finds(log_density_of_drawn_weights, "cancellation", says="subtracts what was added, as (m + d) - m does, but the sum was rounded")
    passes(log_density_of_their_noise)
    finds(straight_through, "cancellation", says="adds back what was subtracted, as z + (q - z) does, but the difference was rounded")


def seven_tenths(x: torch.Tensor) -> torch.Tensor:
    return (x.to(LOW) * 0.7).float()


def eight_tenths(x: torch.Tensor) -> torch.Tensor:
    return (x.to(LOW) * 0.8).float()


def nine_tenths(x: torch.Tensor) -> torch.Tensor:
    return (x.to(LOW) * 0.9).float()


NUMBERS = 2 + normal(4096).abs()
NEARBY = NUMBERS * (0.7 * 0.8 * 0.9) * (1 + 0.002 * normal(4096, seed=1))


def beside_what_three_functions_make() -> torch.Tensor:
    return nine_tenths(eight_tenths(seven_tenths(NUMBERS))) - NEARBY


def beside_what_one_line_stores() -> torch.Tensor:
    stored = (NUMBERS * (0.7 * 0.8 * 0.9)).to(LOW)  # fault
    return stored.float() - NEARBY


def test_a_wide_difference_is_nobodys_fault_if_no_function_made_most_of_its_terms_error() -> None:
    """Mending one of three lines would leave four fifths of the error. Where one line made it, that line is named."""
    passes(beside_what_three_functions_make)
    finds(beside_what_one_line_stores, "amplified-rounding")


def above_a_known_energy() -> torch.Tensor:
    energy = (normal(256) - 400).to(LOW)  # fault
    return (energy + 400.0).float()


def test_what_an_addition_leaves_of_opposite_terms_is_called_a_sum() -> None:
    finds(above_a_known_energy, "amplified-rounding", says="a sum whose terms cancel: off by")
def prices() -> torch.Tensor:
    return 61_000 + torch.cumsum(2.5 * normal(40, 3), 0)


def band(prices: torch.Tensor) -> torch.Tensor:
    mean, square, widths = prices[0], prices[0] * prices[0], []
    for price in prices[1:]:
        square = square + 0.1 * (price * price - square)
        mean = mean + 0.1 * (price - mean)
        variance = square - mean * mean
        widths.append(variance.clamp_min(0).sqrt())
    return torch.stack(widths)


def corners(seed: int) -> torch.Tensor:
    return 3000 + normal(3, 2, seed=seed)


def area(triangle: torch.Tensor) -> torch.Tensor:
    (ax, ay), (bx, by), (cx, cy) = triangle
    return (ax * by - bx * ay + bx * cy - cx * by + cx * ay - ax * cy) / 2


def thickness(inner: torch.Tensor, squared: torch.Tensor) -> torch.Tensor:
    return squared - inner * inner


def shells(kept: torch.dtype) -> torch.Tensor:
    radius = 40 * (1 + uniform(64))
    inner = (radius + 0.1).to(kept) - 0.1
    return thickness(inner.float(), (radius + 0.02 * normal(64, seed=1).abs()).square())


def correlation(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    both = (x * y).mean() - x.mean() * y.mean()
    spread_x = x.square().mean() - x.mean().square()
    spread_y = y.square().mean() - y.mean().square()
    return both / (spread_x * spread_y).sqrt()


def blamed(code: Callable[[], object], program: Callable[..., torch.Tensor], start: str, precision: str | None = "32-true") -> bool:
    """Whether the first error in `code` is on that line of `program`."""
    with precheck.watch(precision=precision) as report:
        held = code()
    lines, first = inspect.getsourcelines(program)
    line = first + next(place for place, text in enumerate(lines) if text.strip().startswith(start))
    assert report.errors, held
    return report.errors[0].source.endswith(f"test_differences.py:{line}")


def test_a_rounding_that_both_terms_have_is_not_what_their_difference_enlarges() -> None:
    """What another function computed is in both terms, and cancels as they do. A radius that was rounded is in one term alone."""
    assert blamed(lambda: band(prices()), band, "variance =")
    assert blamed(lambda: torch.stack([area(corners(seed)) for seed in range(12)]), area, "return")
    assert blamed(lambda: shells(LOW), shells, "inner =", None)
    with precheck.watch() as report:
        held = shells(torch.float32)
    assert not report.errors, held


def test_a_product_of_two_wrong_numbers_is_off_by_more_than_both() -> None:
    """(1 + a) (1 + b) is off by a + b + ab. The product of two variances that cancel makes no error itself."""
    x = 5000 + normal(200)
    assert blamed(lambda: correlation(x, x + 0.5 * normal(200, seed=3)), correlation, "spread_y =")


def drifted(turns: int) -> torch.Tensor:
    """How far rafts have gone from where they were put."""
    start = 370_000 + 20_000 * uniform(64)
    place, push = start * 1.0, 0.001 + 0.003 * uniform(64, seed=1)
    for _ in range(turns):
        place = place + push
    return place - start


def smoothed() -> torch.Tensor:
    """How far a moving mean, by differences of running sums, is from one."""
    sums = (1 + 0.002 * normal(60_000)).cumsum(0)
    return (sums[10:] - sums[:-10]) / 10 - 1


def test_what_the_turns_of_a_loop_lost_is_not_lost_where_its_state_is_read() -> None:
    assert blamed(lambda: drifted(40), drifted, "place = place + push")


def test_what_an_earlier_difference_of_running_sums_lost_was_lost_in_the_sums() -> None:
    assert blamed(smoothed, smoothed, "sums =")


NEAR = 0.3 + 0.001 * torch.randn(64, 8, generator=torch.Generator().manual_seed(3))


def cast_before_it_is_subtracted() -> torch.Tensor:
    one, other = NEAR.sin(), NEAR.flip(0).sin()
    one, other = one.bfloat16(), other.bfloat16()  # fault
    return (one - other).float()


def cast_after_it_is_subtracted() -> torch.Tensor:
    one, other = NEAR.sin(), NEAR.flip(0).sin()
    return (one - other).bfloat16().float()


def cast_on_two_lines() -> torch.Tensor:
    one = NEAR.sin().bfloat16()
    other = NEAR.flip(0).sin().bfloat16()
    return (one - other).float()  # fault


def test_the_cast_is_named_that_alone_makes_a_difference_low() -> None:
    """The difference rounds nothing. Of two casts on two lines neither makes it right, and it is named itself."""
    finding = finds(cast_before_it_is_subtracted, "amplified-rounding", says="a difference of nearly equal numbers")
    assert finding.advice.startswith("leave out this cast, and round after aten.sub.Tensor")
    finds(cast_on_two_lines, "cancellation", says="in bfloat16 since")
    passes(cast_after_it_is_subtracted)
