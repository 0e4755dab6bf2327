"""One PostgreSQL server: connections, install, inspect, apply, listen, watch."""
