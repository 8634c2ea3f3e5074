"""Side-by-side benchmarks of runyard and its peers; run with ``python -m benchmarks``."""
