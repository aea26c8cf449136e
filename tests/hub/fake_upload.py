"""The fake Hub with the requests of an upload: create, ask which files are large, send, commit."""

import base64
import json
import re
from typing import Any

from fake_hub import FakeHub, is_lfs

TOKENS = ("Bearer may-write", "Bearer may-read")
_COMMIT = re.compile(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main")


class UploadHub(FakeHub):
    """A Hub that takes what it is sent: `received` is repository -> name -> content."""

    def __init__(self) -> None:
        super().__init__()
        self.received: dict[str, dict[str, bytes]] = {}
        self.large: dict[str, bytes] = {}
        for server in self._servers:
            base: Any = server.RequestHandlerClass
            server.RequestHandlerClass = type("Uploads", (_Uploads, base), {})


class _Uploads:
    def do_GET(self) -> None:  # noqa: N802
        if not self.path.startswith("/api/whoami"):  # type: ignore[attr-defined]
            super().do_GET()  # type: ignore[misc]
        elif self.headers.get("Authorization") in TOKENS:  # type: ignore[attr-defined]
            self._json({"type": "user", "name": "me"})
        else:
            self._json({"error": "no"}, 401)

    def do_POST(self) -> None:  # noqa: N802 - the name is http.server's
        hub: UploadHub = self.hub  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))  # type: ignore[attr-defined]
        path = self.path.split("?")[0]  # type: ignore[attr-defined]
        if self.headers.get("Authorization") != "Bearer may-write":  # type: ignore[attr-defined]
            self._json({"error": "no"}, 401)
        elif path == "/api/validate-yaml":  # of the model card
            self._json({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            is_new = name not in hub.received
            hub.received.setdefault(name, {})
            self._json({"url": f"{hub.url}/{name}", "id": name}, 200 if is_new else 409)
        elif path.endswith("/info/lfs/objects/batch"):
            self._json(
                {"transfer": "basic", "objects": [*map(self._slot, json.loads(body)["objects"])]}
            )
        elif match := _COMMIT.fullmatch(path):
            answer = self._preupload if match[2] == "preupload" else self._commit
            answer(match[1], body)
        else:
            self._json({"error": path}, 404)

    def do_PUT(self) -> None:  # noqa: N802
        size = int(self.headers["Content-Length"])  # type: ignore[attr-defined]
        self.hub.large[self.path.split("/")[-1]] = self.rfile.read(size)  # type: ignore[attr-defined]
        self._json({})

    def _slot(self, entry: dict[str, Any]) -> dict[str, Any]:
        href = f"{self.hub.url}/put/{entry['oid']}"  # type: ignore[attr-defined]
        return entry | {"actions": {"upload": {"href": href, "header": {}}}}

    def _preupload(self, _: str, body: bytes) -> None:
        names = [file["path"] for file in json.loads(body)["files"]]
        modes = {True: "lfs", False: "regular"}
        files = [
            {"path": name, "uploadMode": modes[is_lfs(name)], "shouldIgnore": False, "oid": None}
            for name in names
        ]
        self._json({"files": files})

    def _commit(self, name: str, body: bytes) -> None:
        hub: UploadHub = self.hub  # type: ignore[attr-defined]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                hub.received[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                hub.received[name][value["path"]] = hub.large[value["oid"]]
        self._json({"commitUrl": f"{hub.url}/{name}/commit/1", "commitOid": "1" * 40})

    def _json(self, fields: dict[str, Any], status: int = 200) -> None:
        content = json.dumps(fields).encode()
        self._send(status, content, {"Content-Type": "application/json"})  # type: ignore[attr-defined]
