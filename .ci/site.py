"""What mkdocs is told of pages that a code host shows as they are: links that leave docs/, and fences that name a file.

A hook of mkdocs.yml.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<=\]\()(?P<path>\.\./[^)#\s]+)(?P<heading>#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<kind>\w+)[ \t]+(?P<name>[\w./-]+)$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page with links to the rest of the repository made absolute, and names of files put above their code."""
    folder = posixpath.dirname(page.file.src_uri)
    blob = f"{config.repo_url}/blob/main/"
    return _FENCE.sub(r'\g<ticks>\g<kind> title="\g<name>"', _LINK.sub(lambda link: _absolute(link, folder, blob), markdown))


def _absolute(link: re.Match[str], folder: str, blob: str) -> str:
    """A link out of docs/ leads to the code host; any other stays."""
    target = posixpath.normpath(posixpath.join("docs", folder, link["path"]))
    return link[0] if target.startswith("docs/") else f"{blob}{target}{link['heading'] or ''}"
