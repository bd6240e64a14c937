"""Watches the ranks of a distributed run together: collectives on shadows, and messages between the ranks."""
