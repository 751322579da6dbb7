"""One core for JAX, or the GPU with `--device cuda`: to be imported before it.

Its thread pools ask how many cores there are, not OMP_NUM_THREADS.
"""

import os
import sys

IS_ON_GPU = "cuda" in sys.argv
os.environ["JAX_PLATFORMS"] = "cuda" if IS_ON_GPU else "cpu"
if not IS_ON_GPU:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    if hasattr(os, "sched_setaffinity"):  # what `taskset` does
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
