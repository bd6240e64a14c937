"""`python suites/field/results.py LINES`: takes the record of a run into the committed results, and makes the tables of docs/field-report.md.

`results.jsonl` has a line for each run, `judged.json` says of each error whether it is true, and by which evidence. Without LINES only the page
is made.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from fieldcase import loaded
from run import recorded

FOLDER = Path(__file__).parent
RESULTS, JUDGED, PAGE = FOLDER / "results.jsonl", FOLDER / "judged.json", FOLDER.parents[1] / "docs" / "field-report.md"
Line = dict[str, Any]
KINDS = {"true": "a fault of the code", "chosen": "true, and the price of the precision that the run chose", "false": "no harm shown"}
"""What an error is judged to be. The first two are true."""
DOMAINS = {
    "attention": "attention",
    "forecasts": "forecasts",
    "generative": "generative models",
    "geometry": "rotations, spheres, rendering",
    "graphs": "graphs, tables, decisions",
    "images": "images",
    "optimizers": "optimizers",
    "physics": "geometry, optics, robots, transforms",
    "image_layers": "layers, losses and metrics of images",
    "probability": "probability, uncertainty, ranking",
    "recommenders": "recommendation",
    "science": "science and losses",
    "sequences": "sequences",
    "sound": "sound",
    "structured": "layers whose weights are bound",
    "atoms": "atoms, accelerators, equations",
    "inference": "inference, ranking, decisions",
    "language": "language, genomes, videos",
    "restoration": "image quality and restoration",
    "speech": "speech",
    "small_networks": "networks and layers",
    "curves": "losses, curves, distributions and filters",
    "estimators": "densities, ordinal and ranking models, Bayesian layers",
    "solvers": "robots, atoms, lenses, control and equations",
    "further_networks": "volumes, points, spikes, tables and weather",
    "alignments": "alignments, imbalanced losses, divergences, logic",
    "symmetric_networks": "memories, codes, symmetries and bounds",
}


def place(error: Line) -> str:
    """The line that an error blames: of the package where there is one, else of the case."""
    return str(error["via"] or error["source"] or "no line")


def key(line: Line, error: Line) -> str:
    return f"{line['case']} {line['precision']} {error['rule']} {place(error)}"


def errors(lines: list[Line]) -> list[tuple[Line, Line]]:
    return [(line, error) for line in lines for error in line.get("errors", [])]


def verdicts() -> dict[str, Line]:
    """By the key of an error: {"is": "true", "evidence": …}."""
    return dict(json.loads(JUDGED.read_text(encoding="utf8")))


def totals(lines: list[Line], judged: dict[str, Line]) -> dict[str, int]:
    ran = [line for line in lines if "unable" not in line]
    kinds = Counter(judged[key(line, error)]["is"] for line, error in errors(lines))
    return {
        "code bases": len({line["package"] for line in ran}),
        "cases": len({line["case"] for line in ran}),
        "watched runs": len(ran),
        "runs without an error": sum(1 for line in ran if not line.get("errors")),
        "errors": sum(kinds.values()),
        "errors that are true": kinds["true"] + kinds["chosen"],
        "of these, lost updates of an optimizer under bf16-true": kinds["chosen"],
        "errors that are false": kinds["false"],
        "runs whose code gives other bits each time without precheck, too": sum(1 for line in ran if line.get("unsteady")),
        "altered results": sum(1 for line in ran if line.get("altered")),
        "crashes of precheck": sum(1 for line in ran if "crash" in line),
    }


def summary(lines: list[Line]) -> list[str]:
    judged = verdicts()
    found = totals(lines, judged)
    share = 100 * found["errors that are true"] / max(1, found["errors"])
    rows = [f"| {name} | {number}{f' ({share:.1f} %)' if name == 'errors that are true' else ''} |" for name, number in found.items()]
    return ["| | |", "|---|---|", *rows]


def table(lines: list[Line]) -> list[str]:
    """A row for each case: its runs, and its errors by rule and line."""
    judged, rows = verdicts(), ["| case | package | runs | errors | true | what is found |", "|---|---|---|---|---|---|"]
    for domain, words in DOMAINS.items():
        cases = {line["case"]: None for line in lines if line["domain"] == domain}
        rows += [f"| **{words}** | | | | | |"] if cases else []
        rows += [_row([line for line in lines if line["case"] == name], judged) for name in cases]
    return rows


def _row(lines: list[Line], judged: dict[str, Line]) -> str:
    found = errors(lines)
    right = sum(judged[key(line, error)]["is"] != "false" for line, error in found)
    places: dict[str, list[str]] = {}
    for line, error in found:
        places.setdefault(f"{error['rule']}, {_short(place(error))}", []).append(line["precision"])
    words = "; ".join(f"{what} ({', '.join(dict.fromkeys(precisions))})" for what, precisions in places.items())
    unable = "".join(f"; does not run under {line['precision']}" for line in lines if "unable" in line)
    first = lines[0]
    ran = sum("unable" not in line for line in lines)
    return f"| `{first['case']}` | {first['package']} {first['version']} | {ran} | {len(found)} | {right} | {words or 'nothing'}{unable} |"


def _short(path: str) -> str:
    return f"`{path.removeprefix('suites/field/')}`"


def false_ones(lines: list[Line]) -> list[str]:
    judged = verdicts()
    said = {key(line, error): judged[key(line, error)] for line, error in errors(lines)}
    rows = [f"| `{name.split()[0]}` | {' '.join(name.split()[1:])} | {one['evidence']} |" for name, one in said.items() if one["is"] == "false"]
    return ["| case | error | evidence against it |", "|---|---|---|", *rows]


def evidence(lines: list[Line]) -> list[str]:
    """A row for each line that is blamed rightly, with the evidence."""
    judged, rows = verdicts(), ["| case | error | evidence |", "|---|---|---|"]
    said = {key(line, error): judged[key(line, error)] for line, error in errors(lines)}
    for name, one in said.items():
        if one["is"] == "true":
            case, precision, rule, where = name.split(maxsplit=3)
            rows.append(f"| `{case}` | {precision}: {rule} at {_short(where)} | {one['evidence']} |")
    return rows


PARTS = {"totals": summary, "table": table, "evidence": evidence, "false": false_ones}


def made(page: str, lines: list[Line]) -> str:
    """The page, with each part between its marks written anew."""
    for name, part in PARTS.items():
        begin, end = f"<!-- made by results.py: {name} -->\n", f"<!-- end: {name} -->"
        before, _, rest = page.partition(begin)
        page = before + begin + "\n" + "\n".join(part(lines)) + "\n\n" + end + rest.partition(end)[2]
    return page


def main() -> None:
    if len(sys.argv) > 1:
        kept = [{name: value for name, value in line.items() if name not in ("seconds", "opaque")} for line in recorded(Path(sys.argv[1]))]
        for line in kept:
            if line.get("unsteady"):
                line["altered"], line["unsteady"] = [], line["unsteady"][:1]
        order = list(loaded())
        kept.sort(key=lambda line: order.index(line["case"]))
        RESULTS.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf8")
    PAGE.write_text(made(PAGE.read_text(encoding="utf8"), recorded(RESULTS)), encoding="utf8")
    print(PAGE)


if __name__ == "__main__":
    main()
