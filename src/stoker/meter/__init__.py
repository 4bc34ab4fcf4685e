"""What training waited for: attribution and reports."""
