"""Downloads, against a server on this machine that misbehaves on purpose."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sim.errors import TraceError
from traces.fetch import TRACES, PublicTrace, RemoteFile, fetch

BODY = b"arrival_s,prompt_tokens,output_tokens\n" + b"".join(b"%d,5,6\n" % i for i in range(5000))


@dataclass
class Server:
    """What the server answers, and what it was asked."""

    address: str
    body: bytes = BODY
    status: int = 200
    content_type: str = "text/plain"
    etag: str | None = '"v1"'
    ranges: bool = True
    cut_after: int | None = None
    asked: list[dict[str, str]] = field(default_factory=list)

    def trace(self, sha256: str | None = None) -> dict[str, PublicTrace]:
        file = RemoteFile(f"{self.address}/data.csv", sha256)
        return {"a-trace": PublicTrace((file,), "CC0", "Nobody, 2025", "for tests")}


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, state)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: what matters is asserted."""

    http_server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Server(f"http://127.0.0.1:{http_server.server_port}")
    thread = threading.Thread(target=http_server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield state
    http_server.shutdown()
    http_server.server_close()
    thread.join()


def answer(handler: BaseHTTPRequestHandler, state: Server) -> None:
    state.asked.append(dict(handler.headers.items()))
    start, status = 0, state.status
    wanted = handler.headers.get("Range")
    unchanged = handler.headers.get("If-Range") in (None, state.etag)
    if wanted and state.ranges and unchanged and status == 200:
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        status = 206 if start < len(state.body) else 416
    handler.send_response(status)
    handler.send_header("Content-Type", state.content_type)
    if state.etag:
        handler.send_header("ETag", state.etag)
    if status == 416:
        handler.send_header("Content-Range", f"bytes */{len(state.body)}")
        handler.end_headers()
        return
    body = state.body[start:]
    if status == 206:
        last = len(state.body) - 1
        handler.send_header("Content-Range", f"bytes {start}-{last}/{len(state.body)}")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body if state.cut_after is None else body[: state.cut_after])


def refusal(server: Server, folder: Path, sha256: str | None = None) -> str:
    with pytest.raises(TraceError) as caught:
        fetch("a-trace", folder, registry=server.trace(sha256))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_is_downloaded_and_described(server: Server, tmp_path: Path) -> None:
    pieces: list[tuple[int, int | None]] = []
    digest = hashlib.sha256(BODY).hexdigest()

    (got,) = fetch(
        "a_trace",
        tmp_path / "new" / "folder",
        registry=server.trace(digest),
        progress=lambda done, total: pieces.append((done, total)),
    )

    assert got.path.read_bytes() == BODY
    assert (got.size_bytes, got.sha256, got.resumed_bytes) == (len(BODY), digest, 0)
    assert pieces[-1] == (len(BODY), len(BODY))
    for text in (digest, "the same as in a copy", "CC0", "Nobody, 2025", f"{len(BODY):,} bytes"):
        assert text in got.render()
    assert [path.name for path in got.path.parent.iterdir()] == ["data.csv"]


def test_without_a_known_digest_it_says_that_nothing_was_compared(
    server: Server, tmp_path: Path
) -> None:
    (got,) = fetch("a-trace", tmp_path, registry=server.trace())

    assert got.known_from is None
    assert "not compared" in got.render()


def test_nothing_is_ever_overwritten(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("mine")

    assert "is there already" in refusal(server, tmp_path)
    assert (tmp_path / "data.csv").read_text() == "mine"
    assert server.asked == []


def test_a_short_body_is_refused_and_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.cut_after = 1000
    assert f"ends after 1,000 of {len(BODY):,} bytes" in refusal(server, tmp_path)
    assert not (tmp_path / "data.csv").exists()

    server.cut_after = None
    (got,) = fetch("a-trace", tmp_path, registry=server.trace())

    assert server.asked[-1]["Range"] == "bytes=1000-"
    assert server.asked[-1]["If-Range"] == '"v1"'
    assert got.resumed_bytes == 1000
    assert got.path.read_bytes() == BODY


def test_a_file_that_changed_meanwhile_is_read_from_its_start(
    server: Server, tmp_path: Path
) -> None:
    server.cut_after = 1000
    refusal(server, tmp_path)
    server.cut_after, server.etag, server.body = None, '"v2"', BODY.replace(b",5,", b",7,")

    (got,) = fetch("a-trace", tmp_path, registry=server.trace())

    assert got.resumed_bytes == 0
    assert got.path.read_bytes() == server.body


def test_a_server_without_ranges_is_read_from_its_start(server: Server, tmp_path: Path) -> None:
    server.cut_after = 1000
    refusal(server, tmp_path)
    server.cut_after, server.ranges = None, False

    (got,) = fetch("a-trace", tmp_path, registry=server.trace())

    assert got.path.read_bytes() == BODY


def test_a_transfer_broken_after_its_last_byte_is_finished(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.csv.part").write_bytes(BODY)

    (got,) = fetch("a-trace", tmp_path, registry=server.trace())

    assert got.resumed_bytes == len(BODY)
    assert got.path.read_bytes() == BODY


def test_a_longer_rest_than_the_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.csv.part").write_bytes(BODY + b"more")

    assert "has changed" in refusal(server, tmp_path)
    assert not (tmp_path / "data.csv.part").exists()


@pytest.mark.parametrize("status", [403, 404, 429, 500, 503])
def test_a_refusal_is_one_line_with_its_status(server: Server, tmp_path: Path, status: int) -> None:
    server.status = status

    assert f"the server says {status}" in refusal(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "content_type", "says"),
    [
        (b"<!DOCTYPE html><html>sign in</html>", "text/html; charset=utf-8", "page of HTML"),
        (b"<!DOCTYPE html><html>sign in</html>", "text/plain", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid x\n", "text/plain", "Git LFS pointer"),
        (b"", "text/plain", "empty"),
    ],
)
def test_a_body_that_is_no_data_is_refused_and_not_kept(
    server: Server, tmp_path: Path, body: bytes, content_type: str, says: str
) -> None:
    server.body, server.content_type = body, content_type

    assert says in refusal(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_digest_than_the_known_one_is_refused(server: Server, tmp_path: Path) -> None:
    message = refusal(server, tmp_path, "0" * 64)

    assert hashlib.sha256(BODY).hexdigest() in message
    assert "expected " + "0" * 64 in message
    assert not (tmp_path / "data.csv").exists()


def test_no_server_is_one_line(tmp_path: Path, server: Server) -> None:
    file = RemoteFile("http://127.0.0.1:9/data.csv")
    registry = {"gone": PublicTrace((file,), "CC0", "Nobody", "for tests")}

    with pytest.raises(TraceError, match="refused"):
        fetch("gone", tmp_path, registry=registry)


def test_unknown_name_gives_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="did you mean azure-conv-2023"):
        fetch("azure-conv-2032", tmp_path)


def test_every_public_trace_states_address_licence_and_citation() -> None:
    for trace in TRACES.values():
        assert trace.licence
        assert trace.citation
        assert trace.about
        for file in trace.files:
            assert file.url.startswith("https://")
            assert file.sha256 is None or len(file.sha256) == 64
