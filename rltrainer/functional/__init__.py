"""Pure functions of tensors: estimators and losses. No state, no networks, no random numbers."""
