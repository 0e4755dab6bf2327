"""PostgreSQL roles as Kubernetes objects, with drift in the database detected within milliseconds."""

__version__ = "0.3.0"
