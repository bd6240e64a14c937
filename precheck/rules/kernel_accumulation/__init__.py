"""The rule `kernel-accumulation`."""
