"""PostgreSQL roles as Kubernetes objects, with drift inside the database noticed within milliseconds."""

__version__ = "0.3.0"
