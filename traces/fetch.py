"""Download public traces from their publishers: resumed, compared, never overwritten."""

from __future__ import annotations

import hashlib
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sim.errors import TraceError, nearest
from traces.source import refuse_other_content

_AGENT = "phasewise-trace-fetch"
_CHUNK = 1 << 20
_TIMEOUT_S = 60.0
"""Seconds without a byte after which a transfer is given up; it can be resumed."""


@dataclass(frozen=True)
class RemoteFile:
    """A raw file and what is known of it.

    Attributes:
        url: Its address.
        sha256: Of the whole file; None where neither a whole copy was at hand to compute it nor
            its publisher says it.
        known_from: Where the digest comes from.
    """

    url: str
    sha256: str | None = None
    known_from: str = "a copy of the whole file"


@dataclass(frozen=True)
class PublicTrace:
    """Where a publisher keeps a trace.

    Attributes:
        files: Its files.
        licence: Its licence.
        citation: Whom to cite.
        about: One line for listings.
    """

    files: tuple[RemoteFile, ...]
    licence: str
    citation: str
    about: str


@dataclass(frozen=True)
class Fetched:
    """A file that was downloaded.

    Attributes:
        path: Where it lies.
        url: Where it came from.
        size_bytes: Its size.
        sha256: Its digest.
        known_from: Where the known digest comes from that this one equals; None if none is known.
        resumed_bytes: Bytes that an earlier, broken transfer had left.
        licence: Licence of the trace.
        citation: Whom to cite.
    """

    path: Path
    url: str
    size_bytes: int
    sha256: str
    known_from: str | None
    resumed_bytes: int
    licence: str
    citation: str

    def render(self) -> str:
        """Lines for a terminal."""
        compared = (
            f"the same as in {self.known_from}"
            if self.known_from
            else "not compared: no digest of this file is known"
        )
        resumed = f" ({self.resumed_bytes:,} resumed)" if self.resumed_bytes else ""
        return (
            f"{self.path}\nfrom     {self.url}\nsize     {self.size_bytes:,} bytes{resumed}\n"
            f"sha256   {self.sha256} ({compared})\n"
            f"licence  {self.licence}\ncite     {self.citation}"
        )


_GITHUB = "https://raw.githubusercontent.com"
_AZURE = f"{_GITHUB}/Azure/AzurePublicDataset/HEAD/data"
_MOONCAKE = f"{_GITHUB}/kvcache-ai/Mooncake/HEAD/FAST25-release/traces"
_BURSTGPT = "https://media.githubusercontent.com/media/HPMLL/BurstGPT/HEAD/data"
"""Where GitHub serves Git LFS files; the raw address gives the pointer alone."""
_LFS_POINTER = "its publisher's Git LFS pointer"
_VIDUR = f"{_GITHUB}/microsoft/vidur/HEAD/data/processed_traces"
_SERVEGEN = f"{_GITHUB}/alibaba/ServeGen/HEAD/data/reason/deepseek-r1"
_SPLITWISE = "Patel et al., Splitwise, ISCA 2024"
_FAST25 = "Qin et al., Mooncake, FAST 2025"

