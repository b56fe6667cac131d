"""Spans of a text, each of a type: names of persons and places, drugs, dates."""
