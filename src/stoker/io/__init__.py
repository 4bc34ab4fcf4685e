"""Memory, files and checksums: how bytes move on one machine."""
