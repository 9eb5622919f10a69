"""Checks the first line of a commit message: `area: imperative summary`, at most 72 characters."""

import re
import sys
from pathlib import Path

SUBJECT = re.compile(r"[a-z][a-z0-9 ,/.-]*: \S.*[^.\s]")


def fault(message: str) -> str | None:
    """What is wrong with a message, if anything. Git's own subjects (merge, revert, fixup) are accepted."""
    subject = message.partition("\n")[0]
    if re.match(r"(Merge|Revert|fixup!|squash!) ?", subject):
        return None
    if len(subject) > 72:
        return f"the subject has {len(subject)} characters; the limit is 72"
    if not SUBJECT.fullmatch(subject):
        return "the subject must read `area: imperative summary`, with a lower-case area and without a full stop"
    return None


if __name__ == "__main__":
    found = fault(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.exit(f"commit message: {found}" if found else 0)
