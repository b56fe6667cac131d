"""Rows of the papers: the values that they state, and those that they leave open. Imports no torch."""
