"""Algorithms that follow the gradient of the return: on policy."""
