"""Worker processes: one kind for envs, for collectors and for runs.

1. `Worker(program, arguments)` starts a process, which makes `program(link, *arguments)` and serves calls to it.
2. `call(when, name, ...)` calls a method there, `receive` waits for its result or raises its failure; one at a time.
3. A step and its plain answer are single bytes, arrays lie in `SharedArrays`, and all else is pickled into the socket.
4. The pulse, a number in shared memory, shows progress; a dead or hanging process is a `WorkerLostError` that says how.
5. A process ends when its `WorkerGroup` does, when its socket is closed, and when its parent is gone.
"""
