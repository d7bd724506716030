"""Time packaged variants again on a machine, and keep what was found: ``tlaot retune``."""
