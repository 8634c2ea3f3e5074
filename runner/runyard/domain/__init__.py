"""The data of runyard and its rules, without any I/O."""
