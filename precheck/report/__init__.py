"""Words and tables for what judgement found; no opinion of its own."""
