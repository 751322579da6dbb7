"""How a function of tensors runs: as written, compiled, as a compiled loop of the CPU, or as CUDA graphs."""
