"""Scoring a corpus: input cut into parts, every part answered and written whole or not at all, on one machine or many."""
