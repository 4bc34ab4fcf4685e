"""Bytes under keys: one interface, several places."""
