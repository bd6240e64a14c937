"""The ranks of a distributed run that watch together: how they meet, what they send each other, how they part.

All of it goes through the default store and through gloo groups of its own. So nothing of it can meet the program's own messages, even if a rank
fails. Nothing here waits for longer than `PATIENCE` without a sign of the others.
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
"""Seconds. c10d's own barrier over a store starts to complain of missing ranks after 10 s; twice that, and they do not come."""
_disappointments = 0  # meetings in a row to which not all came; each halves what the next is waited for: some programs watch on one rank only
_NAP = 0.02  # seconds, at most, between two looks at the store


class Ranks:
    """Ranks that watch together, from the meeting at the block's beginning to the parting at its end."""

    def __init__(self, store: Any, number: int, rank: int, size: int) -> None:
        self.store, self.number, self.rank, self.size = store, number, rank, size
        self.lost = ""  # why nothing is sent any more
        self.groups: dict[tuple[int, ...], Any] = {}

    def key(self, *parts: object) -> str:
        return "/".join(str(part) for part in (self.number, *parts))

    def group(self, own: Any) -> Any:
        """The gloo group of the ranks of `own`, a process group of the program's. All of them must ask for it.

        Raises RuntimeError where another rank has given up, or does not come.
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
        """From now on nothing is sent; the others, who find their connections closed, are told why."""
        if not self.lost:
            self.lost = f"rank {self.rank}: {why}"
            try:
                told = self.store.compare_set(self.key("lost"), "", self.lost).decode()
            except RuntimeError as error:
                told = f"{self.lost}; nor does the store answer: {error}".splitlines()[0]
            self.lost = told if told.startswith(self.lost) else f"{told} (here {why})"
            self._close()

    def part(self, said: str, *, wait: bool) -> dict[int, str]:
        """Tells the others what this rank has to say at the end, and with `wait` hears them: what was said, by rank."""
        try:
            return self._parted(said, wait)
        except RuntimeError as error:  # of the store, which is gone if the block has ended torch.distributed
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
                self.store.delete_key(key)  # the last one clears up
        self._close()
        return heard

    def _close(self) -> None:
        for group in self.groups.values():
            torch_internals.forget_group(group)
        self.groups.clear()


def distributed() -> bool:
    """Whether there are other ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def meet(reference: torch.dtype) -> tuple[Ranks | None, str]:
    """The ranks that enter a watched block at the same time as this one; or None, and why, where there is anything to say."""
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
        number += 1  # that meeting is over, or another thread of this rank is there
    ranks = Ranks(store, number, rank, size)
    if _decided(ranks) != "together":
        return None, f"not all {size} ranks watch: what other ranks send is taken as it comes"
    if any(store.get(ranks.key("here", other)).decode().split()[0] != reference for other in range(size)):
        return None, "ranks watch under different precisions: what other ranks send is taken as it comes"
    return ranks, ""


def _decided(ranks: Ranks) -> str:
    """Whether all came in time. One rank decides for all: whoever is first to see the last one come, or to lose patience."""
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
    """Whether something comes about while patience lasts, and nothing else has come before it."""
    began, nap = time.monotonic(), 0.0001
    while not met():
        if unless() or time.monotonic() - began > patience:
            return met()
        time.sleep(nap)
        nap = min(2 * nap, _NAP)
    return True
