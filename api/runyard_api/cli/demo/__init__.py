"""The chapters and agents of `runyard demo`."""
