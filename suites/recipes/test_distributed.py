"""Distributed training under watch(): what is judged is the run of all ranks, its reductions included, and it runs as it would unwatched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from distributed_loops import FAULTY, HEALTHY
from forked_ranks import launch

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo")

HERE = Path(__file__).parent
WAITING = ("alone", "crossed", "dies")
"""Endings in which a rank waits for another in vain, for as long as its patience lasts. They run beside the others."""
ENDINGS = (*WAITING, "raises", "loses", "differ", "again", "leaves", "begins")
Told = list[dict[str, Any]]  # by rank


def read(folder: Path, name: str) -> Told:
    """What each of two ranks has written of a name; nothing where it has died."""
    files = [folder / f"{name}.{rank}.json" for rank in range(2)]
    return [json.loads(file.read_text(encoding="utf8")) if file.exists() else {} for file in files]


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    folder, names = tmp_path_factory.mktemp("ranks"), [*HEALTHY, *FAULTY]
    launch(HERE / "distributed_loops.py", folder, names)
    return {name: read(folder, name) for name in names}


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    folder = tmp_path_factory.mktemp("ranks")
    launch(HERE / "distributed_endings.py", folder, *([f"{name}&" if name in WAITING else name] for name in ENDINGS))
    return {name: read(folder, name) for name in ENDINGS}


def errors(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in told["findings"] if finding["severity"] == "error"]


@pytest.mark.parametrize("name", [*HEALTHY, *FAULTY])
def test_watching_changes_no_bit_of_the_weights(loops: dict[str, Told], name: str) -> None:
    assert all(told["unchanged"] for told in loops[name])


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_training_has_no_errors(loops: dict[str, Told], name: str) -> None:
    assert [finding["text"] for told in loops[name] for finding in errors(told)] == []


@pytest.mark.parametrize("name", HEALTHY)
def test_reductions_are_followed_to_the_end(loops: dict[str, Told], name: str) -> None:
    reductions = {"c10d.allreduce_.default", "c10d._reduce_scatter_base_.default", "_c10d_functional.all_reduce.default"}
    for told in loops[name]:
        assert told["facts"]["covered"] == 1, told["facts"]["opaque"]
        assert told["facts"]["ranks"] == "2 of 2 ranks in this report"
        assert reductions & set(told["ops"])


@pytest.mark.parametrize("name", [*HEALTHY, *FAULTY])
def test_each_rank_has_the_report_of_the_run(loops: dict[str, Told], name: str) -> None:
    first, second = loops[name]
    assert first["findings"] == second["findings"]


@pytest.mark.parametrize(
    ("name", "rule", "op", "ranks", "words"),
    [
        ("float16-cast-overflows", "overflow", "aten._to_copy.default", [0, 1], "beyond the largest float16"),
        ("float16-sum-overflows", "overflow", "c10d.allreduce_.default", [0, 1], "beyond the largest float16"),
        ("float16-hook-flushes", "gradient-underflow", "aten._to_copy.default", [0, 1], "100% of the gradient"),
        ("opposed-in-bfloat16", "cancellation", "c10d._reduce_scatter_base_.default", [0, 1], "a difference of nearly equal numbers"),
        ("lost-updates", "lost-update", "", [0, 1], "2.weight: 0% of the update of 3 steps arrived"),
        ("one-rank-overflows", "overflow", "aten.exp.default", [1], "on rank 1"),
        ("one-weight-overflows", "overflow", "aten.exp.default", [1], "on rank 1"),
        ("fsdp-casts-positions", "integer-rounding", "aten._to_copy.default", [0, 1], "whole numbers up to 527"),
    ],
)
def test_a_fault_is_named_once_with_its_ranks(loops: dict[str, Told], name: str, rule: str, op: str, ranks: list[int], words: str) -> None:
    for told in loops[name]:
        (error,) = errors(told)
        assert (error["rule"], error["op"], error["ranks"]) == (rule, op, ranks)
        assert words in error["text"]
        assert "distributed_loops.py" in error["source"]


def test_the_cure_of_a_cast_that_fsdp_makes_names_the_setting(loops: dict[str, Told]) -> None:
    for told in loops["fsdp-casts-positions"]:
        (error,) = errors(told)
        assert "cast_forward_inputs=False" in error["cure"]
        assert "leave out this cast" not in error["cure"]  # which no line of the user's makes


def test_a_rank_that_watches_alone_is_not_kept_waiting_for_ever(endings: dict[str, Told]) -> None:
    alone, other = endings["alone"]
    assert "not all 2 ranks watch" in alone["facts"]["ranks"]
    assert errors(alone) == []
    assert alone["unchanged"]
    assert other["unchanged"]
    assert other["facts"] == {}


def test_a_rank_that_raises_is_heard_of_by_the_others(endings: dict[str, Told]) -> None:
    stayed, raised = endings["raises"]
    assert raised["raised"] == "ValueError: as a program's do"
    assert stayed["raised"] == ""
    assert "ended by an exception: 1" in stayed["facts"]["ranks"]
    (error,) = errors(stayed)
    assert (error["rule"], error["ranks"]) == ("overflow", [1])  # what it had seen until then


def test_a_rank_that_is_gone_is_missed_after_a_while(endings: dict[str, Told]) -> None:
    stayed, _ = endings["dies"]
    assert "1 of 2 ranks in this report; not heard of: 1" in stayed["facts"]["ranks"]
    assert stayed["raised"] == ""


def test_a_rank_whose_shadows_fail_harms_no_ones_training(endings: dict[str, Told]) -> None:
    for told in endings["loses"]:
        assert told["unchanged"]
        assert "not followed to the end: rank 1: a shadow that failed" in told["facts"]["ranks"]
        assert errors(told) == []


def test_ranks_under_different_precisions_are_told_so(endings: dict[str, Told]) -> None:
    for told in endings["differ"]:
        assert "different precisions" in told["facts"]["ranks"]
        assert told["unchanged"]


def test_messages_that_cross_a_reduction_go_through(endings: dict[str, Told]) -> None:
    for told in endings["crossed"]:
        assert told["unchanged"]
        assert "not followed to the end: rank 0: c10d::allreduce_.default: TimeoutError" in told["facts"]["ranks"]


def test_a_block_may_end_torch_distributed(endings: dict[str, Told]) -> None:
    for told in endings["leaves"]:
        assert told["raised"] == ""
        assert told["left"]
        assert errors(told) == []


def test_a_block_that_begins_torch_distributed_says_what_it_does_not_follow(endings: dict[str, Told]) -> None:
    for told in endings["begins"]:
        assert "began before torch.distributed" in told["facts"]["ranks"]


def test_watches_that_follow_each_other_meet_each_time(endings: dict[str, Told]) -> None:
    for told in endings["again"]:
        assert told["every"] == ["2 of 2 ranks in this report"] * 5
