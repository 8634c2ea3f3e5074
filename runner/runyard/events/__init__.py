"""Events of runs: written by attempts, followed by readers."""
