"""How a worker is reached: a handle that starts, calls and stops it, as a process or as a thread."""
