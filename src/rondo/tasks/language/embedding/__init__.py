"""Texts as vectors: sentence pairs and triplets."""
