"""Frames of SPDY: what one side encodes the other decodes, in whatever pieces it comes."""

import contextlib
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.guest.spdy import DICTIONARY, Data, Decoder, Encoder, Frame, GoAway, Opened, Ping, SpdyError

pytestmark = pytest.mark.unit

STREAMS = st.integers(1, 2**31 - 1)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12)
FRAMES = st.one_of(
    st.builds(Opened, STREAMS, st.dictionaries(NAMES, st.text(max_size=20), max_size=4)),
    st.builds(Data, STREAMS, st.binary(max_size=40), st.booleans()),
    st.builds(Ping, st.integers(0, 2**32 - 1)),
    st.builds(GoAway),
)


def encoded(encoder: Encoder, frame: Frame) -> bytes:
    match frame:
        case Opened(stream, headers, _):
            return encoder.open(stream, headers)
        case Data(stream, content, fin):
            return encoder.data(stream, content, fin=fin)
        case Ping(number):
            return encoder.ping(number)
    return encoder.go_away()


def pieces(text: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return (text[first:last] for first, last in itertools.pairwise(places))


@given(frames=st.lists(FRAMES, max_size=6), cuts=st.lists(st.integers(0, 500), max_size=8))
def test_frames_survive_any_cut(frames: list[Frame], cuts: list[int]) -> None:
    encoder, decoder = Encoder(), Decoder()
    text = b"".join(encoded(encoder, frame) for frame in frames)
    assert [frame for piece in pieces(text, cuts) for frame in decoder.feed(piece)] == frames


def test_dictionary_is_that_of_the_protocol() -> None:
    # Its length in the specification; a client with another one could not read any header.
    assert len(DICTIONARY) == 1423
    assert DICTIONARY.startswith(b"\0\0\0\7options\0\0\0\4head")


@given(noise=st.binary(min_size=8, max_size=60))
def test_noise_is_refused_or_ignored(noise: bytes) -> None:
    with contextlib.suppress(SpdyError):
        assert list(Decoder().feed(noise)) is not None


def test_replies_and_unknown_frames_are_ignored() -> None:
    settings = bytes.fromhex("80030004 00000004 00000000")
    assert list(Decoder().feed(Encoder().reply(1) + settings)) == []
