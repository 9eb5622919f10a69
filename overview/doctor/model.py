"""One check and its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    """Outcome of a check, the worst first."""

    ERROR = "error"
    WARNING = "warning"
    SKIPPED = "skipped"
    """It could not be checked: a right is missing, or a server does not answer."""
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Check:
    """A check `id` of a subject; `remedy` says what to do unless it is ok."""

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
    """A check that found nothing wrong."""
    return Check(check, subject, Result.OK, message)


def skipped(check: str, subject: str, why: str) -> Check:
    """A check that could not be made."""
    return Check(check, subject, Result.SKIPPED, why)


def worst(checks: Iterable[Check]) -> Result:
    """The worst result, `ok` of nothing."""
    order = list(Result)
    return min((check.result for check in checks), key=order.index, default=Result.OK)
