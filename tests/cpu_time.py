"""How much CPU a callback of a loop that serves every server may take, whatever a tenant stored."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: In seconds of CPU, which do not depend on other load.
LONGEST_CALLBACK = 0.25


@contextmanager
def within_a_callback(what: str = "", callbacks: int = 1) -> Iterator[None]:
    """Asserts that the body takes no longer than so many callbacks may, also if it raises. No garbage is collected
    meanwhile: after thousands of tests in one process, that alone takes as long.
    """
    gc.disable()
    began = time.process_time()
    try:
        yield
    finally:
        took = time.process_time() - began
        gc.enable()
        assert took < callbacks * LONGEST_CALLBACK, what
