"""Label selectors of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping

from caphv.api.object import Obj


def selects(selector: Obj, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects an object with these labels; an empty one selects all."""
    required = selector.get("matchLabels") or {}
    return required.items() <= labels.items() and all(
        _fulfils(labels, expression) for expression in selector.get("matchExpressions") or ()
    )


def _fulfils(labels: Mapping[str, str], expression: Obj) -> bool:
    """Whether labels fulfil one of `matchExpressions`; none fulfils an unknown operator."""
    value = labels.get(str(expression.get("key")))
    values = expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False
