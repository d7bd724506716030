"""One page that shows what tuning found and what ships: gathered, drawn, written; ``tlaot report``."""
