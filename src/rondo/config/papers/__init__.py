"""The papers' settings: a TOML file per paper with its rows, and the reader and writer of them. Imports no torch."""
