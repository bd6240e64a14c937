"""Shadow memory: freed and reused storages are never confused, and what is dead is let go of."""

from __future__ import annotations

import random

import pytest
import torch
from beside import normal, same, seen, shadow_now
from torch.multiprocessing.reductions import StorageWeakRef

import precheck
from precheck.observe.shadow.memory import cells as memory
from precheck.observe.shadow.memory import window
from precheck.observe.shadow.memory.cells import Memory
from precheck.observe.shadow.memory.window import Window
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.torch_internals import located, storage_key


def value() -> Value:
    return Value(None, (), "bfloat16", 0.0)


def held(of: Memory) -> int:
    return sum(cell.flat.untyped_storage().nbytes() for cell in of.cells.values())


def test_addresses_that_are_used_again() -> None:
    """Many tensors of one size, kept or freed by chance, so that the allocator hands out the same memory again and again."""
    chance, live = random.Random(0), list[tuple[torch.Tensor, torch.Tensor]]()
    addresses = set()
    with precheck.watch():
        for number in range(1500):
            x = torch.full((16,), number / 3, dtype=torch.bfloat16)
            truth = torch.full((16,), number / 3)
            if live and chance.random() < 0.5:
                other, its_truth = chance.choice(live)
                x.add_(other)
                truth = truth + its_truth
            addresses.add(x.data_ptr())
            live.append((x, truth))
            while len(live) > 20 or (live and chance.random() < 0.4):
                live.pop(chance.randrange(len(live)))
            for kept, its_truth in live[-3:]:
                assert same(seen(kept), its_truth)
    # How many addresses come again is the allocator's to say, and differs with what ran before; some must, in 1500 of 20 alive.
    assert len(addresses) < 1490, "the allocator gave out new memory each time: this tests nothing"


def test_a_cell_is_not_another_tensors() -> None:
    """The weak reference holds the storage's own record, whose address is the key: none can be made there while a cell is."""
    cells, x = Memory(), torch.zeros(4, dtype=torch.bfloat16)
    cells.seed(x, torch.float32, value())
    key = x.untyped_storage()._cdata
    del x
    others = [torch.zeros(4, dtype=torch.bfloat16) for _ in range(2000)]
    assert cells.cells[key].reference.expired()
    assert all(cells.find(other) is None for other in others)


@pytest.mark.parametrize("size", [1, 1 << 12])
def test_what_is_dead_is_let_go(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live: a few hundred cells at most. Scalars cost a cell as well: by their four bytes alone, all would be kept."""
    limit = 1 << 18
    monkeypatch.setattr(memory, "COLLECT", limit)
    x = torch.ones(size, dtype=torch.bfloat16)
    most = cells = 0
    with precheck.watch():
        for _ in range(800):
            x = x * 1.001
            of = shadow_now().memory
            most, cells = max(most, held(of)), max(cells, len(of.cells))
    assert most <= 2 * limit
    assert cells <= 2 * limit // memory.CELL


def test_held_bytes_follow_the_model_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """After many steps: weights, momenta, gradients and one step's activations, in float32; live low bytes are half of that."""
    monkeypatch.setattr(memory, "COLLECT", 1 << 16)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).bfloat16()
    trainer = torch.optim.AdamW(model.parameters())
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    with precheck.watch(model):
        for step in range(8):
            trainer.zero_grad()
            model(normal(8, 64, seed=step).bfloat16()).float().pow(2).mean().backward()
            trainer.step()
        most = held(shadow_now().memory)
    # four copies of the weights (two moments, gradients), activations of half a copy, and the quarter that may lie about uncollected
    assert most < 6.5 * weights


def test_an_emptied_storage_is_let_go() -> None:
    """FSDP keeps the tensors of gathered weights and frees their storages."""
    cells, x = Memory(), torch.zeros(1 << 16, dtype=torch.bfloat16)
    cells.seed(x, torch.float32, value())
    x.untyped_storage().resize_(0)
    assert cells.alive() == []


def test_casts_share_until_one_is_written() -> None:
    with precheck.watch():
        x = normal(64).bfloat16()
        y = x.float()
        z = y.clone()
        of = shadow_now().memory
        cells = [of.find(each) for each in (x, y, z)]
        assert len({cell.flat.data_ptr() for cell in cells if cell is not None}) == 1
        y.add_(1 / 3)
        assert same(seen(x), normal(64))
        assert same(seen(z), normal(64))
        assert same(seen(y), normal(64) + 1 / 3)


