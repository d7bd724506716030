"""What a build or a tuning tells: to the person who waits, and to ``autotuner.log``."""
