"""The tour of `runyard demo`."""
