"""APIs of other systems, each in a separate package. Their clients work unmodified on the threads of runyard."""
