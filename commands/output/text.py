"""Text for a terminal, in which foreign text cannot act as control codes."""

from __future__ import annotations

from typing import Any, Self, cast

import rich.text
from rich.style import Style

from caphv.api.plaintext import one_line


class Text(rich.text.Text):
    """rich's Text for one line, without escape sequences and control characters.

    rich itself removes only a few of them.
    """

    def __init__(self, text: str = "", style: str | Style = "", **options: Any) -> None:
        super().__init__(one_line(text), style, **options)

    @classmethod
    def assemble(
        cls, *parts: str | rich.text.Text | tuple[str, str | Style], **options: Any
    ) -> Self:
        """Join texts, with a style each or without."""
        return cast("Self", super().assemble(*parts, **options))

    def append(self, text: rich.text.Text | str, style: str | Style | None = None) -> Self:
        """Add text, which is cleaned like the text of the constructor."""
        super().append(one_line(text) if isinstance(text, str) else text, style)
        return self
