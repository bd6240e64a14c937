"""What is no whole, intact golden of a known schema is an error of ours that says what to type, whatever it is."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors.numpy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from samples import PROVENANCE, equal, golden, record

from precheck.goldens import file
from precheck.goldens.file import GoldenError, GoldenMissing, decode, encode, read

HINT = "record it again with pytest --golden-refresh=changed"
SMALL = encode(golden(record("a"), record("b", kind="loss", shape=())))


@pytest.mark.parametrize("mask", [*(1 << bit for bit in range(8)), 0xFF])
def test_no_flipped_byte_goes_unnoticed_unless_it_means_nothing(mask: int) -> None:
    whole = decode(SMALL, "x")
    unnoticed = 0
    for place in range(len(SMALL)):
        damaged = bytearray(SMALL)
        damaged[place] ^= mask
        try:
            assert equal(decode(bytes(damaged), "x"), whole), f"byte {place}"
            unnoticed += 1
        except GoldenError as error:
            assert HINT in str(error)  # noqa: PT017 (some of these bytes may be turned)
    assert unnoticed <= 7  # the padding of the header, which is spaces up to a multiple of eight


@pytest.mark.parametrize("more", [b"\0", SMALL])
def test_bytes_after_the_end_are_noticed(more: bytes) -> None:
    with pytest.raises(GoldenError, match="damaged"):
        decode(SMALL + more, "x")


def test_truncation_at_any_length_is_noticed() -> None:
    for length in range(len(SMALL)):
        with pytest.raises(GoldenError, match=r"golden x is damaged.*--golden-refresh=changed"):
            decode(SMALL[:length], "x")


headers = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda held: st.lists(held) | st.dictionaries(st.text(), held)
)


@settings(deadline=None)
@given(st.binary(max_size=300))
@example(b"")
@example(b"\xff" * 8)
@example(struct.pack("<Q", 2**63))
@example(struct.pack("<Q", 10**6) + b"[" * 10**6)
@example(b"\x80\x04\x95\x00.")  # a pickle
def test_garbage_is_no_golden(data: bytes) -> None:
    with pytest.raises(GoldenError, match="damaged"):
        decode(data, "x")


@settings(deadline=None)
@given(headers, headers, headers)
@example("[" * 10**5, None, None)
@example({"schema": 2}, None, None)
@example({"schema": 2, "checksum": "", "provenance": ""}, {"a": {"dtype": "F32", "shape": [2**62], "data_offsets": [0, 2**63]}}, None)
def test_garbage_in_a_header_is_no_golden(sealed: Any, entries: Any, tail: Any) -> None:
    own = {"precheck": sealed if isinstance(sealed, str) else json.dumps(sealed)}
    text = json.dumps({"__metadata__": own, **(entries if isinstance(entries, dict) else {})}).encode()
    with pytest.raises(GoldenError, match=HINT):
        decode(struct.pack("<Q", len(text)) + text + json.dumps(tail).encode(), "x")


def forged(**changes: Any) -> bytes:
    """A golden of one record with other tensors, or other entries in its index, and a checksum that fits them."""
    tensors = safetensors.numpy.load(encode(golden(record())))
    index = json.loads(zlib.decompress(tensors["index"].tobytes()))
    index |= {name: value for name, value in changes.items() if name not in tensors}
    text = changes.pop("index", None) or zlib.compress(json.dumps(index).encode())
    tensors |= {"index": numpy.frombuffer(text, numpy.uint8)} | {name: value for name, value in changes.items() if name in tensors}
    tensors = {name: value for name, value in tensors.items() if value is not None}
    provenance = json.dumps(changes.pop("provenance", PROVENANCE))
    sealed = {"schema": 2, "provenance": provenance, "checksum": file._checksum(provenance, tensors)}
    return safetensors.numpy.save(tensors, {"precheck": json.dumps(sealed)})


def test_a_forgery_of_nothing_is_a_golden() -> None:
    """Else the forgeries below would be refused for their own faults."""
    assert decode(forged(), "x").records[0].record.name == "head"


@pytest.mark.parametrize(
    "changes",
    [
        {"sketches": None},
        {"floats": numpy.zeros((1, 4))},
        {"floats": numpy.zeros((2, 5))},
        {"floats": numpy.zeros(5)},
        {"sketches": numpy.zeros((1, 126), numpy.float32)},
        {"sketches": numpy.full((1, 127), numpy.float32("nan"))},
        {"sketches": numpy.full((1, 127), numpy.float32(3e38))},
        {"exponent": [5000]},
        {"exponent": [10**30]},
        {"exponent": [1.5]},
        {"exponent": []},
        {"name": [3]},
        {"step": ["1"]},
        {"shape": [3]},
        {"shape": [["4"]]},
        {"kind": None},
        {"floors": [["other"]]},
        {"floors": [3]},
        {"floats": numpy.array([[math.inf, 1, 0, 0.1, 0.1]])},
        {"floats": numpy.array([[math.nan, 1, 0, 0.1, 0.1]])},
        {"floats": numpy.array([[-1, 1, 0, 0.1, 0.1]])},
        {"floats": numpy.array([[1, math.nan, 0, 0.1, 0.1]])},
        {"floats": numpy.array([[1, 1, -math.inf, 0.1, 0.1]])},
        {"floats": numpy.array([[1, 1, 0, -0.1, 0.1]])},
        {"floats": numpy.array([[1, 1, 0, 0.1, math.inf]])},
        {"shape": [[-1]]},
        {"shape": [[-1, -1]]},
        {"shape": [[2**32, 2**32]]},
        {"step": [0]},
        {"step": [-5]},
        {"step": [10**30]},
        {"zeros": [10**30]},
        {"nan": [-1]},
        {"kind": ["zzz"]},
        {"provenance": []},
        {"provenance": {}},
        {"provenance": {**PROVENANCE, "seed": "0"}},
        {"provenance": {**PROVENANCE, "device": ["cpu"]}},
        {"index": b"no zlib"},
        {"index": zlib.compress(b"[]")},
        {"index": zlib.compress(b"[" * 10**6)},
        {"index": zlib.compress(b"\xff")},
        {"index": zlib.compress(b"{}")[:-2]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_checksum_that_fits_does_not_make_a_golden(changes: dict[str, Any]) -> None:
    with pytest.raises(GoldenError, match=rf"golden x is damaged: .*{HINT}"):
        decode(forged(**changes), "x")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"floats": numpy.array([[math.inf, 1, 0, 0.1, 0.1]])}, "the output of head has inf as its norm; it is finite and at least 0"),
        ({"floats": numpy.array([[1, 1, 0, 0.1, -2]])}, "the output of head has -2.0 as its true floor; it is finite and at least 0"),
        ({"shape": [[-1, -1]]}, "the output of head has -1 as its smallest size; it is from 0 to 2^63 - 1"),
        ({"zeros": [10**300]}, "the output of head has 100000000000000000000000 as its zeros; it is from 0 to 2^63 - 1"),
        ({"step": [0]}, "the output of head is of step 0; steps are counted from 1"),
        ({"kind": ["zzz"]}, "a tensor is of kind 'zzz'; there are input, handed, returned, output, gradient, "),
    ],
    ids=lambda told: next(iter(told)) if isinstance(told, dict) else "",
)
def test_numbers_that_no_tensor_has_are_named_with_what_there_may_be(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(GoldenError) as caught:
        decode(forged(**changes), "x")
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_small_file_that_unpacks_to_a_great_deal_costs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_LARGEST_INDEX", 1 << 20)
    data = forged(index=zlib.compress(bytes(1 << 26)))
    tracemalloc.start()
    try:
        with pytest.raises(GoldenError, match="larger than any golden's"):
            decode(data, "x")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 23  # the limit, a buffer that doubles, and the file's own bytes a few times; 1 << 26 would be all of it


@pytest.mark.parametrize("schema", [0, 1, 3, "2", None])
def test_another_schema_is_named_with_the_one_that_is_known(schema: Any) -> None:
    text = json.dumps({"__metadata__": {"precheck": json.dumps({"schema": schema})}}).encode()
    with pytest.raises(GoldenError, match=rf"golden x has schema {schema!r}, and this precheck reads schema 2; {HINT}"):
        decode(struct.pack("<Q", len(text)) + text, "x")


def test_safetensors_of_someone_elses_are_not_taken_for_a_golden(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"weight": numpy.zeros(3)}, path)
    with pytest.raises(GoldenError, match=rf"model.safetensors is damaged, or not one of precheck's.*{HINT}"):
        read(path)


def test_no_file_is_missing_and_says_how_to_record_it(tmp_path: Path) -> None:
    path = tmp_path / "none" / "a.safetensors"
    with pytest.raises(GoldenMissing) as caught:
        read(path)
    assert str(caught.value) == f"no golden at {path}; record it with pytest --golden-refresh=missing"


def test_a_folder_in_its_place_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(GoldenError, match=rf"cannot be read: .*{HINT}") as caught:
        read(tmp_path)
    assert not isinstance(caught.value, GoldenMissing)
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)  # an administrator may read what modes forbid
    with pytest.raises(GoldenError, match=r"a\.safetensors cannot be read: Permission denied"):
        read(tmp_path / "a.safetensors")
