"""Rows: their sources, their checks, and how clients get them."""
