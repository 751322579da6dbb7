"""A gradient step: optimizers, gradients and what happens to them, and the parts of an algorithm that it changes."""
