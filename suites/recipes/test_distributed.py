"""Distributed training under watch(): what is judged is the run of all ranks, its reductions included, and it runs as it would unwatched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from distributed_loops import FAULTY, HEALTHY

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo")

RANKS = 2
HERE = Path(__file__).parent
STUCK = 120
"""Seconds after which a launch is taken to hang: what is launched here takes 20 s on an idle machine. Nothing is judged by it."""
Told = list[dict[str, Any]]  # by rank


def launched(program: Path, folder: Path, *names: str) -> dict[str, Told]:
    """What each rank of a torchrun of `program` has written of each name."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", str(program), str(folder), *names]
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    agent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf8")
    try:
        said, _ = agent.communicate(timeout=STUCK)
    except subprocess.TimeoutExpired:
        agent.terminate()  # and with it the ranks, which a kill would leave behind
        said, _ = agent.communicate()
    assert agent.returncode == 0, said
    return {name: [json.loads((folder / f"{name}.{rank}.json").read_text(encoding="utf8")) for rank in range(RANKS)] for name in names}


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    return launched(HERE / "distributed_loops.py", tmp_path_factory.mktemp("ranks"), *HEALTHY, *FAULTY)


@pytest.fixture
def endings(tmp_path: Path) -> Callable[[str], Told]:
    return lambda name: launched(HERE / "distributed_endings.py", tmp_path, name)[name]


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
    ],
)
def test_a_fault_is_named_once_with_its_ranks(loops: dict[str, Told], name: str, rule: str, op: str, ranks: list[int], words: str) -> None:
    for told in loops[name]:
        (error,) = errors(told)
        assert (error["rule"], error["op"], error["ranks"]) == (rule, op, ranks)
        assert words in error["text"]
        assert "distributed_loops.py" in error["source"]


def test_a_rank_that_watches_alone_is_not_kept_waiting_for_ever(endings: Callable[[str], Told]) -> None:
    alone, other = endings("alone")
    assert "not all 2 ranks watch" in alone["facts"]["ranks"]
    assert errors(alone) == []
    assert alone["unchanged"]
    assert other["unchanged"]
    assert other["facts"] == {}


def test_a_rank_that_raises_is_heard_of_by_the_others(endings: Callable[[str], Told]) -> None:
    stayed, raised = endings("raises")
    assert raised["raised"] == "ValueError: as a program's do"
    assert stayed["raised"] == ""
    assert "ended by an exception: 1" in stayed["facts"]["ranks"]
    (error,) = errors(stayed)
    assert (error["rule"], error["ranks"]) == ("overflow", [1])  # what it had seen until then


def test_a_rank_that_is_gone_is_missed_after_a_while(endings: Callable[[str], Told]) -> None:
    stayed, _ = endings("dies")
    assert "1 of 2 ranks in this report; not heard of: 1" in stayed["facts"]["ranks"]
    assert stayed["raised"] == ""


def test_a_rank_whose_shadows_fail_harms_no_ones_training(endings: Callable[[str], Told]) -> None:
    for told in endings("loses"):
        assert told["unchanged"]
        assert "not followed to the end: rank 1: a shadow that failed" in told["facts"]["ranks"]
        assert errors(told) == []


def test_ranks_under_different_precisions_are_told_so(endings: Callable[[str], Told]) -> None:
    for told in endings("differ"):
        assert "different precisions" in told["facts"]["ranks"]
        assert told["unchanged"]


def test_messages_that_cross_a_reduction_go_through(endings: Callable[[str], Told]) -> None:
    for told in endings("crossed"):
        assert told["unchanged"]
        assert "not followed to the end: rank 0: c10d::allreduce_.default: TimeoutError" in told["facts"]["ranks"]


def test_a_block_may_end_torch_distributed(endings: Callable[[str], Told]) -> None:
    for told in endings("leaves"):
        assert told["raised"] == ""
        assert told["left"]
        assert errors(told) == []


def test_a_block_that_begins_torch_distributed_says_what_it_does_not_follow(endings: Callable[[str], Told]) -> None:
    for told in endings("begins"):
        assert "began before torch.distributed" in told["facts"]["ranks"]


def test_watches_that_follow_each_other_meet_each_time(endings: Callable[[str], Told]) -> None:
    for told in endings("again"):
        assert told["every"] == ["2 of 2 ranks in this report"] * 5
