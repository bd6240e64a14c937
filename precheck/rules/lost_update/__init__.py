"""The rule `lost-update`."""
