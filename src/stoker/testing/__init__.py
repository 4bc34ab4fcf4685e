"""Shipped test tools: the store suite and the crash suite."""
