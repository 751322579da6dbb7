"""Training: optimizers, compiled and recorded gradient steps, and the state that they depend on."""
