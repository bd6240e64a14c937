"""Keeps the shadows of a watched run for as long as they are needed: by storage, within a window of ops."""
