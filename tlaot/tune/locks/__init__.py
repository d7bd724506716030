"""Evidence that outlives a build: ``tltune.lock``, the records of earlier builds, and whether they still hold."""
