"""Work that takes longer than a request: exports, and batches of tenants with their files."""
