"""Parameters and scalers are told apart by numbers of their own, since addresses are given anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck
from precheck.observe.shadow.memory.stable_ids import Identities


def drawn() -> torch.Tensor:
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(0))


def successor(see: Callable[[nn.Parameter], object]) -> nn.Parameter:
    """A parameter at the address of another, which was shown to `see` and freed."""
    values, held = [drawn() for _ in range(100)], []  # made before, or they would take the place
    former = nn.Parameter(drawn())
    see(former)
    address = id(former)
    del former
    for each in values:
        made = nn.Parameter(each)
        if id(made) == address:
            return made
        held.append(made)
    pytest.skip("Python gave the address to nothing that was made next")


def test_a_number_is_never_given_twice() -> None:
    identity, given = Identities(), []
    weight = successor(lambda former: given.extend([identity(former), identity(former)]))
    assert 0 < given[0] == given[1] < identity(weight)


def test_the_owner_of_a_storage() -> None:
    identity, weight = Identities(), nn.Parameter(drawn())
    assert identity.owner(weight) == 0
    identity.keep(weight)
    assert identity.owner(weight.detach()[2:].t()) == identity(weight) > 0
    before = weight.data
    weight.data = before.bfloat16()  # as a module's `.to` does
    assert identity.owner(weight) == 0
    assert identity.owner(before) == identity(weight)


def test_a_freed_storage_has_no_owner() -> None:
    identity, weight = Identities(), nn.Parameter(drawn())
    identity.keep(weight)
    address = weight.untyped_storage()._cdata
    weight.data = torch.zeros(8, 8)
    held = [torch.zeros(8, 8) for _ in range(100)]
    assert all(identity.owner(each) == 0 for each in held)
    assert all(each.untyped_storage()._cdata != address for each in held)  # it is held back for as long as it is known


def test_a_weight_where_another_was() -> None:
    """Its gradient is awaited as any, though a weight at its address was seen before (gpt-2's head, that gives way to the embedding)."""
    with precheck.watch() as report:
        weight = successor(nn.Parameter.t)  # which is when a weight is seen
        layer = nn.Linear(8, 8)
        layer.weight = weight
        layer.weight.t()
        layer.to(torch.bfloat16)
        layer(torch.ones(4, 8, dtype=torch.bfloat16)).float().square().sum().backward()
    assert layer.weight.grad is not None
    assert report.findings == []


def test_a_frozen_weight_where_another_was() -> None:
    with precheck.watch() as report:
        weight = successor(nn.Parameter.t)
        layer = nn.Linear(8, 8)
        layer.weight = weight
        layer.weight.t()
        layer.to(torch.bfloat16)
        layer.weight.requires_grad_(False)
        layer(torch.ones(4, 8, dtype=torch.bfloat16)).float().square().sum().backward()
    assert layer.weight.grad is None
    assert report.findings == []


@pytest.mark.parametrize("inside", [True, False], ids=["in the block", "after it"])
def test_tensors_are_swapped_as_torch_does_on_conversions(inside: bool) -> None:
    """Which refuses what is referred to weakly."""
    layer, before = nn.Linear(8, 8), torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with precheck.watch() as report:
            layer(torch.ones(4, 8)).sum().backward()
            layer.zero_grad()
            if inside:
                layer.to(torch.bfloat16)
                layer(torch.ones(4, 8, dtype=torch.bfloat16)).float().square().sum().backward()
        layer.to(torch.float16)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    assert layer.weight.dtype == torch.float16
    assert report.findings == []


def test_what_was_swapped_keeps_its_number() -> None:
    identity, one, other = Identities(), nn.Parameter(drawn()), nn.Parameter(torch.zeros(8, 8))
    numbers, own = (identity(one), identity(other)), torch.utils.swap_tensors
    with identity.swapping():
        torch.utils.swap_tensors(one, other)
        assert not bool(one.any())
        assert (identity(one), identity(other)) == numbers
    assert torch.utils.swap_tensors is own


def test_models_one_after_another_keep_their_names() -> None:
    """Of a run over several models, each weight whose updates are lost is named and counted by itself."""
    with precheck.watch() as report:
        for _ in range(3):
            model = nn.Sequential(nn.Linear(8, 8)).bfloat16()
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
            for _ in range(2):
                model(torch.ones(4, 8, dtype=torch.bfloat16)).float().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            del model, optimizer
    assert [finding.rule for finding in report.errors] == ["lost-update"]
    assert "of 6 parameters lost more than half" in report.errors[0].message
