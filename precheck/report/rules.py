"""A page for each rule."""

def pages() -> dict[str, str]:
    return {}
