"""A real API server and a real PostgreSQL on this machine, for `dev`, compose.yaml and the tests."""
