"""What ends the controller as a whole."""


class CannotStart(Exception):
    """What must be there at the start is not; the message says what to do."""
