"""Measurements of this repository and the tables made from them; not part of the package."""
