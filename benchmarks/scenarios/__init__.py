"""One module per scenario; each declares ``SCENARIO``."""
