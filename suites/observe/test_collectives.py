"""What ranks send each other has a shadow where it arrives: the same collective of the same numbers in float32, bit for bit."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from collective_cases import CASES
from forked_ranks import launch

from precheck.observe.shadow.distributed import ranks
from precheck.observe.shadow.distributed.collectives import Collectives
from precheck.observe.shadow.distributed.ranks import Ranks
from precheck.observe.shadow.replaying.replay import OpCall, plan

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo")

HERE = Path(__file__).parent
ROUNDOFF = 2.0**-8
NAMES = [case.__name__ for case in CASES]
SUMS = ["reduced", "reduced_later", "scattered", "scattered_later", "part_of_a_whole", "functionally", "functionally_scattered", "among_some",
        "averaged"]  # fmt: skip


@pytest.fixture(autouse=True)
def _undisappointed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_disappointments", 0)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks saw of every case."""
    folder = tmp_path_factory.mktemp("ranks")
    launch(HERE / "collective_cases.py", folder, NAMES)
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf8")) for rank in range(2)]


@pytest.mark.parametrize("name", NAMES)
def test_the_shadow_is_the_same_collective_in_float32(told: list[dict[str, Any]], name: str) -> None:
    for rank in told:
        assert rank[name]["why"] == ""
        assert rank[name]["followed"]
        assert rank[name]["rounded"]  # else there would be nothing to follow


@pytest.mark.parametrize("name", NAMES)
def test_the_program_gets_what_it_would_have_got(told: list[dict[str, Any]], name: str) -> None:
    assert all(rank[name]["unchanged"] for rank in told)


@pytest.mark.parametrize("name", NAMES)
def test_what_other_ranks_send_is_among_the_inputs(told: list[dict[str, Any]], name: str) -> None:
    assert all(rank[name]["inputs"] == [3] for rank in told)  # its own with its past, and what both ranks say of theirs


@pytest.mark.parametrize("name", NAMES)
def test_a_reduction_is_held_against_the_float32_reduction_of_its_addends(told: list[dict[str, Any]], name: str) -> None:
    for rank in told:
        lost = rank[name]["local"]
        if name in SUMS:  # one rounding of a sum: at most u of each element, more than a tenth of that on average
            assert 0.1 * ROUNDOFF < lost <= ROUNDOFF
        else:
            assert lost == 0


def test_what_a_collective_writes_is_known_although_its_schema_does_not_say() -> None:
    def written(name: str) -> tuple[str, ...]:
        return plan(getattr(torch.ops.c10d, name).default).written_names

    assert written("allreduce_") == ("tensors",)
    assert written("_reduce_scatter_base_") == ("output_tensor",)
    assert written("allgather_") == ("output_tensors",)
    assert written("barrier") == ()


def test_without_other_ranks_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "PATIENCE", 1e9)
    assert ranks.meet(torch.float32) == (None, "")


class Crowd:
    """Ranks of one process, a thread each, about one store."""

    def __init__(self, size: int) -> None:
        self.store, self.size, self.results = dist.HashStore(), size, [None] * size

    def each(self, act: Any, *, late: float = 0.0, only: int | None = None) -> list[Any]:
        """What `act(rank)` gives, of each rank; the last one comes `late`, or does not come if only some do."""

        def run(rank: int) -> None:
            time.sleep(late if rank == self.size - 1 else 0)
            self.results[rank] = act(Ranks(self.store, 0, rank, self.size))

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.size if only is None else only)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.results


def decided(each: Ranks) -> str:
    each.store.set(each.key("here", each.rank), "torch.float32 x")
    return ranks._decided(each)


def test_ranks_that_all_come_watch_together() -> None:
    assert Crowd(3).each(decided, late=0.05) == ["together"] * 3


def test_a_rank_that_comes_too_late_finds_it_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "PATIENCE", 0.2)
    crowd = Crowd(3)
    assert crowd.each(decided, only=2) == ["apart", "apart", None]
    assert decided(Ranks(crowd.store, 0, 2, 3)) == "apart"


def test_who_comes_in_vain_waits_for_less_the_next_time_until_all_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "PATIENCE", 0.2)
    Crowd(2).each(decided, only=1)
    assert ranks._disappointments == 1
    monkeypatch.setattr(ranks, "PATIENCE", 20.0)
    Crowd(2).each(decided)
    assert ranks._disappointments == 0


def test_nothing_is_sent_where_another_rank_has_given_up() -> None:
    one, other = (Ranks(Crowd(2).store, 0, rank, 2) for rank in (0, 1))
    other.store = one.store
    one.lose("its disk is full")
    with pytest.raises(RuntimeError, match="another rank has given up"):
        other.group(None)


def test_a_meeting_is_closed_once() -> None:
    crowd = Crowd(3)
    crowd.each(decided)
    assert crowd.store.add("meetings", 0) == 1


def test_each_rank_hears_what_all_have_to_say() -> None:
    crowd = Crowd(3)
    heard = crowd.each(lambda each: each.part(f"by {each.rank}", wait=True))
    assert heard == [{0: "by 0", 1: "by 1", 2: "by 2"}] * 3
    assert not any(crowd.store.check([f"0/said/{rank}"]) for rank in range(3))  # the last one has cleared up


def test_who_does_not_wait_is_heard_and_says_why_nothing_more_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "PATIENCE", 5.0)
    crowd = Crowd(2)
    heard = crowd.each(lambda each: each.part(f"by {each.rank}", wait=each.rank == 0), late=0.05)
    assert heard == [{0: "by 0", 1: "by 1"}, {1: "by 1"}]
    assert crowd.store.get("0/lost").decode() == "rank 1: its block has ended by an exception"


def test_who_is_gone_is_missed_when_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "PATIENCE", 0.2)
    assert Crowd(2).each(lambda each: each.part("here", wait=True), only=1) == [{0: "here"}, None]


def test_the_first_reason_for_giving_up_is_the_one_that_is_told() -> None:
    one, other = (Ranks(Crowd(2).store, 0, rank, 2) for rank in (0, 1))
    other.store = one.store
    one.lose("its disk is full")
    other.lose("no answer")
    assert (one.lost, other.lost) == ("rank 0: its disk is full", "rank 0: its disk is full (here no answer)")


def test_collectives_without_company_let_go_of_the_shadows_of_what_they_write() -> None:
    dropped: list[torch.Tensor] = []

    class Mode:
        memory = type("Memory", (), {"drop": staticmethod(dropped.append)})

        @staticmethod
        def apart() -> threading.Lock:
            return threading.Lock()

        @staticmethod
        def run(func: Any, args: Any, kwargs: Any) -> Any:
            return func(*args, **kwargs)

    tensor = torch.ones(3)
    planned = plan(torch.ops.c10d.allreduce_.default)
    assert Collectives(Mode())(OpCall(lambda tensors, *rest: "the result", planned, ([tensor], None, None), {})) == "the result"
    assert len(dropped) == 1
    assert dropped[0] is tensor
