"""What the registry says of ops beside their algebra, held against torch: what moves, decides, draws, chooses, accumulates, or has no content."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch_calls import Call, Calls, floating

from precheck import ops

aten = torch.ops.aten
LINE = torch.linspace(-4, 4, 2001, dtype=torch.float64)


def named(wanted: Iterable[str], calls: Calls) -> list[tuple[str, Call]]:
    return [(name, call) for name in sorted(wanted) for call in calls.get(name, ())]


def numbers(values: Iterable[Any]) -> list[float]:
    """The numbers among a call's arguments."""
    found: list[float] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += numbers(value)
        elif isinstance(value, (int, float)):
            found.append(float(value))
    return found


def test_what_is_exact_gives_out_elements_that_it_was_given(calls: Calls) -> None:
    for name, call in named(ops.where(lambda op: op.exact), calls):
        given = [operand.abs().reshape(-1) for operand in call.operands]
        fixed = torch.tensor([0.0, *map(abs, numbers([*call.args, *call.kwargs.values()]))], dtype=torch.float64)
        for result in call():
            assert torch.isin(result.abs(), torch.cat([*given, fixed])).all(), f"{name} makes numbers that it was not given"


def test_what_rounds_is_not_exact(calls: Calls) -> None:
    """The other way round: an op of one smooth result that is called exact by mistake would show here as well."""
    for name in ("add", "mul", "sum", "avg_pool2d", "exp"):
        assert any(not torch.isin(call()[0].abs(), torch.cat([each.abs().reshape(-1) for each in call.operands])).all() for call in calls[name])


def test_a_whole_copy_is_its_operand(calls: Calls) -> None:
    for name, call in named(ops.WHOLE_COPIES, calls):
        assert torch.equal(call()[0], call.operands[0]), name


def test_what_casts_makes_another_dtype() -> None:
    x = torch.randn(3)
    assert aten._to_copy(x, dtype=torch.bfloat16).dtype is torch.bfloat16
    assert torch.equal(aten.copy_(torch.zeros(3, dtype=torch.bfloat16), x), x.bfloat16())
    assert {"_to_copy", "copy"} == ops.CASTS


def test_fresh_tensors_do_not_depend_on_content(calls: Calls) -> None:
    for name, call in named(ops.FRESH - ops.EMPTY, calls):
        if call.operands:
            other = call.with_operands([operand + 1 for operand in call.operands])
            assert all(torch.equal(one, two) for one, two in zip(call(), other(), strict=True)), name


def test_what_replaces_leaves_nothing_of_what_it_is_given(calls: Calls) -> None:
    for name, call in named(ops.REPLACING, calls):
        first, *others = call.operands
        assert all(torch.equal(one, two) for one, two in zip(call(), call.with_operands([first + 1, *others])(), strict=True)), name


def test_constants_are_numbers_that_were_given(calls: Calls) -> None:
    for name, call in named(ops.where(lambda op: bool(op.constant)), calls):
        for result in call():
            assert ops.REGISTRY[name].constant == "range" or result.unique().numel() <= 1, f"{name} is not filled with one number"


def test_draws_are_told_by_torchs_tag_and_differ(calls: Calls) -> None:
    for name in ops.where(lambda op: op.kind is ops.Kind.DRAW):
        packet = getattr(aten, name, None) or getattr(aten, f"{name}_")
        assert any(torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags for overload in packet.overloads()), name


def test_real_draws_are_not_whole(calls: Calls) -> None:
    for name in ops.DRAWN:
        drawn = torch.rand(1) if name == "rand" else torch.cat([result.reshape(-1) for call in calls[name] for result in call()])
        assert bool((drawn != drawn.round()).any()), name
    for name, call in named(ops.where(lambda op: op.kind is ops.Kind.DRAW and not op.real and not op.law), calls):
        assert all(torch.equal(result, result.round()) for result in call()), f"{name} draws numbers that are not whole"


def test_questions_are_answered_by_yes_or_no(calls: Calls) -> None:
    for name, call in named(ops.COMPARED | ops.ASKING, calls):
        in_place = call.func._schema.name.endswith("_")
        answers = [each for each in call.raw() if isinstance(each, torch.Tensor)]
        assert in_place or all(each.dtype in (torch.bool, torch.uint8) for each in answers), name
        assert answers or isinstance(call.raw()[0], bool), name


