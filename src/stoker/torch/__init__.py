"""The only library room that imports torch."""
