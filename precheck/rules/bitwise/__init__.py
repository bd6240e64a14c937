"""The rule `bitwise`."""
