"""Writes reports as text, JSON, Markdown, HTML and SARIF. Makes no verdicts."""
