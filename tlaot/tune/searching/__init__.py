"""The tuning loop: what is tried next, when to stop, what is kept of it, and what wins."""
