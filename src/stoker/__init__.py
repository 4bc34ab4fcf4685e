"""stoker: the storage runtime that keeps GPUs fed."""
