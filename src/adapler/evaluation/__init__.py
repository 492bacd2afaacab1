"""Evaluation: accuracy with its cost, explanations to compare with."""
