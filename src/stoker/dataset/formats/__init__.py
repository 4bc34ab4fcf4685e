"""One file a format: bytes to samples and back."""
