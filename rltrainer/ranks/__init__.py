"""The ranks of a run: who they are, and how they exchange tensors."""
