"""The runs that `measure`, `check`, `watch` and the other calls share, and the judgement of their results."""
