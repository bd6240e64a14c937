"""Names as any encoding can write them: users choose them, and Python allows halves of characters in a string."""

from __future__ import annotations


def writable(words: str) -> str:
    r"""`words` with half a surrogate pair, which no encoding has, as the escape that Python shows: \ud800."""
    return words.encode("utf8", "backslashreplace").decode("utf8")
