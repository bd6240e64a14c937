"""docs/reference, made from the parsers, the docstrings and the schema, so that it cannot say anything else than they do.

python suites/docs/reference.py      # writes docs/reference/{api,fixtures,command-line,schema}.md
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import precheck
from precheck import __main__ as command
from precheck.plugin import fixtures, markers
from precheck.plugin.settings import add_options

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "precheck" / "report" / "report.schema.json"
FOLDER = ROOT / "docs" / "reference"
MADE = "<!-- made by python suites/docs/reference.py -->\n"
FIXTURES = (
    "check_precision", "watch_precision", "check_parity", "check_invariance", "check_kernel", "gpu_benchmark", "precision", "precision_device",
)  # fmt: skip


def pages() -> dict[str, str]:
    """Names of files and their content."""
    made = {"api.md": _api(), "fixtures.md": _fixtures(), "command-line.md": _command_line(), "schema.md": _schema()}
    return {name: f"{MADE}\n{text.rstrip()}\n" for name, text in made.items()}


def _api() -> str:
    names = [name for name in precheck.__all__ if not name.startswith("__")]
    kinds = {"Functions": ("call", inspect.isfunction), "Classes": ("class", inspect.isclass)}
    text = "# Functions and classes\n\nEverything here is imported from `precheck`. *Source code* opens the code of each.\n"
    for title, (kind, matches) in kinds.items():
        chosen = [name for name in names if matches(inspect.unwrap(getattr(precheck, name)))]
        text += f"\n## {title}\n\n{_table((kind, 'what it is'), [_called(name) for name in chosen])}\n\n"
        text += "\n".join(f"::: precheck.{name}\n" for name in chosen)
    text += "\n## Tables\n\n- `precheck.RULES`: every [rule](../rules/README.md) by name.\n"
    text += "- `precheck.PRECISIONS`: every [precision](precisions.md) by name.\n"
    text += "- `precheck.FORMATS`: every number format by name, a `precheck.Format` each.\n"
    drawn = ("tensors.tensors", "tokens.tokens", "masking.padded", "masking.masks")
    text += "\n## Strategies for hypothesis\n\nThese are imported from `precheck.strategies`.\n\n"
    return text + "\n".join(f"::: precheck.strategies.{name}\n    options:\n      show_root_full_path: false\n" for name in drawn)


def _called(name: str) -> tuple[str, str]:
    """The name, of a function with its arguments, and the first sentence of its docstring: what a reader sees where no site is built."""
    public = getattr(precheck, name)
    first = re.split(r"(?<=[.])\s", " ".join((inspect.getdoc(public) or "").split()), maxsplit=1)[0]
    if inspect.isclass(public):
        return f"`{name}`", first
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in inspect.signature(public).parameters.values()]
    return f"`{name}{inspect.Signature(plain)}`", first


def _fixtures() -> str:
    text = "# Fixtures and markers\n\nThe plugin gives them to every test; there is nothing to import.\n\n## Fixtures\n"
    for name in FIXTURES:
        text += f"\n### `{name}`\n\n{_documented(name)}\n"
    rows = [(f"`@pytest.mark.{line.partition(': ')[0]}`", line.partition(": ")[2]) for line in markers.LINES]
    return text + "\n## Markers\n\n" + _table(("marker", "what it does"), rows)


def _documented(name: str) -> str:
    """A fixture's docstring; its first line is the call where it says one."""
    from precheck.plugin import benchmark

    given: Any = benchmark.Benchmarks.gpu_benchmark if name == "gpu_benchmark" else getattr(fixtures, name)
    first, _, rest = (inspect.getdoc(given) or "").partition("\n")
    call = re.fullmatch(r"((?:with )?\w+\(.*\)(?: as \w+| -> \w+)?)([.:].*)", first)
    head = f"```text\n{call[1]}\n```\n\n{call[2].lstrip('.: ').capitalize()}".rstrip() if call else first
    return f"{head}\n\n{rest.lstrip()}".rstrip()


