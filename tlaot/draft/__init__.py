"""A first ``tltune.toml`` for a package that has kernels already: factories found in its sources, a spec drafted; ``tlaot init``."""
