"""Run functions of tensors: as written, compiled, as a compiled loop of the CPU, or as CUDA graphs."""
