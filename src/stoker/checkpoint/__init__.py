"""Training state, saved and restored: atomic, verified, resumable."""
