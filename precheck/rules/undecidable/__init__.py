"""The rule `undecidable`."""
