"""The rule `cancellation`."""
