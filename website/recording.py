"""Record a command in a terminal as an animated picture: `python website/recording.py FILE.svg COMMAND…`.

The command runs in a terminal of its own. What it writes is drawn as text, one frame for each second in which something
changes, and played faster than it happened. Readers who prefer no motion see the last frame.
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

COLUMNS, ROWS = 100, 30
# How much faster it is played, and how long the last frame stays, in seconds.
SPEED, LAST = 6.0, 6.0
_CHARACTER, _LINE, _MARGIN = 7.8, 17, 14
_COLOURS = {31: "#ff7b72", 32: "#3fb950", 33: "#d29922", 34: "#58a6ff", 35: "#bc8cff", 36: "#39c5cf"}
_CODE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|[\r\n]|[^\x1b\r\n]")

Run = tuple[str, str]
"""Text, and the classes of its style."""
Line = tuple[Run, ...]
Screen = tuple[Line, ...]


@dataclass
class Terminal:
    """As much of a terminal as progress displays use: colours, moving up, erasing lines, scrolling."""

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
                self._reach()
            elif match[0] == "\r":
                self.column = 0
            else:
                self._put(match[0])

    def screen(self) -> Screen:
        """What is to be seen: the last rows, with neighbours of one style together."""
        return tuple(_runs(line) for line in self.lines[-self.rows :])

    def _put(self, character: str) -> None:
        if self.column >= self.columns:
            self.row, self.column = self.row + 1, 0
            self._reach()
        line = self.lines[self.row]
        line.extend([(" ", "")] * (self.column + 1 - len(line)))
        line[self.column] = (character, self.style)
        self.column += 1

    def _control(self, numbers: str, kind: str) -> None:
        number = int(numbers) if numbers.isdigit() else 1
        if kind == "A":
            self.row = max(0, len(self.lines) - self.rows, self.row - number)
        elif kind == "K":
            # Progress displays erase whole lines.
            del self.lines[self.row][0 if numbers == "2" else self.column :]
        elif kind == "m":
            self._select([int(each or 0) for each in numbers.split(";")])

    def _select(self, codes: Sequence[int]) -> None:
        for code in codes:
            found = {0: "", 1: "b", 2: "d", 3: "i"}.get(code, f"c{code}" if code in _COLOURS else None)
            if found is not None:
                self.style = " ".join(filter(None, [self.style, found])) if found else ""

    def _reach(self) -> None:
        while len(self.lines) <= self.row:
            self.lines.append([])


def record(command: Sequence[str]) -> tuple[list[tuple[float, Screen]], int]:
    """Run a command; return what was to be seen, with the second since its start, and its exit status."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        os.execvp(command[0], list(command))  # noqa: S606 - the command that the caller names
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    shown, frames, started = Terminal(), list[tuple[float, Screen]](), time.monotonic()
    shown.write(f"$ {' '.join([Path(command[0]).name, *command[1:]])}\n\r")
    rest = b""
    while True:
        try:
            content = rest + os.read(terminal, 65536)
        except OSError:  # the program has ended
            break
        text = content.decode("utf-8", "ignore")
        rest = content[len(text.encode()) :] if len(content) - len(text.encode()) < 4 else b""
        shown.write(text)
        second = time.monotonic() - started
        screen = shown.screen()
        if frames and int(frames[-1][0]) == int(second):
            frames[-1] = (second, screen)
        elif not frames or frames[-1][1] != screen:
            frames.append((second, screen))
    return frames, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def drawn(frames: Sequence[tuple[float, Screen]], speed: float = SPEED) -> str:
    """Return the animation. Lines that several frames show are in it once."""
    lines: dict[Line, str] = {}
    starts = [second / speed for second, _ in frames]
    total = starts[-1] + LAST
    body, rules = [], []
    for number, (_, screen) in enumerate(frames):
        end = starts[number + 1] if number + 1 < len(frames) else total
        uses = "".join(
            f'<use href="#{lines.setdefault(line, f"l{len(lines)}")}" y="{row * _LINE}"/>'
            for row, line in enumerate(screen)
            if line
        )
        body.append(f'<g id="f{number}">{uses}</g>')
        rules += [f"#f{number}{{animation:f{number} {total:.2f}s infinite step-end}}"]
        first, last = 100 * starts[number] / total, 100 * end / total
        rules.append(
            f"@keyframes f{number}{{0%{{visibility:{'visible' if not number else 'hidden'}}}"
            f"{first:.3f}%{{visibility:visible}}{min(last, 100):.3f}%{{visibility:hidden}}}}"
        )
    width, height = round(COLUMNS * _CHARACTER + 2 * _MARGIN), ROWS * _LINE + 2 * _MARGIN
    definitions = "".join(f'<text id="{name}">{"".join(_spans(line))}</text>' for line, name in lines.items())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            f"<style>{_style()}{''.join(rules)}",
            "@media (prefers-reduced-motion:reduce){svg g g{animation:none!important}"
            f"#f{len(frames) - 1}{{visibility:visible}}}}</style>",
            f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/><defs>{definitions}</defs>',
            f'<g transform="translate({_MARGIN} {_MARGIN + 12})">{"".join(body)}</g></svg>\n',
        ]
    )


def _style() -> str:
    font = "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#c9d1d9;white-space:pre}"
    colours = "".join(f".c{code}{{fill:{colour}}}" for code, colour in _COLOURS.items())
    return f"{font}.b{{font-weight:bold}}.d{{opacity:.7}}.i{{font-style:italic}}{colours}svg g g{{visibility:hidden}}"


def _spans(line: Line) -> Iterator[str]:
    column = 0
    for text, style in line:
        if text.strip():
            styled = f' class="{style}"' if style else ""
            # Where this machine has its temporary files is of no interest.
            shown = text.replace(f"{tempfile.gettempdir()}/", "")
            length = f' textLength="{len(shown) * _CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs"'
            yield f'<tspan x="{column * _CHARACTER:.1f}"{styled}{length}>{escape(shown)}</tspan>'
        column += len(text)


def _runs(line: Sequence[Run]) -> Line:
    found: list[Run] = []
    for character, style in line:
        if found and found[-1][1] == style:
            found[-1] = (found[-1][0] + character, style)
        else:
            found.append((character, style))
    while found and not found[-1][0].strip():
        found.pop()
    return tuple(found)


def main(file: Path, command: Sequence[str]) -> int:
    """Record a command into a file; return its exit status."""
    frames, status = record(command)
    file.write_text(drawn(frames), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
