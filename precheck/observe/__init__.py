"""What happened, with no opinion about it."""
