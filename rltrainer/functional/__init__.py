"""Pure functions of tensors: estimators and losses; statistics of scores. No state and no networks."""
