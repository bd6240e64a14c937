"""The rule `vanished-constant`."""
