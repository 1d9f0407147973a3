"""A law that a class of one's own should keep, as a test that can be called."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Law:
    """A law about one subject; a call raises an AssertionError that names the law if the subject breaks it.

    `__name__` is the name of the law, which pytest shows: `@pytest.mark.parametrize("law", laws(...))`.

    Example:
        >>> law = pm.testing.regularizer_laws(pm.Gini())[0]
        >>> law.__name__, law()
        ('weights_are_on_the_simplex', None)
    """

    subject: Any
    check: Callable[..., str | None]
    given: tuple[Any, ...]
    where: str = ""

    @property
    def __name__(self) -> str:
        return self.check.__name__.strip("_") + (f"-{self.where}" if self.where else "")

    def __call__(self) -> None:
        says = " ".join((self.check.__doc__ or "").split()).rstrip(".")
        try:
            broken = self.check(self.subject, *self.given)
        except Exception as error:
            raise AssertionError(f"{self.subject} breaks a law: {says}; {error}") from error
        if broken is not None:
            raise AssertionError(f"{self.subject} breaks a law: {says}; {broken}")


def keep(laws: Iterable[Law]) -> None:
    """Call all laws: the first that is broken raises."""
    for law in laws:
        law()
