"""Answers of a server without a result: a status of HTTP, and a sentence."""


class Refused(Exception):
    """The error of a refused request, with its status of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
