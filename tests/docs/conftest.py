"""helm and kubectl for the pages, as the tests of deploy/ have them."""

from tests.deploy.conftest import programs

__all__ = ["programs"]