@pytest.mark.parametrize("name", sorted(ops.STEPS | ops.COUNTS | ops.CUTS))
def test_steps_jump(name: str) -> None:
    """Between jumps steps stand still, and what is left by them goes on as its operand does."""
    if name in ops.COUNTS:
        counts = torch.histc(LINE, 5)
        assert counts.is_floating_point()
        assert torch.equal(counts, counts.round())
        return
    second = () if name not in ("floor_divide", "remainder", "fmod", "heaviside") else (torch.ones_like(LINE),)
    made = getattr(torch, name)(LINE, *second)
    moves, spacing = made.diff(), float(LINE[1] - LINE[0])
    jumps = moves.abs() > 0.5
    between = 0.0 if name in ops.STEPS else spacing
    assert 1 <= int(jumps.sum()) <= 9, f"{name} jumps {int(jumps.sum())} times between -4 and 4"
    torch.testing.assert_close(moves[~jumps], torch.full_like(moves[~jumps], between), rtol=0, atol=1e-12)


def test_choosers_give_elements_and_their_places(calls: Calls) -> None:
    for name, call in named(ops.CHOOSERS, calls):
        if len(call.operands) > 1 or len(call.raw()) < 2:
            continue  # the larger of two tensors, or of all elements
        values, places = call.raw()
        flat = call.operands[0].reshape(-1) if values.dim() == 0 else call.operands[0]
        assert places.dtype is torch.int64, name
        assert torch.isin(values, flat).all(), name


def test_choices_of_places_give_integers_alone(calls: Calls) -> None:
    for name, call in named(ops.PLACES, calls):
        assert all(each.dtype in (torch.int64, torch.int32) for each in call.raw()), name


