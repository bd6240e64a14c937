"""An op on lists of tensors is recorded as the ops that it stands for, one for each place of its lists."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from beside import shadow_now
from torch import nn

import precheck
from precheck.observe.shadow.operations import Observation, Operation

LOW = torch.bfloat16


def observed(program: Callable[[], object]) -> Observation:
    with precheck.watch():
        program()
        observation: Observation = shadow_now().observation
    return observation


def on_lists(observation: Observation) -> list[Operation]:
    return [each for each in observation.operations if each.packet.startswith(("_foreach_", "_fused_"))]


def test_each_result_has_its_own_operands() -> None:
    def program() -> list[torch.Tensor]:
        return torch._foreach_mul([torch.full((4,), 3.0, dtype=LOW), torch.ones(4, dtype=LOW) / 3], 0.1)

    first, second = on_lists(observed(program))
    assert [len(each.inputs) for each in (first, second)] == [len(each.outputs) for each in (first, second)] == [1, 1]
    assert first.drift_in == 0 < second.drift_in
    assert [each.outputs[0].maker is each for each in (first, second)] == [True, True]


def test_the_sum_that_stands_still_is_the_one_that_is_named() -> None:
    def program() -> None:
        sums, terms = [torch.zeros(8, dtype=LOW), torch.ones(8, dtype=LOW)], [torch.full((8,), 1e-3, dtype=LOW) for _ in range(2)]
        for _ in range(20):
            torch._foreach_add_(sums, terms)

    absorbing = {each.outputs[0].norm > 1 for each in on_lists(observed(program)) if each.absorbed is not None and each.absorbed.times > 10}
    assert absorbing == {True}, "the one that began at 1, and not the one that began at 0"


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}], ids=["foreach", "fused"])
def test_a_step_of_an_optimizer_names_each_weight(options: dict[str, bool]) -> None:
    layers = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)).to(LOW)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, **options)

    def program() -> None:
        layers(torch.ones(2, 8, dtype=LOW)).float().square().sum().backward()
        optimizer.step()

    parameters = [each.parameter for each in on_lists(observed(program)) if each.in_optimizer]
    assert len(parameters) == len(set(parameters)) == 4


def test_what_is_returned_is_what_torch_returns() -> None:
    given = [torch.arange(4.0).to(LOW), torch.arange(6.0).to(LOW)]
    plain = torch._foreach_norm(given)
    with precheck.watch() as report:
        watched = torch._foreach_norm(given)
    assert all(torch.equal(left, right) for left, right in zip(plain, watched, strict=True))
    assert report.facts["covered"] == 1
