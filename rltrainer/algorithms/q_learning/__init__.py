"""Algorithms that learn action values of discrete actions."""
