"""`state.preserved`: whatever happens inside, the model is the same model afterwards, on its own storage."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.observe import state


class Counter:
    def __init__(self) -> None:
        self.count, self.history = 0, [0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.a.weight
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("counter", torch.zeros(()))
        self.register_buffer("passing", torch.ones(2), persistent=False)
        self.register_buffer("absent", None)
        self.log: list[Any] = [1]
        self.table = {"x": torch.zeros(2)}
        self.recent = deque([1, 2], maxlen=2)
        self.seen = {1}
        self.helper = Counter()
        self.generator = torch.Generator().manual_seed(1)
        self.nested = {"deep": ([torch.zeros(2)], {"n": 1})}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    model = Net()
    model.a.weight.grad = torch.full((3, 3), 2.0)
    return model


def write_parameter(net: Net) -> None:
    with torch.no_grad():
        net.a.weight.fill_(7)


def replace_parameter(net: Net) -> None:
    net.a.weight = nn.Parameter(torch.zeros(3, 3))


def cast(net: Net) -> None:
    net.bfloat16()


def drop_gradient(net: Net) -> None:
    net.zero_grad()


def write_gradient(net: Net) -> None:
    net.a.weight.grad = torch.zeros(3, 3)


def freeze(net: Net) -> None:
    net.requires_grad_(False)


def write_buffer(net: Net) -> None:
    net.counter += 1


def replace_buffer(net: Net) -> None:
    net.counter = torch.ones(5)


def new_attribute(net: Net) -> None:
    net.cache = torch.ones(3)


def lose_attribute(net: Net) -> None:
    del net.log


def grow_list(net: Net) -> None:
    net.log.append(2)
    net.table["y"] = 1


def change_deep_down(net: Net) -> None:
    net.recent.append(3)
    net.seen.add(2)
    net.nested["deep"][0][0].add_(1)
    net.nested["deep"][1]["n"] = 2
    net.table["x"].add_(1)


def change_helper(net: Net) -> None:
    net.helper.count += 1
    net.helper.history = [1]


def draw(net: Net) -> None:
    torch.randn(3, generator=net.generator)


def add_child(net: Net) -> None:
    net.add_module("late", nn.Linear(2, 2))


def swap_child(net: Net) -> None:
    net.a = nn.Linear(3, 3)


def change_mode(net: Net) -> None:
    net.eval()
    net.a.train()


def add_hook(net: Net) -> None:
    net.a.register_forward_hook(lambda *args: None)


CHANGES = [
    write_parameter, replace_parameter, cast, drop_gradient, write_gradient, freeze, write_buffer, replace_buffer, new_attribute,
    lose_attribute, grow_list, change_deep_down, change_helper, draw, add_child, swap_child, change_mode, add_hook,
]  # fmt: skip


def snapshot(net: Net) -> dict[str, Any]:
    named = dict(net.named_parameters(remove_duplicate=False)) | dict(net.named_buffers())
    return {
        "tensors": {n: (id(t), t.data_ptr(), t.dtype, t.requires_grad, t.detach().clone().tolist()) for n, t in named.items()},
        "grad": (id(net.a.weight.grad), net.a.weight.grad.tolist() if net.a.weight.grad is not None else None),
        "modules": [(n, id(m), m.training, len(m._forward_hooks)) for n, m in net.named_modules()],
        "attributes": {n: id(v) for n, v in vars(net).items()},
        "contents": (list(net.log), list(net.table), list(net.recent), set(net.seen)),
        "helper": (net.helper.count, list(net.helper.history), net.generator.get_state().tolist()),
        "deep": (net.table["x"].tolist(), net.nested["deep"][0][0].tolist(), dict(net.nested["deep"][1])),
    }


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_it_comes_back(net: Net, change: Callable[[Net], None], fails: bool) -> None:
    before = snapshot(net)
    inside: dict[str, Any] = {}

    def changed() -> None:
        with state.preserved(net):
            # as a run does, so that in-place changes meet fresh storage
            state.refresh(net, parameter=torch.clone, buffer=torch.clone)
            change(net)
            inside.update(vars(net))
            if fails:
                raise KeyError

    if fails:
        with pytest.raises(KeyError):
            changed()
    else:
        changed()
    assert inside
    assert snapshot(net) == before


def test_fresh_storage_keeps_identity_and_ties(net: Net) -> None:
    weight, pointer = net.a.weight, net.a.weight.data_ptr()
    with state.preserved(net):
        state.refresh(net, parameter=lambda value: value + 1, buffer=lambda value: value + 1)
        assert net.a.weight is net.tied.weight is weight
        assert weight.data_ptr() != pointer
        assert float(net.frozen[0]) == 2.0  # changed once
        assert weight.grad is None
    assert weight.data_ptr() == pointer


def test_a_buffer_under_two_names_stays_one(net: Net) -> None:
    net.a.register_buffer("shared", net.passing)
    with state.preserved(net):
        state.refresh(net, parameter=torch.clone, buffer=lambda value: value + 1)
        assert net.a.shared is net.passing
        assert net.passing.tolist() == [2.0, 2.0]
    assert net.a.shared is net.passing
    assert net.passing.tolist() == [1.0, 1.0]


def test_a_checkpoint_goes_back_in_all_but_the_weights(net: Net) -> None:
    before, drawn = snapshot(net), torch.get_rng_state()
    back = state.checkpoint(net)
    for change in (write_buffer, replace_buffer, new_attribute, grow_list, change_deep_down, change_helper, draw, change_mode):
        change(net)
    torch.rand(3)
    write_parameter(net)
    back()
    after = snapshot(net)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert net.a.weight.tolist() == [[7.0] * 3] * 3
    for name in ("a.weight", "tied.weight"):
        before["tensors"].pop(name), after["tensors"].pop(name)
    assert after == before


def test_a_list_that_others_hold_is_refilled_not_replaced(net: Net) -> None:
    held = net.log
    with state.preserved(net):
        net.log.clear()
        net.log = []
    assert net.log is held
    assert held == [1]


def test_casts_never_share_storage() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        value = torch.ones(3)
        changed = state.floats_to(dtype)(value)
        assert changed.dtype is dtype
        changed.fill_(5)
        assert value.tolist() == [1, 1, 1]
    whole = torch.arange(3)
    assert state.floats_to(torch.bfloat16)(whole).dtype is torch.int64


def test_rounding_leaves_what_would_become_infinite() -> None:
    mask, table = torch.tensor([0.0, -1e9]), torch.tensor([0.1, float("-inf")])
    assert state.rounded_to(torch.float16)(mask) is mask
    assert state.rounded_to(torch.float16)(table).dtype is torch.float16
    assert state.rounded_to(torch.bfloat16)(mask).dtype is torch.bfloat16


def test_a_result_kept_from_inference_mode_is_no_obstacle(net: Net) -> None:
    with torch.inference_mode():
        net.cache = net.a(torch.ones(1, 3))
    kept = net.cache.tolist()
    with state.preserved(net):
        net.cache = torch.zeros(1)
    assert net.cache.tolist() == kept


def test_containers_that_hold_each_other_are_walked_once(net: Net) -> None:
    net.log.append(net.log)
    with state.preserved(net):
        net.log.clear()
    assert net.log[0] == 1
    assert net.log[1] is net.log


class Frozen(OrderedDict[str, int]):
    """Like the configuration of a diffusers model."""

    def update(self, *others: Any, **named: Any) -> None:
        raise TypeError("frozen")


class Irreps(tuple[int, ...]):
    """Like e3nn's, whose length is not that of the tuple."""

    def __len__(self) -> int:
        raise NotImplementedError


def test_what_cannot_be_written_is_left_alone(net: Net) -> None:
    config, irreps = Frozen([("a", 1)]), Irreps((1, 2))
    net.config, net.irreps = config, irreps
    with state.preserved(net):
        net.log.append(2)
    assert (net.config, dict(config), net.irreps, net.log) == (config, {"a": 1}, irreps, [1])


def test_the_order_of_a_dictionary_comes_back(net: Net) -> None:
    net.order = {"a": 1, "b": 2}
    with state.preserved(net):
        net.order["a"] = net.order.pop("a")
    assert list(net.order) == ["a", "b"]


def test_a_seed_that_waits_for_a_device_is_not_replaced() -> None:
    """torch keeps the last seed for a device that nobody has used yet, and gives it when somebody does."""
    if torch.cuda.is_initialized():
        pytest.skip("the device is in use, and its random state comes back as others do")
    torch.cuda.manual_seed_all(1234)
    waiting = list(torch.cuda._lazy_seed_tracker.get_calls())
    precheck.measure(nn.Linear(4, 4), torch.ones(2, 4), precision="bf16-true")
    assert list(torch.cuda._lazy_seed_tracker.get_calls()) == waiting
    assert any(waiting)