TRACES: Mapping[str, PublicTrace] = {
    "azure-code-2023": PublicTrace(
        (
            RemoteFile(
                f"{_AZURE}/AzureLLMInferenceTrace_code.csv",
                "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
            ),
        ),
        "CC-BY 4.0",
        _SPLITWISE,
        "an hour of code completion, 8,819 requests",
    ),
    "azure-conv-2023": PublicTrace(
        (RemoteFile(f"{_AZURE}/AzureLLMInferenceTrace_conv.csv"),),
        "CC-BY 4.0",
        _SPLITWISE,
        "an hour of conversations",
    ),
    "mooncake-conversation": PublicTrace(
        (RemoteFile(f"{_MOONCAKE}/conversation_trace.jsonl"),),
        "Apache-2.0",
        _FAST25,
        "an hour of long conversations, with block ids",
    ),
    "mooncake-toolagent": PublicTrace(
        (RemoteFile(f"{_MOONCAKE}/toolagent_trace.jsonl"),),
        "Apache-2.0",
        _FAST25,
        "an hour of tool and agent requests, with block ids",
    ),
    "burstgpt-1": PublicTrace(
        (
            RemoteFile(
                f"{_BURSTGPT}/BurstGPT_1.csv",
                "4bb3783693d0a435686fbfc885615d2349bd067239079fa4b749f2e679e12122",
                _LFS_POINTER,
            ),
        ),
        "CC-BY 4.0",
        "Wang et al., BurstGPT, KDD 2025",
        "two months, 1,429,737 requests",
    ),
    "burstgpt-2": PublicTrace(
        (
            RemoteFile(
                f"{_BURSTGPT}/BurstGPT_2.csv",
                "44bf5942b03fca42c01a226a545ad3a750ec62688faecd67b6831c56a8928bf7",
                _LFS_POINTER,
            ),
        ),
        "CC-BY 4.0",
        "Wang et al., BurstGPT, KDD 2025",
        "two more months, about 3.9 million requests",
    ),
    "weka-0026": PublicTrace(
        (
            RemoteFile(
                f"{_GITHUB}/callanjfox/kv-cache-tester/HEAD/traces/trace_0026.json",
                "84e843bd3a1c799b37bbb55e2f05699e6b3e05ed71c252cd06276a6d5e8c7a39",
            ),
        ),
        "Apache-2.0",
        "C. Fox, kv-cache-tester",
        "one conversation of a coding agent",
    ),
    "vidur-arxiv-lengths": PublicTrace(
        (RemoteFile(f"{_VIDUR}/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"),),
        "MIT",
        "Agrawal et al., Vidur, MLSys 2024",
        "28,257 lengths without arrivals",
    ),
    "servegen-deepseek-r1-17": PublicTrace(
        (
            RemoteFile(
                f"{_SERVEGEN}/chunk-17-trace.csv",
                "8e47030b8664d038ab79c83bba4e25c3fac9fd30295238cb67e00559b4e1c8e3",
            ),
            RemoteFile(
                f"{_SERVEGEN}/chunk-17-dataset.json",
                "da44da281af1e7577af2ed6f564e55221681890b8d8302481e3db79d03165c88",
            ),
        ),
        "Apache-2.0",
        "Xiang et al., ServeGen, arXiv 2505.09999",
        "one client: rates and lengths to draw from, two files",
    ),
}
"""Names for `fetch`."""

Progress = Callable[[int, int | None], None]
"""Called with bytes so far and in all (None if the server does not say)."""


