"""One core for JAX: to be imported before it. Its thread pools ask how many cores there are, not OMP_NUM_THREADS."""

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
os.environ["JAX_PLATFORMS"] = "cpu"
if hasattr(os, "sched_setaffinity"):  # what `taskset` does
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
