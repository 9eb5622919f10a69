"""Frames of SPDY/3.1, which API servers speak with kubelets to forward ports. Pure.

The module has only the frames for forwarded ports: streams that the other side opens, their data
and their end, and pings.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

VERSION = 3
SYN_STREAM = 1
SYN_REPLY = 2
PING = 6
GOAWAY = 7
FIN = 1
_CONTROL = 0x80000000
_HEAD = struct.Struct("!II")
_WORDS = """
options head post put delete trace accept accept-charset accept-encoding accept-language
accept-ranges age allow authorization cache-control connection content-base content-encoding
content-language content-length content-location content-md5 content-range content-type date etag
expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since
last-modified location max-forwards pragma proxy-authenticate proxy-authorization range referer
retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate
method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin
"""
_CODES = """
100 101 201 202 205 206 300 302 303 304 305 306 307 402 405 406 407 408 409 410 411 412 413 414 415
416 417 502 504 505
"""
_PHRASES = (
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request"
    "401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented"
    "503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, "
    "GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,"
    "text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8"
    "charset=iso-8859-1,utf-,*,enq=0."
)


def _encode_text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("!I", len(encoded)) + encoded


# Both sides start the compression of headers with this text (SPDY/3, section 2.6.10.1). An
# underscore in the words means a space.
DICTIONARY = b"".join(
    [
        *(_encode_text(word.replace("_", " ")) for word in _WORDS.split()),
        "".join(_CODES.split()).encode(),
        _PHRASES.encode(),
    ]
)


class SpdyError(Exception):
    """The other side sent data that is not SPDY."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The other side opened a stream. The names of the headers are in lower case."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """Data of a stream. `fin` marks the end of the stream."""

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
    """Decodes a stream of bytes, received in pieces of any size, to frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._headers = zlib.decompressobj(zdict=DICTIONARY)

    def feed(self, received: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete. Raises `SpdyError`."""
        self._buffer += received
        while len(self._buffer) >= _HEAD.size:
            first, second = _HEAD.unpack_from(self._buffer)
            flags = second >> 24
            length = second & 0xFFFFFF
            if len(self._buffer) < _HEAD.size + length:
                return

            content = bytes(self._buffer[_HEAD.size : _HEAD.size + length])
            del self._buffer[: _HEAD.size + length]

            # The highest bit marks control frames. The first word of data is its stream.
            fin = bool(flags & FIN)
            if not first & _CONTROL:
                yield Data(first, content, fin)
            elif (frame := self._control(first, content, fin=fin)) is not None:
                yield frame

    def _control(self, first: int, content: bytes, *, fin: bool) -> Frame | None:
        if (first >> 16) & 0x7FFF != VERSION:
            raise SpdyError("not SPDY/3")

        # The cases are numbers, because a bare name would be a pattern that matches everything.
        kind = first & 0xFFFF
        try:
            match kind:
                case 1:
                    (stream,) = struct.unpack_from("!I", content)
                    return Opened(stream & 0x7FFFFFFF, self._decompress(content[10:]), fin)
                case 3:
                    (stream,) = struct.unpack_from("!I", content)
                    return Reset(stream & 0x7FFFFFFF)
                case 6:
                    return Ping(*struct.unpack("!I", content))
                case 7:
                    return GoAway()
        except (struct.error, zlib.error, UnicodeDecodeError, IndexError):
            raise SpdyError(f"malformed frame of type {kind}") from None

        # Ignore settings and windows, because no client of a kubelet limits the data with them.
        return None

    def _decompress(self, block: bytes) -> dict[str, str]:
        text = self._headers.decompress(block)
        (count,) = struct.unpack_from("!I", text)

        # Names and values alternate, each with its length before it.
        position = 4
        words = []
        for _ in range(2 * count):
            (length,) = struct.unpack_from("!I", text, position)
            words.append(text[position + 4 : position + 4 + length].decode())
            position += 4 + length
        return dict(zip(words[::2], words[1::2], strict=True))


class Encoder:
    """Encodes frames to send."""

    def __init__(self) -> None:
        self._headers = zlib.compressobj(zdict=DICTIONARY)

    def open(self, stream: int, headers: Mapping[str, str]) -> bytes:
        """Return the frame that opens a stream."""
        return _control(SYN_STREAM, struct.pack("!IIH", stream, 0, 0) + self._compress(headers))

    def reply(self, stream: int) -> bytes:
        """Return the frame that accepts a stream of the other side."""
        return _control(SYN_REPLY, struct.pack("!I", stream) + self._compress({}))

    def data(self, stream: int, content: bytes = b"", *, fin: bool = False) -> bytes:
        """Return the frame with data of a stream, or with the end of the stream."""
        flags = FIN if fin else 0
        return _HEAD.pack(stream, flags << 24 | len(content)) + content

    def ping(self, number: int) -> bytes:
        """Return the frame that answers a ping."""
        return _control(PING, struct.pack("!I", number))

    def go_away(self) -> bytes:
        """Return the frame that ends the session."""
        return _control(GOAWAY, struct.pack("!II", 0, 0))

    def _compress(self, headers: Mapping[str, str]) -> bytes:
        text = struct.pack("!I", len(headers))
        for name, value in headers.items():
            text += _encode_text(name.lower()) + _encode_text(value)
        # Flush, because the other side must read the headers before more of them come.
        return self._headers.compress(text) + self._headers.flush(zlib.Z_SYNC_FLUSH)


def _control(kind: int, content: bytes) -> bytes:
    return _HEAD.pack(_CONTROL | VERSION << 16 | kind, len(content)) + content
