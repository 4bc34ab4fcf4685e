"""The main job of stoker, written as a user would write it."""