def fetch(
    name: str,
    destination: str | Path = ".",
    *,
    registry: Mapping[str, PublicTrace] = TRACES,
    progress: Progress | None = None,
) -> list[Fetched]:
    """Download the files of a public trace into a folder; a broken transfer is taken up again.

    While a transfer runs the file is called ``NAME.part``; what is there already is never replaced.

    Args:
        name: A key of `registry` (underscores may stand for hyphens).
        destination: Folder, made if it is not there.
        registry: What can be fetched.
        progress: Told of every piece.

    Raises:
        TraceError: One line: no such name, the file is there already, the server refuses or cannot
            be reached, the body is short, or it is a page of HTML, a Git LFS pointer or not the
            known file.
    """
    known = name.replace("_", "-")
    if known not in registry:
        raise TraceError(f"trace fetch: no {name!r}{nearest(known, registry)}")
    trace = registry[known]
    folder = Path(destination)
    targets = [folder / file.url.rsplit("/", 1)[-1] for file in trace.files]
    for target in targets:
        if target.exists():
            raise TraceError(f"{target}: is there already; expected a folder without it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"{folder}: {error.strerror}; expected a folder to write to") from None
    return [
        _fetch_file(trace, file, target, progress)
        for file, target in zip(trace.files, targets, strict=True)
    ]


def _fetch_file(
    trace: PublicTrace, file: RemoteFile, target: Path, progress: Progress | None
) -> Fetched:
    part = target.with_name(target.name + ".part")
    resumed = _download(file.url, part, progress)
    _refuse_wrong_content(file.url, part)
    digest = _digest(part)
    if file.sha256 is not None and digest != file.sha256:
        _forget(part)
        raise TraceError(
            f"{file.url}: SHA-256 {digest}; expected {file.sha256} as in {file.known_from}:"
            " damaged on the way or changed by its publisher; nothing was kept"
        )
    part.rename(target)
    _etag_file(part).unlink(missing_ok=True)
    return Fetched(
        target,
        file.url,
        target.stat().st_size,
        digest,
        file.known_from if file.sha256 else None,
        resumed,
        trace.licence,
        trace.citation,
    )


def _download(url: str, part: Path, progress: Progress | None) -> int:
    """Bring `part` to its full length; return how many bytes of it an earlier try had left."""
    have = part.stat().st_size if part.exists() else 0
    try:
        with _request(url, have, _etag_file(part)) as response:
            if response.status != http.HTTPStatus.PARTIAL_CONTENT:
                have = 0
            total = _total_bytes(url, response, have)
            _refuse_html_type(url, response)
            _keep_etag(response, _etag_file(part))
            done = _copy(response, part, have, total, progress)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return _whole_already(url, part, have, error.headers.get("Content-Range", ""))
        raise TraceError(f"{url}: the server says {error.code} {error.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise TraceError(f"{url}: {reason}; run again to go on where it stopped") from None
    if total is not None and done < total:
        raise TraceError(
            f"{url}: the body ends after {done:,} of {total:,} bytes; run again to go on"
        )
    return have


def _request(url: str, have: int, etag: Path) -> http.client.HTTPResponse:
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if etag.exists():
            # Without a match the server sends the whole file, so that two versions never mix.
            headers["If-Range"] = etag.read_text(encoding="utf-8")
    request = urllib.request.Request(url, headers=headers)
    return cast(http.client.HTTPResponse, urllib.request.urlopen(request, timeout=_TIMEOUT_S))


def _total_bytes(url: str, response: http.client.HTTPResponse, have: int) -> int | None:
    """Full length of the file, and that a partial answer starts where ours ends."""
    if have:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers["Content-Range"] or "")
        if match is None or int(match[1]) != have:
            raise TraceError(
                f"{url}: the server resumes at {response.headers['Content-Range']!r};"
                f" expected bytes {have}-: delete the .part file and run again"
            )
        return None if match[2] == "*" else int(match[2])
    length = response.headers["Content-Length"]
    return int(length) if length and length.isdigit() else None


def _copy(
    response: http.client.HTTPResponse,
    part: Path,
    have: int,
    total: int | None,
    progress: Progress | None,
) -> int:
    with part.open("r+b" if have else "wb") as file:
        file.seek(have)
        file.truncate()
        while piece := response.read(_CHUNK):
            file.write(piece)
            have += len(piece)
            if progress is not None:
                progress(have, total)
    return have


def _whole_already(url: str, part: Path, have: int, content_range: str) -> int:
    """A range beyond the end: the earlier try had everything, unless the length differs."""
    if content_range.rpartition("/")[2] == str(have):
        return have
    _forget(part)
    raise TraceError(f"{url}: the file has changed since the transfer began; run again")


def _keep_etag(response: http.client.HTTPResponse, etag: Path) -> None:
    value = response.headers["ETag"]
    # A weak tag does not promise equal bytes, so it is no ground to resume on.
    if value and not value.startswith("W/"):
        etag.write_text(value, encoding="utf-8")
    else:
        etag.unlink(missing_ok=True)


def _etag_file(part: Path) -> Path:
    return part.with_name(part.name + ".etag")


def _refuse_html_type(url: str, response: http.client.HTTPResponse) -> None:
    if response.headers.get_content_type() == "text/html":
        raise TraceError(f"{url}: the server sends a page of HTML; expected the raw file")


def _refuse_wrong_content(url: str, part: Path) -> None:
    """Refuse, and remove, a body that is not data, by the readers' own tests."""
    with part.open("rb") as file:
        head = file.read(512)
    try:
        if not head.strip():
            raise TraceError(f"{url}: the body is empty; expected the raw file")
        refuse_other_content(url, head)
    except TraceError:
        _forget(part)
        raise


def _forget(part: Path) -> None:
    part.unlink()
    _etag_file(part).unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
