"""How long steps take and how much memory they hold, with nothing of precheck's inside what is timed."""
