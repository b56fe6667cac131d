"""Rows: where they come from and which client gets which."""
