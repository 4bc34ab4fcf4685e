"""What training iterates: fetch, decode, map, hand over."""
