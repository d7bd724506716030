"""The build side: from ``tltune.toml`` to packaged kernels. Never imported at run time."""
