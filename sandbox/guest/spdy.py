"""Frames of SPDY/3.1, which API servers speak with kubelets to forward ports. Pure.

Only what a forwarded port needs: streams that the other side opens, their data and their end, and pings.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

VERSION = 3
SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
FIN = 1
_CONTROL = 0x80000000
_HEAD = struct.Struct("!II")
_WORDS = """
options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow
authorization cache-control connection content-base content-encoding content-language content-length content-location
content-md5 content-range content-type date etag expect expires from host if-match if-modified-since if-none-match
if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range
referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get
status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin
"""
_CODES = """
100 101 201 202 205 206 300 302 303 304 305 306 307 402 405 406 407 408 409 410 411 412 413 414 415 416 417 502 504 505
"""
_REST = (
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug "
    "Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,"
    "application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset="
    "utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("!I", len(encoded)) + encoded


# Both sides start the compression of headers with this text (SPDY/3, section 2.6.10.1).
DICTIONARY = b"".join(
    [*(_text(word.replace("_", " ")) for word in _WORDS.split()), "".join(_CODES.split()).encode(), _REST.encode()]
)


class SpdyError(Exception):
    """The other side sent what is no SPDY."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The other side opened a stream; names of headers are in lower case."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """Data of a stream; `fin` if no more will come."""

    stream: int
    content: bytes = field(repr=False)
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """The other side aborted a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping, to be answered with its number."""

    number: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """The other side ends the session."""


Frame = Opened | Data | Reset | Ping | GoAway


class Decoder:
    """Makes frames of received bytes, in whatever pieces they come."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._headers = zlib.decompressobj(zdict=DICTIONARY)

    def feed(self, received: bytes) -> Iterator[Frame]:
        """Return the frames that are complete. Raises SpdyError."""
        self._buffer += received
        while len(self._buffer) >= _HEAD.size:
            first, second = _HEAD.unpack_from(self._buffer)
            flags, length = second >> 24, second & 0xFFFFFF
            if len(self._buffer) < _HEAD.size + length:
                return
            content = bytes(self._buffer[_HEAD.size : _HEAD.size + length])
            del self._buffer[: _HEAD.size + length]
            fin = bool(flags & FIN)
            frame = self._control(first, content, fin=fin) if first & _CONTROL else Data(first, content, fin)
            if frame is not None:
                yield frame

    def _control(self, first: int, content: bytes, *, fin: bool) -> Frame | None:
        if (first >> 16) & 0x7FFF != VERSION:
            raise SpdyError("not SPDY/3")
        kind = first & 0xFFFF
        try:
            match kind:
                case 1:
                    (stream,) = struct.unpack_from("!I", content)
                    return Opened(stream & 0x7FFFFFFF, self._decompressed(content[10:]), fin)
                case 3:
                    (stream,) = struct.unpack_from("!I", content)
                    return Reset(stream & 0x7FFFFFFF)
                case 6:
                    return Ping(*struct.unpack("!I", content))
                case 7:
                    return GoAway()
        except (struct.error, zlib.error, UnicodeDecodeError, IndexError):
            raise SpdyError(f"malformed frame of type {kind}") from None
        # Settings and windows limit what is sent, which no client of a kubelet does.
        return None

    def _decompressed(self, block: bytes) -> dict[str, str]:
        text = self._headers.decompress(block)
        (count,) = struct.unpack_from("!I", text)
        position, words = 4, []
        for _ in range(2 * count):
            (length,) = struct.unpack_from("!I", text, position)
            words.append(text[position + 4 : position + 4 + length].decode())
            position += 4 + length
        return dict(zip(words[::2], words[1::2], strict=True))


class Encoder:
    """Makes bytes of frames to send."""

    def __init__(self) -> None:
        self._headers = zlib.compressobj(zdict=DICTIONARY)

    def opened(self, stream: int, headers: Mapping[str, str]) -> bytes:
        """Open a stream."""
        return _control(SYN_STREAM, struct.pack("!IIH", stream, 0, 0) + self._compressed(headers))

    def reply(self, stream: int) -> bytes:
        """Accept a stream that the other side opened."""
        return _control(SYN_REPLY, struct.pack("!I", stream) + self._compressed({}))

    def data(self, stream: int, content: bytes = b"", *, fin: bool = False) -> bytes:
        """Send data of a stream, or its end."""
        return _HEAD.pack(stream, (FIN if fin else 0) << 24 | len(content)) + content

    def ping(self, number: int) -> bytes:
        """Answer a ping."""
        return _control(PING, struct.pack("!I", number))

    def go_away(self) -> bytes:
        """End the session."""
        return _control(GOAWAY, struct.pack("!II", 0, 0))

    def _compressed(self, headers: Mapping[str, str]) -> bytes:
        text = struct.pack("!I", len(headers))
        text += b"".join(_text(name.lower()) + _text(value) for name, value in headers.items())
        return self._headers.compress(text) + self._headers.flush(zlib.Z_SYNC_FLUSH)


def _control(kind: int, content: bytes) -> bytes:
    return _HEAD.pack(_CONTROL | VERSION << 16 | kind, len(content)) + content
