"""Maximum CPU time of one callback in the loop that serves every server, whatever a tenant stored."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: In seconds of CPU time, which does not depend on other load.
LONGEST_CALLBACK = 0.25


@contextmanager
def within_a_callback(what: str = "", callbacks: int = 1) -> Iterator[None]:
    """Asserts that the body, even if it raises, takes no longer than this many callbacks may. It disables garbage
    collection, which alone would take as long after thousands of tests in one process.
    """
    gc.disable()
    began = time.process_time()
    try:
        yield
    finally:
        took = time.process_time() - began
        gc.enable()
        assert took < callbacks * LONGEST_CALLBACK, what
