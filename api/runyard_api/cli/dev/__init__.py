"""The processes of `runyard dev`."""