def cut_short(*given: object) -> None:
    """Ctrl-C, as it comes here."""
    raise KeyboardInterrupt


class Cut(list[int]):
    """A count that Ctrl-C comes before."""

    __setitem__ = cut_short


@pytest.mark.parametrize("when", ["sharing", "copying"])
def test_an_interrupt_leaves_no_count_too_small(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what one cell still holds would be nobody's, once the others are let go."""
    cells, x, y = Memory(), torch.ones(4, dtype=torch.bfloat16), torch.ones(4)
    one = cells.seed(x, torch.float32, value())
    if when == "sharing":
        one.shared = Cut(one.shared)
        with pytest.raises(KeyboardInterrupt):
            cells.share(y, one, value())
    else:
        other = cells.share(y, one, value())
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "clone", cut_short)
            with pytest.raises(KeyboardInterrupt):
                other.own()
    assert all(cell.shared[0] >= sum(each.shared is cell.shared for each in cells.cells.values()) for cell in cells.cells.values())


def test_a_resized_storage_keeps_what_was_there() -> None:
    cells, x = Memory(), torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    cell = cells.seed(x, torch.float32, value())
    cell.flat.copy_(torch.tensor([1.25, 2.25]))
    x.resize_(3).select(0, 2).fill_(7)
    found = cells.find(x)
    assert found is not None
    assert cells.view(found, x).tolist() == [1.25, 2.25, 7.0]


def test_a_run_longer_than_memory_keeps_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "LONGEST", 100)
    x = torch.ones(4, dtype=torch.bfloat16)
    with precheck.watch() as report:
        for _ in range(250):
            x = x * 1.01
    (row,) = report.ops
    assert row.calls == 250
    assert "forgotten" not in report.facts  # they were judged


def test_ops_that_nobody_judges_are_let_go_and_hold_no_lineage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the first op would live as long as the last value made of it."""
    monkeypatch.setattr(window, "LONGEST", 100)
    observation, chain = Observation(), value()
    kept = Window(observation, Memory(), None)
    first = None
    for number in range(window.LONGEST + 2):
        operation = Operation(number, "mul.Tensor", "forward", "", "", 1, (chain,))
        chain = Value(operation, (), "bfloat16", 0.0)
        operation.outputs = (chain,)
        observation.add(operation)
        kept.grew()
        first = first or operation
    assert len(observation.operations) <= window.LONGEST
    assert observation.forgotten == 50
    assert first is not None
    assert first.inputs == ()


def test_weak_references_do_not_keep_memory() -> None:
    """What a cell costs is its shadow: the run's own numbers are freed when the program lets go of them."""
    x = torch.zeros(1 << 20, dtype=torch.bfloat16)
    reference = StorageWeakRef(x.untyped_storage())
    with precheck.watch():
        y = x * 2
        assert not reference.expired()
        del x, y
        assert reference.expired()


def test_a_shadow_that_is_somebody_elses_is_copied() -> None:
    """A cast to the dtype a tensor has is no copy: the next in-place op on the shadow would reach the tensor it was made of."""
    cells, x, foreign = Memory(), torch.zeros(4, dtype=torch.bfloat16), torch.ones(4)
    cells.keep(x, foreign.to(torch.float32), value(), perturbed=None, written=False, foreign=[storage_key(foreign)])
    cell = cells.find(x)
    assert cell is not None
    cells.view(cell, x).add_(1)
    assert foreign.tolist() == [1.0] * 4


def test_floats_read_as_another_format_are_exact() -> None:
    """Two bfloat16 where a float32 was: nothing says what the reference would have there."""
    with precheck.watch() as report:
        x = torch.ones(4) * normal(4).bfloat16()
        halves = x.view(torch.bfloat16)
        assert same(seen(halves * 1), halves.float())
    assert report.facts["opaque"] == {}


def test_no_tensor_finds_what_was_kept_of_a_freed_one() -> None:
    """Torch gives the address of a freed storage to no other while its cell is kept: so a look-up does not check that the cell's storage lives."""
    cells = Memory()
    for _ in range(1000):
        x = torch.zeros(4, dtype=torch.bfloat16)
        assert cells.find(x) is None
        cells.put(x, torch.zeros(4), value())
        assert cells.find(x[1:]) is cells.at(located([x])[0], x) is not None
        del x
    assert len(cells.cells) == 1000
