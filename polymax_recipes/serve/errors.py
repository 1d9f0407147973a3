"""What a server answers instead of a result: a status of HTTP, and a sentence."""


class Refused(Exception):
    """A request that gets no result, with the status of HTTP that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
