"""rltrainer: trains reinforcement-learning agents with PyTorch."""
