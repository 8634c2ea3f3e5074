"""APIs of other systems, each in a package of its own. Their clients work unmodified on the threads of runyard."""
