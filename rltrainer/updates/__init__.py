"""A gradient step: optimizers, and what happens to gradients."""