class _Options:
    """What settings.add_options tells a parser, kept in order."""

    def __init__(self) -> None:
        self.options: list[SimpleNamespace] = []
        self.ini: list[SimpleNamespace] = []

    def getgroup(self, name: str, description: str) -> _Options:
        return self

    def addoption(self, flag: str, **more: Any) -> None:
        self.options.append(SimpleNamespace(flag=flag, **{"metavar": None, "choices": None, "nargs": None, **more}))

    def addini(self, name: str, help: str, type: str | None = None, default: Any = None) -> None:
        self.ini.append(SimpleNamespace(name=name, help=help, type=type, default=default))


def _options() -> _Options:
    told = _Options()
    add_options(told)  # type: ignore[arg-type]
    return told


def flags() -> set[str]:
    """pytest's options that are precheck's."""
    return {option.flag for option in _options().options}


def _command_line() -> str:
    told = _options()
    text = "# Command line and settings\n\n## `pytest`\n\nThe command line wins over the ini file.\n\n"
    text += _table(("option", "what it does"), [(f"`{_flag(each)}`", each.help) for each in told.options])
    text += "\n\n## The ini file\n\nIn `[tool.pytest.ini_options]` of `pyproject.toml`, or `[pytest]` of `pytest.ini` and `tox.ini`.\n\n"
    rows = [(f"`{each.name}`", each.help, "" if each.default in (None, "") else f"`{each.default}`") for each in told.ini]
    text += _table(("entry", "what it does", "default"), rows)
    text += "\n\n## `python -m precheck`\n"
    for parser in _parsers(command._parser()):
        rows = [(f"`{_argument(each)}`", each.help or "") for each in parser._actions]
        text += f"\n### `{parser.prog}`\n\n{parser.description}\n\n{_table(('argument', 'what it does'), rows)}\n\n{parser.epilog}\n"
    return text


def _argument(action: argparse.Action) -> str:
    """As one types it."""
    value = action.metavar or "|".join(action.choices or ())
    named = "=".join(filter(None, (action.option_strings[-1:] or [""])[0:1] + ([str(value)] if action.nargs != 0 and value else [])))
    return f"[{named}]" if action.nargs == "?" else named


def _flag(option: SimpleNamespace) -> str:
    value = option.metavar or "|".join(option.choices or ())
    return option.flag + (f"[={value}]" if option.nargs == "?" else f"={value}" if value else "")


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser itself where it runs something, and those of its commands."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield parser
    for group in groups:
        for each in group.choices.values():
            yield from _parsers(each)


def _schema() -> str:
    schema = json.loads(SCHEMA.read_text(encoding="utf8"))
    text = f"# JSON schema\n\n{schema['description']}\n\n"
    text += "The [schema itself](../../precheck/report/report.schema.json) is installed with the package. "
    text += "[Reports](../report.md) says what the fields mean.\n"
    for name, part in schema["$defs"].items():
        text += f"\n## `{name}`\n\n{part.get('description', '')}\n"
        needed = part.get("required", ())
        fields = part.get("properties", {}).items()
        rows = [(f"`{key}`", _type(each), "yes" if key in needed else "", each.get("description", "")) for key, each in fields]
        text += f"\n{_table(('field', 'type', 'required', 'what it is'), rows)}\n" if rows else ""
    return text


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(map(_type, value["anyOf"]))
    if "enum" in value or "const" in value:
        return " or ".join(f"`{json.dumps(each)}`" for each in value.get("enum", [value.get("const")]))
    if "items" in value and isinstance(value["items"], dict):
        return f"array of {_type(value['items'])}"
    named = value.get("type", "any")
    return " or ".join(named) if isinstance(named, list) else str(named)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *[[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf8")
        sys.stdout.write(f"docs/reference/{name}\n")


if __name__ == "__main__":
    main()
