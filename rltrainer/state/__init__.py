"""State that is kept: the codec, the registry of classes, files of tensors."""
