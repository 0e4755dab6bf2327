"""A real API server and a real PostgreSQL on this machine, for `dev` and for the tests."""
