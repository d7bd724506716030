"""From a factory and a config to a finished ``executable.so``: the workers, the compilers, the linker."""
