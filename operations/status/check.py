"""Model one check with its result, and format lists of names in its message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    """Outcome of a check, the worst first."""

    ERROR = "error"
    WARNING = "warning"
    SKIPPED = "skipped"
    """The check was impossible, because a right is missing or a server does not answer."""
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of check `id` for a subject; unless it is ok, `remedy` says what to do."""

    id: str
    subject: str
    result: Result
    message: str
    remedy: str = ""

    @property
    def wrong(self) -> bool:
        """Whether action is needed."""
        return self.result in (Result.ERROR, Result.WARNING)


def ok(check: str, subject: str, message: str) -> Check:
    """Return a check that found nothing wrong."""
    return Check(check, subject, Result.OK, message)


def skipped(check: str, subject: str, why: str) -> Check:
    """Return a check that could not run."""
    return Check(check, subject, Result.SKIPPED, why)


def worst(checks: Iterable[Check]) -> Result:
    """Return the worst result, `ok` if there is none."""
    order = list(Result)
    return min((check.result for check in checks), key=order.index, default=Result.OK)
