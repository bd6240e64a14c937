"""The rule `stale-cast`."""
