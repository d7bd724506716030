"""What an author declares, and what is to be done for it: ``tltune.toml`` as plain data."""
