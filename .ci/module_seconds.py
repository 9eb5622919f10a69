"""Writes how long each module of tests takes, for the order in which workers take them.

Usage: module_seconds.py REPORT > .ci/module-seconds with a JUnit XML report of pytest.
"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

HEADER = "# Seconds of modules with six workers on two cores: .ci/module_seconds.py out/reports/clusters.xml"


def lines(report: str) -> list[str]:
    """Return a line with path and seconds for each module, the slowest first."""
    seconds = Counter[str]()
    for case in ElementTree.fromstring(report).iter("testcase"):  # noqa: S314 - our own pytest wrote it
        path = case.get("classname", "").replace(".", "/") + ".py"
        seconds[path] += float(case.get("time") or 0)
    return [HEADER, *(f"{path} {max(1, round(took))}" for path, took in seconds.most_common())]


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines(Path(sys.argv[1]).read_text(encoding="utf-8"))) + "\n")
