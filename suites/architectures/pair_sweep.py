"""`python suites/architectures/pair_sweep.py`: what `compare` and `vary` say of healthy architectures asked in two ways.

Each architecture of transformers with torch's own attention beside the same with attention written out, and each decoder decoded five tokens
at a time beside all at once. `--lines FILE` writes a line of JSON for each run and goes on where it stopped, `--most` ends after so many
architectures, `--write` puts the table into a page.
"""

from __future__ import annotations

import argparse
import copy
import json
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from sweep import PATIENCE, LateError, _late, recorded
from tiny import Built, built, everything, losses

import precheck

WAYS = ("attention", "cache", "compiled")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true")
BEGIN, END = "<!-- made by pair_sweep.py: begin -->", "<!-- made by pair_sweep.py: end -->"


class NotAskedError(Exception):
    """The architecture has only one of the two ways."""


def report(given: Built, way: str, precision: str) -> precheck.Report:
    """Raises NotAskedError where the architecture cannot be asked so."""
    assert given.model is not None
    model: Any = given.model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way == "cache":
            ids = {"input_ids": given.inputs["input_ids"]} if "input_ids" in given.inputs else {}
            if not ids or getattr(model, "_is_stateful", False) or not hasattr(model, "generate") or model.config.is_encoder_decoder:
                raise NotAskedError("no decoder with a cache")
            return precheck.vary(model.eval(), ids, {"cache": 5}, precision=precision)
        if way == "compiled":
            torch.compiler.reset()
            return precheck.compare(model, torch.compile(model), given.inputs, loss=losses, precision=precision)
        if not getattr(model, "_supports_sdpa", False) or model.config._attn_implementation != "sdpa":
            raise NotAskedError("attention in one way only")
        other = copy.deepcopy(model)
        other.set_attn_implementation("eager")
        return precheck.compare(model, other, given.inputs, loss=losses, precision=precision)


def line(given: Built, way: str, precision: str) -> dict[str, Any]:
    begun = time.perf_counter()
    found: dict[str, Any] = {"model": given.name, "way": way, "precision": precision}
    try:
        said = report(given, way, precision)
        found |= {"verdict": said.verdict, "errors": [each.message for each in said.errors]}
    except (NotAskedError, precheck.InputError) as error:  # the latter: it keeps nothing that decoding could go on from
        found["without"] = str(error)
    except (Exception, LateError) as error:
        found["raised"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return found | {"seconds": round(time.perf_counter() - begun, 2)}


def main() -> int:
    """1 where an architecture is accused."""
    parser = argparse.ArgumentParser(prog="python suites/architectures/pair_sweep.py", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of types of configurations (default: all)")
    parser.add_argument("--way", action="append", choices=WAYS, help="default: attention, cache")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="default: 32-true and bf16-mixed")
    parser.add_argument("--lines", type=Path, help="record, one JSON object a line")
    parser.add_argument("--most", type=int, default=1000, help="architectures")
    parser.add_argument("--write", type=Path, help="a page whose table is replaced")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _late)
    known = {(each["model"], each["way"], each["precision"]) for each in recorded(asked.lines)}
    left = asked.most
    for family, kind in everything():
        if left and not (asked.names and not any(name in kind for name in asked.names)):
            left -= swept(built(family, kind), asked, known)
    rows = table(recorded(asked.lines))
    print("\n".join(rows))
    if asked.write is not None:
        before, _, rest = asked.write.read_text(encoding="utf8").partition(BEGIN)
        asked.write.write_text("\n".join([before + BEGIN, *rows, END]) + rest.partition(END)[2], encoding="utf8")
    return int(any(each.get("errors") for each in recorded(asked.lines)))


def swept(given: Built, asked: argparse.Namespace, known: set[tuple[str, str, str]]) -> bool:
    """Whether there was something to ask."""
    runs = [(way, precision) for way in asked.way or WAYS[:2] for precision in asked.precision or PRECISIONS[:2]]
    for way, precision in runs if given.model is not None else ():
        if (given.name, way, precision) in known:
            continue
        signal.alarm(PATIENCE)
        try:
            found = line(given, way, precision)
        finally:
            signal.alarm(0)
        said = found.get("without") or found.get("raised") or found["errors"] or found["verdict"]
        print(f"{given.name} {way} {precision} {found['seconds']} s {said}", flush=True)
        if asked.lines:
            with asked.lines.open("a", encoding="utf8") as file:
                file.write(json.dumps(found) + "\n")
    return given.model is not None


def table(lines: list[dict[str, Any]]) -> list[str]:
    rows = ["| asked | precision | architectures | bit for bit | rounding | accused | not run |", "|---|---|---|---|---|---|---|"]
    for way in WAYS:
        for precision in PRECISIONS:
            some = [each for each in lines if each["way"] == way and each["precision"] == precision and "without" not in each]
            judged = [each for each in some if "verdict" in each]
            bits, accused = sum(each["verdict"] == "bitwise" for each in judged), sum(bool(each["errors"]) for each in judged)
            if some:
                counts = (len(some), bits, len(judged) - bits - accused, accused, len(some) - len(judged))
                rows.append(f"| {way} | {precision} | " + " | ".join(map(str, counts)) + " |")
    return rows


if __name__ == "__main__":
    sys.exit(main())
