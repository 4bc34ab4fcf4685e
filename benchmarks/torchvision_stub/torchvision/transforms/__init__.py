"""Stands in for torchvision, which does not load beside the CPU build of torch. Nothing here is ever called."""
