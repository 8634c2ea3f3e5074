"""Events of runs: attempts write them, and readers follow them."""
