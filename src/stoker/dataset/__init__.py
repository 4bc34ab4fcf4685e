"""Data sets: manifests, tar shards, packing, the order of samples."""
