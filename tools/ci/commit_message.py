"""Check the first line of a commit message: `area: imperative summary`, at most 72 characters."""

import re
import sys
from pathlib import Path

SUBJECT = re.compile(r"[a-z][a-z0-9 ,/.-]*: \S.*[^.\s]")


def fault(message: str) -> str | None:
    """Return the first problem of a commit message; None if it has none."""
    subject = message.partition("\n")[0]
    # Git writes these subjects itself.
    if re.match(r"(Merge|Revert|fixup!|squash!) ?", subject):
        return None

    if len(subject) > 72:
        return f"the subject has {len(subject)} characters; the limit is 72"

    if not SUBJECT.fullmatch(subject):
        return (
            "the subject must read `area: imperative summary`, with a lower-case area and without "
            "a full stop"
        )
    return None


if __name__ == "__main__":
    problem = fault(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.exit(f"commit message: {problem}" if problem else 0)
