"""A Hugging Face Hub on loopback, as small as the client allows, that fails on request.

It speaks the four requests that a download needs (model info, HEAD, GET, GET with Range) and keeps
a log of them. Weights come from a second port, the CDN, which the first one redirects to. Both can
refuse, stall, or break a connection off in the middle of a file.
"""

import hashlib
import json
import re
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_INFO = re.compile(r"/api/models/([^/]+/[^/]+)/revision/([^/?]+)")
_FILE = re.compile(r"/([^/]+/[^/]+)/(resolve|cdn)/([^/]+)/([^?]+)")


@dataclass
class Repo:
    """A repository: commit -> name -> content; branches; whether it wants a token."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    token: str | None = None


@dataclass
class Faults:
    """What goes wrong; each switch acts until it is taken back."""

    break_at: dict[str, int] = field(default_factory=dict)  # file -> the last byte ever sent
    status: dict[str, int] = field(default_factory=dict)  # file or "info" -> HTTP status
    stall: set[str] = field(default_factory=set)  # files, or "info", that are never answered
    breaks_left: int = 10**9  # how often `break_at` acts
    ignores_range: bool = False
    damages: set[str] = field(default_factory=set)  # files whose bytes come out wrong
    page: bytes | None = None  # every answer is this, as behind a hotel's log-in


class FakeHub:
    """Use as a context manager; `url` is its HF_ENDPOINT."""

    def __init__(self) -> None:
        self.stall_over = threading.Event()
        self.reset()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
        self.url, self.cdn_url = (
            f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers
        )

    def __enter__(self) -> "FakeHub":
        for server in self._servers:
            server.daemon_threads = True
            # A short poll, since shutdown() waits for the end of one.
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stall_over.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def reset(self) -> None:
        """Forget everything, as if it had just been started."""
        self.stall_over.set()
        self.stall_over = threading.Event()
        self.repos: dict[str, Repo] = {}
        self.faults = Faults()
        self.forget_traffic()

    def forget_traffic(self) -> None:
        """Start the logs of what was asked and sent again."""
        self.requests: list[str] = []  # "METHOD path"
        self.downloads: list[str] = []  # name of a file, and the range where one was asked for
        self.sent: Counter[str] = Counter()  # file -> bytes of its bodies

    def add(self, name: str, files: dict[str, bytes], *, token: str | None = None) -> str:
        """Commit `files` to the branch main of a repository; returns the commit."""
        commit = hashlib.sha1(json.dumps([name, sorted(map(str, files.items()))]).encode())
        repo = self.repos.setdefault(name, Repo({}, {}, token))
        repo.commits[commit.hexdigest()] = dict(files)
        repo.branches["main"] = commit.hexdigest()
        return commit.hexdigest()


def is_lfs(name: str) -> bool:
    """Whether a file is large: kept outside git, and sent by the CDN."""
    return name.endswith(".safetensors")


def etag_of(name: str, content: bytes) -> str:
    """Large files have a SHA-256 as their etag, the others their git id."""
    if is_lfs(name):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        info, file = _INFO.fullmatch(self.path.split("?")[0]), _FILE.match(self.path)
        subject = file[4] if file else "info"
        if subject in self.hub.faults.stall and with_body:
            self.close_connection = True
            self.hub.stall_over.wait()
        elif self.hub.faults.page is not None:
            self._send(200, self.hub.faults.page, {"Content-Type": "text/html"})
        elif status := self.hub.faults.status.get(subject):
            self._send(status, b"no", {})
        elif info:
            self._send_info(info[1], info[2])
        elif file and file[2] == "cdn":
            self._send_content(self.hub.repos[file[1]].commits[file[3]], file[4], {})
        elif file:
            self._send_file(file[1], file[3], file[4])
        else:
            self._send(404, b"no such page", {})

    def _find(
        self, name: str, revision: str, *, gated: bool
    ) -> tuple[str, dict[str, bytes]] | None:
        """The commit and its files; None after the refusal that the real Hub would send."""
        repo = self.hub.repos.get(name)
        if repo is None:
            # The real Hub does not tell strangers what is private and what does not exist.
            signed_in = "Authorization" in self.headers
            self._send(404 if signed_in else 401, b"", {"X-Error-Code": "RepoNotFound"})
            return None
        if gated and repo.token and self.headers.get("Authorization") != f"Bearer {repo.token}":
            status = 403 if "Authorization" in self.headers else 401
            self._send(status, b"", {"X-Error-Code": "GatedRepo"})
            return None
        commit = repo.branches.get(revision, revision)
        if commit not in repo.commits:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return None
        return commit, repo.commits[commit]

    def _send_info(self, name: str, revision: str) -> None:
        if (found := self._find(name, revision, gated=False)) is None:
            return
        commit, files = found
        siblings: list[dict[str, Any]] = []
        for file, content in files.items():
            entry = {"rfilename": file, "size": len(content), "blobId": etag_of("", content)}
            if is_lfs(file):
                entry["lfs"] = {
                    "sha256": etag_of(file, content),
                    "size": len(content),
                    "pointerSize": 134,
                }
            siblings.append(entry)
        answer = {"id": name, "modelId": name, "sha": commit, "siblings": siblings}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _send_file(self, name: str, revision: str, file: str) -> None:
        if (found := self._find(name, revision, gated=True)) is None:
            return
        commit, files = found
        headers = {"X-Repo-Commit": commit}
        if file not in files:
            self._send(404, b"", headers | {"X-Error-Code": "EntryNotFound"})
        elif is_lfs(file):
            headers |= {
                "Location": f"{self.hub.cdn_url}/{name}/cdn/{commit}/{file}",
                "X-Linked-Etag": f'"{etag_of(file, files[file])}"',
                "X-Linked-Size": str(len(files[file])),
                "ETag": '"of the pointer"',
            }
            self._send(302, b"go to the CDN", headers)
        else:
            headers["ETag"] = f'"{etag_of(file, files[file])}"'
            self._send_content(files, file, headers)

    def _send_content(self, files: dict[str, bytes], file: str, headers: dict[str, str]) -> None:
        if is_lfs(file) and "Authorization" in self.headers:
            # A signed address and a token at once is what the real CDN refuses.
            self._send(400, b"only one way to sign in", {})
            return
        faults, content = self.hub.faults, files[file]
        if file in faults.damages:
            content = bytes(len(content))
        status, start, asked = 200, 0, self.headers.get("Range", "")
        if asked and not faults.ignores_range:
            status, start = 206, int(asked.removeprefix("bytes=").removesuffix("-"))
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        body, sending = content[start:], None
        if self.command == "GET":
            self.hub.downloads.append(f"{file} {asked}".strip())
            self.hub.sent[file] += len(body)
            if file in faults.break_at and faults.breaks_left > 0:
                faults.breaks_left -= 1
                sending = max(faults.break_at[file] - start, 0)
        self._send(status, body, headers | {"Accept-Ranges": "bytes"}, sending=sending)

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], *, sending: int | None = None
    ) -> None:
        """Answer; with `sending`, promise the whole body and close after that many bytes."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[:sending])
        if sending is not None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
