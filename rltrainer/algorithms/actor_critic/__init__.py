"""Off-policy algorithms with an actor beside their critics."""
