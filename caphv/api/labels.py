"""Values of labels that follow from names on the management cluster."""

from __future__ import annotations

import hashlib
import re

from caphv.api.object import Key

_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")


def label_value(text: str) -> str:
    """Return `text` if it can be a label value, else its start and a hash.

    The result has at most 63 characters and is unique for each text.
    """
    if _LABEL_VALUE.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    start = re.sub(r"[^-_.A-Za-z0-9]", "-", text)[:52].strip("-_.")
    return f"{start}-{digest}" if start else digest


def cluster_label(cluster: Key) -> str:
    """Return the value of label `caphv.io/cluster`.

    Unlike the Go provider's labels, it contains the namespace.
    """
    return label_value(f"{cluster.namespace}.{cluster.name}")
