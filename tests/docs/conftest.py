"""helm and kubectl for the pages, from the fixtures of tests/deploy."""

from tests.deploy.conftest import programs

__all__ = ["programs"]
