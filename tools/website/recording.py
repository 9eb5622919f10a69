"""Record a command as an animated picture: `python tools/website/recording.py FILE.svg COMMAND…`.

The command runs in a terminal of its own. What it writes is drawn as text, one frame for each
second in which something changes, and played faster than it happened. Readers who prefer no motion
see the last frame.
"""

import fcntl
import os
import pty
import re
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

COLUMNS = 100
ROWS = 30
# The animation is played this many times faster than it was recorded.
SPEED = 6.0
LAST_FRAME_SECONDS = 6.0
_CHARACTER = 7.8
_LINE = 17
_MARGIN = 14
_COLOURS = {
    31: "#ff7b72",
    32: "#3fb950",
    33: "#d29922",
    34: "#58a6ff",
    35: "#bc8cff",
    36: "#39c5cf",
}
_CODE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|[\r\n]|[^\x1b\r\n]")

Run = tuple[str, str]
"""A text and the classes of its style."""
Line = tuple[Run, ...]
Screen = tuple[Line, ...]


@dataclass
class Terminal:
    """As much of a terminal as progress displays use: colours, moving up, erasing, scrolling."""

    columns: int = COLUMNS
    rows: int = ROWS
    lines: list[list[Run]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: str = ""

    def write(self, text: str) -> None:
        """Interpret what a program writes."""
        for match in _CODE.finditer(text):
            if match[2]:
                self._control(match[1], match[2])
            elif match[0] == "\n":
                self.row += 1
                self._add_missing_lines()
            elif match[0] == "\r":
                self.column = 0
            else:
                self._put(match[0])

    def screen(self) -> Screen:
        """Return the visible rows, with neighbours of one style together."""
        return tuple(_merge_runs(line) for line in self.lines[-self.rows :])

    def _put(self, character: str) -> None:
        # Like a terminal, break a line only when the next character comes.
        if self.column >= self.columns:
            self.row += 1
            self.column = 0
            self._add_missing_lines()

        line = self.lines[self.row]
        line.extend([(" ", "")] * (self.column + 1 - len(line)))
        line[self.column] = (character, self.style)
        self.column += 1

    def _control(self, numbers: str, kind: str) -> None:
        number = int(numbers) if numbers.isdigit() else 1
        if kind == "A":
            # The cursor cannot reach rows that have scrolled away.
            self.row = max(0, len(self.lines) - self.rows, self.row - number)
        elif kind == "K":
            # Progress displays erase whole lines.
            del self.lines[self.row][0 if numbers == "2" else self.column :]
        elif kind == "m":
            self._set_style([int(code or 0) for code in numbers.split(";")])

    def _set_style(self, codes: Sequence[int]) -> None:
        names = {1: "b", 2: "d", 3: "i"} | {code: f"c{code}" for code in _COLOURS}
        for code in codes:
            if code == 0:
                self.style = ""
            elif code in names:
                self.style = f"{self.style} {names[code]}".lstrip()

    def _add_missing_lines(self) -> None:
        while len(self.lines) <= self.row:
            self.lines.append([])


def record(command: Sequence[str]) -> tuple[list[tuple[float, Screen]], int]:
    """Run a command; return its screens, with the second since its start, and its exit status."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        os.execvp(command[0], list(command))  # noqa: S606 - the command that the caller names
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    display = Terminal()
    frames: list[tuple[float, Screen]] = []
    start = time.monotonic()
    display.write(f"$ {' '.join([Path(command[0]).name, *command[1:]])}\n\r")
    incomplete = b""
    while True:
        try:
            content = incomplete + os.read(terminal, 65536)
        except OSError:
            # Linux reports EIO once the program has closed its side.
            break

        # A read may end within a character. It then ends with at most three bytes of it.
        text = content.decode("utf-8", "ignore")
        size = len(text.encode())
        incomplete = content[size:] if len(content) - size < 4 else b""
        display.write(text)

        # Keep the last frame of each second, and none for a second without a change.
        second = time.monotonic() - start
        screen = display.screen()
        if frames and int(frames[-1][0]) == int(second):
            frames[-1] = (second, screen)
        elif not frames or frames[-1][1] != screen:
            frames.append((second, screen))

    return frames, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def draw(frames: Sequence[tuple[float, Screen]], speed: float = SPEED) -> str:
    """Return the animation as SVG, which contains a line of several frames only once."""
    names: dict[Line, str] = {}
    groups = []
    for number, (_, screen) in enumerate(frames):
        uses = "".join(
            f'<use href="#{names.setdefault(line, f"l{len(names)}")}" y="{row * _LINE}"/>'
            for row, line in enumerate(screen)
            if line
        )
        groups.append(f'<g id="f{number}">{uses}</g>')

    rules = "".join(_animation([second / speed for second, _ in frames]))
    width = round(COLUMNS * _CHARACTER + 2 * _MARGIN)
    height = ROWS * _LINE + 2 * _MARGIN
    definitions = "".join(
        f'<text id="{name}">{"".join(_spans(line))}</text>' for line, name in names.items()
    )

    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">\n'
        f"<style>{_style()}{rules}\n"
        "@media (prefers-reduced-motion:reduce){svg g g{animation:none!important}"
        f"#f{len(frames) - 1}{{visibility:visible}}}}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/><defs>{definitions}</defs>\n'
        f'<g transform="translate({_MARGIN} {_MARGIN + 12})">{"".join(groups)}</g></svg>\n'
    )


def _animation(starts: Sequence[float]) -> Iterator[str]:
    """Yield the rules that show each frame from its start to the start of the next frame."""
    total = starts[-1] + LAST_FRAME_SECONDS
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], total], strict=True)):
        yield f"#f{number}{{animation:f{number} {total:.2f}s infinite step-end}}"

        first = 100 * start / total
        last = 100 * end / total
        yield (
            f"@keyframes f{number}{{0%{{visibility:{'visible' if not number else 'hidden'}}}"
            f"{first:.3f}%{{visibility:visible}}{min(last, 100):.3f}%{{visibility:hidden}}}}"
        )


def _style() -> str:
    font = (
        "text{font:13px "
        "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#c9d1d9;white-space:pre}"
    )
    colours = "".join(f".c{code}{{fill:{colour}}}" for code, colour in _COLOURS.items())
    return (
        f"{font}.b{{font-weight:bold}}.d{{opacity:.7}}.i{{font-style:italic}}{colours}svg g "
        "g{visibility:hidden}"
    )


def _spans(line: Line) -> Iterator[str]:
    column = 0
    for text, style in line:
        if text.strip():
            styled = f' class="{style}"' if style else ""
            # Hide the folder for temporary files, which differs between machines.
            label = text.replace(f"{tempfile.gettempdir()}/", "")
            # Fix the length, because columns must stay aligned even if the reader's font is wider.
            length = f' textLength="{len(label) * _CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs"'
            yield f'<tspan x="{column * _CHARACTER:.1f}"{styled}{length}>{escape(label)}</tspan>'
        column += len(text)


def _merge_runs(line: Sequence[Run]) -> Line:
    runs: list[Run] = []
    for character, style in line:
        if runs and runs[-1][1] == style:
            runs[-1] = (runs[-1][0] + character, style)
        else:
            runs.append((character, style))

    while runs and not runs[-1][0].strip():
        runs.pop()
    return tuple(runs)


def main(file: Path, command: Sequence[str]) -> int:
    """Record a command into a file; return its exit status."""
    frames, status = record(command)
    file.write_text(draw(frames), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
