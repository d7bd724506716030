"""What this machine can build and run, and what it lacks for a project's targets: data, which ``tlaot doctor`` prints."""
