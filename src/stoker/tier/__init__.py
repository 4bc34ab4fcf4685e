"""The places of a node and what lies where in them."""
