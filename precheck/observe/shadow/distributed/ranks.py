"""Lets the ranks of a distributed run watch together: they meet at the start of a block, share gloo groups, and exchange messages at its end.

It uses the default store and its own gloo groups, so its messages cannot mix with the program's, even if a rank fails.
It never waits longer than `PATIENCE` for other ranks.
"""

from __future__ import annotations

import datetime
import secrets
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from precheck import torch_internals

PATIENCE = 20.0
"""Seconds: twice the 10 s after which c10d's own barrier over a store warns of missing ranks."""
_disappointments = 0  # failed meetings in a row; each halves the wait for the next, since some programs watch on one rank only
_NAP = 0.02  # greatest time between two looks at the store, in seconds


class Ranks:
    """Ranks that watch together, from the meeting at the block's beginning to the parting at its end."""

    def __init__(self, store: Any, number: int, rank: int, size: int) -> None:
        self.store, self.number, self.rank, self.size = store, number, rank, size
        self.lost = ""  # why nothing is sent any more; empty while it is
        self.groups: dict[tuple[int, ...], Any] = {}

    def key(self, *parts: object) -> str:
        return "/".join(str(part) for part in (self.number, *parts))

    def group(self, own: Any) -> Any:
        """The gloo group of the ranks of `own`, a process group of the program. All of these ranks must call this.

        Raises RuntimeError if another rank has given up or does not call it.
        """
        if self.store.check([self.key("lost")]):
            raise RuntimeError("another rank has given up")
        members = tuple(dist.get_process_group_ranks(own))
        made = self.groups.get(members)
        if made is None:
            name, patience = f"precheck/{self.key(*members)}", datetime.timedelta(seconds=PATIENCE)
            made = self.groups[members] = torch_internals.gloo_group(self.store, name, own.rank(), len(members), patience)
        return made

    def lose(self, why: str) -> None:
        """Stops sending, and leaves the reason for the other ranks in the store."""
        if not self.lost:
            self.lost = f"rank {self.rank}: {why}"
            try:
                told = self.store.compare_set(self.key("lost"), "", self.lost).decode()
            except RuntimeError as error:
                told = f"{self.lost}; nor does the store answer: {error}".splitlines()[0]
            self.lost = told if told.startswith(self.lost) else f"{told} (here {why})"
            self._close()

    def part(self, said: str, *, wait: bool) -> dict[int, str]:
        """At the end of the block: sends `said` to the other ranks. With `wait`, returns what each rank said."""
        try:
            return self._parted(said, wait)
        except RuntimeError as error:  # from the store, which is gone if the block has ended torch.distributed
            self.lose(f"{type(error).__name__}: {error}".splitlines()[0])
            return {self.rank: said}

    def _parted(self, said: str, wait: bool) -> dict[int, str]:
        self.store.set(self.key("said", self.rank), said)
        if not wait:
            self.lose("its block has ended by an exception")
            return {self.rank: said}
        keys = {rank: self.key("said", rank) for rank in range(self.size)}
        _until(lambda: self.store.check(list(keys.values())), PATIENCE)
        heard = {rank: self.store.get(key).decode() for rank, key in keys.items() if self.store.check([key])}
        if len(heard) == self.size and self.store.add(self.key("heard"), 1) == self.size:
            for key in (*keys.values(), *(self.key("here", rank) for rank in range(self.size))):
                self.store.delete_key(key)  # the last rank deletes the keys
        self._close()
        return heard

    def _close(self) -> None:
        for group in self.groups.values():
            torch_internals.forget_group(group)
        self.groups.clear()


def distributed() -> bool:
    """Whether there are other ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """The number of this rank. 0 in a run of one process."""
    return dist.get_rank() if distributed() else 0


def meet(reference: torch.dtype) -> tuple[Ranks | None, str]:
    """The ranks that enter a watched block at the same time as this one. If there are none: None, and a reason where one should be shown."""
    if not distributed():
        return None, ""
    if not dist.is_gloo_available():
        return None, "this torch has no gloo, through which ranks would watch together"
    if not torch_internals.MEETS:
        return None, f"precheck does not know how torch {torch.__version__} keeps its process groups: what other ranks send is taken as it comes"
    try:
        return _met(str(reference))
    except RuntimeError as error:
        return None, f"the store through which ranks meet does not answer: {error}".splitlines()[0]


def _met(reference: str) -> tuple[Ranks | None, str]:
    store = torch_internals.store_under("precheck", torch_internals.default_store())
    rank, size, own = dist.get_rank(), dist.get_world_size(), f"{reference} {secrets.token_hex(4)}"
    number = store.add("meetings", 0)
    while store.check([f"{number}/verdict"]) or store.compare_set(f"{number}/here/{rank}", "", own).decode() != own:
        number += 1  # that meeting is over, or another thread of this rank takes part in it
    ranks = Ranks(store, number, rank, size)
    if _decided(ranks) != "together":
        return None, f"not all {size} ranks watch: what other ranks send is taken as it comes"
    if any(store.get(ranks.key("here", other)).decode().split()[0] != reference for other in range(size)):
        return None, "ranks watch under different precisions: what other ranks send is taken as it comes"
    return ranks, ""


def _decided(ranks: Ranks) -> str:
    """Whether all ranks came in time. The first rank that sees all of them, or that has waited too long, decides for all."""
    store, verdict = ranks.store, ranks.key("verdict")
    global _disappointments
    everyone = [ranks.key("here", rank) for rank in range(ranks.size)]
    came = _until(lambda: store.check(everyone), PATIENCE / 2**_disappointments, unless=lambda: bool(store.check([verdict])))
    mine = "together" if came else "apart"
    decided: str = store.compare_set(verdict, "", mine).decode()
    if store.compare_set(ranks.key("closed"), "", str(ranks.rank)).decode() == str(ranks.rank):
        store.add("meetings", 1)
    _disappointments = 0 if decided == "together" else _disappointments + 1
    return decided


def _until(met: Callable[[], bool], patience: float, unless: Callable[[], bool] = lambda: False) -> bool:
    """Waits for `met()`, at most `patience` seconds and not after `unless()`. Returns whether it was met."""
    began, nap = time.monotonic(), 0.0001
    while not met():
        if unless() or time.monotonic() - began > patience:
            return met()
        time.sleep(nap)
        nap = min(2 * nap, _NAP)
    return True