def test_extremes_are_the_largest_or_smallest() -> None:
    x = torch.randn(5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = {"topk": x.topk(1).indices[:, 0], "max": x.max(1).indices, "argmax": x.argmax(1)}
    found |= {"min": (-x).min(1).indices, "argmin": (-x).argmin(1)}
    assert set(found) == ops.EXTREMES
    for name, places in found.items():
        assert torch.equal(places, x.sort(1).indices[:, -1]), name


@pytest.mark.parametrize("name", sorted(ops.GUARDS))
def test_guards_keep_a_number_off_zero(name: str) -> None:
    bound = torch.full_like(LINE, 0.5)
    if name == "add":
        assert float((LINE.abs() + 0.5).min()) >= 0.5
    elif name == "clamp":
        assert (float(LINE.clamp(0.5, 1).min()), float(LINE.clamp(0.5, 1).max())) == (0.5, 1)
    else:
        made = getattr(torch, name)(LINE, bound)
        assert float(made.min() if name in ops.BOUNDS_BELOW else made.max()) == 0.5, f"{name} is a bound on the other side"


@pytest.mark.parametrize("name", sorted((ops.ACCUMULATING | ops.SCATTERING) - {"rsub"}))  # which rebinds a name only
def test_what_accumulates_can_be_written_in_place(name: str) -> None:
    statistics = ops.REGISTRY[name].accumulates == "statistics"
    assert statistics or hasattr(aten, f"{name}_"), f"there is no {name}_"


def test_what_accumulates_keeps_what_it_is_given(calls: Calls) -> None:
    """A change of the first operand comes out as a multiple of itself, the same for every change."""
    for name, call in named(ops.where(lambda op: op.accumulates in ("adds", "scales", "scatters")), calls):
        if call.operands and call.operands[0].numel():
            same = torch.equal(call.with_operands([call.operands[0] * 2, *call.operands[1:]])()[0], call()[0])
            betas = [value for key, value in call.kwargs.items() if key in ("beta",)]
            assert not same or betas == [0] or name == "lerp" or not call.operands[0].any(), f"{name} leaves nothing of what it is given"


def test_scattering_adds_many_elements_into_one() -> None:
    place = torch.zeros(3, dtype=torch.int64)
    added = {
        "index_add": torch.zeros(2).index_add_(0, place, torch.ones(3)),
        "scatter_add": torch.zeros(2).scatter_add_(0, place, torch.ones(3)),
        "put": torch.zeros(2).put_(place, torch.ones(3), accumulate=True),
        "index_put": torch.zeros(2).index_put_((place,), torch.ones(3), accumulate=True),
        "_index_put_impl": aten._index_put_impl_(torch.zeros(2), [place], torch.ones(3), True),
        "scatter_reduce": torch.zeros(2).scatter_reduce_(0, place, torch.ones(3), "sum"),
        "index_reduce": torch.full((2,), 3.0).index_reduce_(0, place, torch.ones(3), "mean", include_self=False) * 3,
    }
    assert set(added) == ops.SCATTERING
    assert all(float(result[0]) == 3 for result in added.values()), added


@pytest.mark.parametrize("name", sorted(ops.SIDES))
def test_derivatives_jump_where_a_side_is_asked(name: str) -> None:
    """As a function of the argument that the row names, the derivative of a straight piece changes at once."""
    ones, rest = torch.ones_like(LINE), {"threshold_backward": (1.0,), "hardtanh_backward": (-1.0, 1.0), "hardshrink_backward": (0.5,),
            "softshrink_backward": (0.5,), "leaky_relu_backward": (0.1, False), "hardsigmoid_backward": (), "hardswish_backward": ()}  # fmt: skip
    made = aten.elu_backward(ones, 2.0, 1.0, 1.0, False, LINE) if name == "elu_backward" else getattr(aten, name)(ones, LINE, *rest[name])
    schema = getattr(aten, name).default._schema
    assert "elu" in name or schema.arguments[ops.SIDES[name]].name in ("self", "self_or_result")
    assert float(made.diff().abs().max()) > 0.1, f"{name} has no threshold"
    if name in ops.MASKED_SIDES:
        assert set(made.unique().tolist()) == {0.0, 1.0}, f"{name} is more than a mask"


def test_hidden_writes_are_hidden_and_are_writes() -> None:
    mean, spread = torch.zeros(3), torch.ones(3)
    torch.native_batch_norm(torch.randn(8, 3) + 5, None, None, mean, spread, True, 0.5, 1e-5)
    arguments = aten.native_batch_norm.default._schema.arguments
    assert [arguments[place].name for place in ops.HIDDEN_WRITES["native_batch_norm"]] == ["running_mean", "running_var"]
    assert all(arguments[place].alias_info is None for place in ops.HIDDEN_WRITES["native_batch_norm"])
    assert float(mean.abs().min()) > 1


def test_unwritten_results_are_written_in_part(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    """torch fills memory with NaN before a kernel gets it, if it is asked to."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    for name, places in ops.UNWRITTEN.items():
        torch.use_deterministic_algorithms(True)
        try:
            results = calls[name][0].raw()
        finally:
            torch.use_deterministic_algorithms(False)
        assert tuple(place for place, result in enumerate(results) if result.isnan().any()) == places
        assert not any(result.isnan().all() for result in results)


def test_vectors_lie_along_the_dimension_of_their_row() -> None:
    x = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for (name, place), dim in ops.VECTORS.items():
        results = torch.linalg.eigh(x + x.T) if name == "_linalg_eigh" else torch.linalg.svd(x)
        flipped = [each.clone() for each in results]
        flipped[place].select(-1 if dim == -2 else -2, 0).neg_()
        if name == "_linalg_eigh":
            again = flipped[1] * flipped[0] @ flipped[1].transpose(-2, -1)
            torch.testing.assert_close(again, x + x.T)
        else:
            torch.testing.assert_close(results[place].norm(dim=dim), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("name", sorted(ops.TILED_PRODUCTS))
def test_factors_are_tensors_that_are_multiplied(name: str) -> None:
    arguments = getattr(aten, name).default._schema.arguments
    assert all("Tensor" in str(arguments[place].type) for place in ops.TILED_PRODUCTS[name]), [each.name for each in arguments]


def test_factors_of_matrix_products_scale_the_product(calls: Calls) -> None:
    for name, call in named(ops.MATRIX_PRODUCTS, calls):
        for place in ops.MATRIX_PRODUCTS[name]:
            operands = call.operands
            operands[place] = torch.zeros_like(operands[place])
            without = [torch.zeros_like(each) if at in ops.MATRIX_PRODUCTS[name] else each for at, each in enumerate(operands)]
            assert all(torch.equal(one, two) for one, two in zip(call.with_operands(operands)(), call.with_operands(without)(), strict=True)), name


def test_what_subtracts_does_not_see_an_offset(calls: Calls) -> None:
    """Operands that are taken from each other, or from their mean, may all be moved by the same number."""
    for name, call in named(ops.where(lambda op: op.subtracts and op.kind in (ops.Kind.LOSS, ops.Kind.MOMENT)), calls):
        moved = call.with_operands([operand + 0.5 for operand in call.operands])
        torch.testing.assert_close(moved()[0], call()[0], rtol=1e-9, atol=1e-9, equal_nan=True, msg=name)
    for name in ("mse_loss", "var"):
        assert any(call()[0].any() for call in calls[name]), f"no call of {name} tells anything"


def test_averages_make_one_number_of_many(calls: Calls) -> None:
    for name in ops.AVERAGES:
        if ops.REGISTRY[name].kind is ops.Kind.REDUCTION:
            assert getattr(torch, name)(torch.ones(3, 3)).shape == (), name
        else:
            assert any(result.numel() < call.operands[0].numel() for call in calls[name] for result in call() if floating(result)), name


def test_polynomials_make_neither_inf_nor_nan_of_zeros(calls: Calls) -> None:
    for name, call in named(ops.POLYNOMIAL - ops.REDUCED, calls):
        if all(operand.isfinite().all() for operand in call.operands):
            zeros = call.with_operands([torch.zeros_like(operand) for operand in call.operands])
            assert all(not result.isnan().any() for result in zeros()), name
