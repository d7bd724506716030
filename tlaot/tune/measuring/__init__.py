"""Is a candidate right, and how fast: the measuring child, its clocks, and the decision between those near the best."""
