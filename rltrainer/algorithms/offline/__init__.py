"""Algorithms that learn from data they cannot add to."""
