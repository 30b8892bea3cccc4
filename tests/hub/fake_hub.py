"""A hub in a thread: as much of its HTTP interface as pushing and loading a model use, large files included.

Every commit keeps a whole snapshot, so that a revision can be asked for. Requests are remembered, for tests that want
to know which way an upload took.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_owner"
READER = "hf_of_somebody_else"


@dataclass
class Repo:
    private: bool = False
    branches: dict[str, str] = field(default_factory=dict)  # name -> commit
    commits: dict[str, dict[str, tuple[bytes, bool]]] = field(default_factory=dict)  # commit -> path -> bytes, is large

    def commit(self, branch: str, changes: dict[str, tuple[bytes, bool]]) -> str:
        files = {**self.commits.get(self.branches.get(branch, ""), {}), **changes}
        oid = hashlib.sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[oid], self.branches[branch] = files, oid
        return oid

    def resolve(self, revision: str) -> str | None:
        return self.branches.get(revision, revision if revision in self.commits else None)


@dataclass
class FakeHub:
    """Its state. ``large`` is the size in bytes from which a file takes the way of large files."""

    large: int = 10_000
    repos: dict[str, Repo] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    @contextmanager
    def serving(self) -> Iterator[FakeHub]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = urlsplit(self.path).path
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.requests.append(f"{self.command} {path}")
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            parts = [unquote(part) for part in path.strip("/").split("/")]
            if self.command == "POST" and parts == ["api", "repos", "create"]:
                self._create(json.loads(body), token)
            elif self.command == "POST" and parts == ["api", "validate-yaml"]:
                self._json({"errors": [], "warnings": []})
            elif self.command == "POST" and parts[2:] == ["info", "lfs", "objects", "batch"]:
                self._lfs_batch(json.loads(body))
            elif self.command == "PUT" and parts[0] == "objects":
                hub.objects[parts[1]] = body
                self._json({}, 200 if hashlib.sha256(body).hexdigest() == parts[1] else 400)
            elif parts[:2] == ["api", "models"]:
                self._model("/".join(parts[2:4]), parts[4:], body, token)
            elif parts[2:3] == ["resolve"]:
                self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), token)
            else:
                self._json({"error": f"the fake has no {self.command} {path}"}, 501)

        def _create(self, wanted: dict[str, Any], token: str) -> None:
            name = f"{wanted['organization']}/{wanted['name']}"
            if token not in (TOKEN, READER):
                self._json({"error": "Invalid username or password."}, 401)
            elif token != TOKEN:
                self._json({"error": "You don't have the rights to create a model under this namespace"}, 403)
            elif name in hub.repos:
                self._json({"error": "You already created this model repo", "url": f"{hub.url}/{name}"}, 409)
            else:
                # Older clients say it the first way.
                hub.repos[name] = Repo(private=bool(wanted.get("private")) or wanted.get("visibility") == "private")
                hub.repos[name].commit("main", {".gitattributes": (b"*.safetensors filter=lfs\n", False)})
                self._json({"url": f"{hub.url}/{name}"})

        def _lfs_batch(self, wanted: dict[str, Any]) -> None:
            found = []
            for item in wanted["objects"]:
                upload = {"href": f"{hub.url}/objects/{item['oid']}", "header": {}}
                known = item["oid"] in hub.objects
                found.append({**item} if known else {**item, "actions": {"upload": upload}})
            self._json({"transfer": "basic", "objects": found})

        def _model(self, name: str, rest: list[str], body: bytes, token: str) -> None:
            repo = hub.repos.get(name)
            if repo is None or (repo.private and token != TOKEN):
                self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            elif self.command == "POST" and token != TOKEN:
                self._json({"error": "Forbidden: you must use a write token to upload to a repository."}, 403)
            elif rest[:1] == ["preupload"]:
                modes = [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["size"] >= hub.large else "regular",
                        "shouldIgnore": False,
                    }
                    for file in json.loads(body)["files"]
                ]
                self._json({"files": modes})
            elif rest[:1] == ["commit"]:
                self._commit(name, repo, rest[1], [json.loads(line) for line in body.splitlines()])
            elif rest[:1] == ["branch"]:
                known = rest[1] in repo.branches
                if not known:
                    repo.branches[rest[1]] = repo.branches["main"]
                self._json({"error": "Reference already exists"} if known else {}, 409 if known else 200)
            elif rest[:1] in ([], ["revision"]):
                self._revision(repo, rest[1] if rest else "main", lambda oid: {"id": name, "sha": oid, "siblings": []})
            elif rest[:1] == ["tree"]:
                self._revision(repo, rest[1], lambda oid: [_entry(p, *c) for p, c in repo.commits[oid].items()])
            else:
                self._json({"error": f"the fake has no {self.command} {rest}"}, 501)

        def _commit(self, name: str, repo: Repo, branch: str, lines: list[dict[str, Any]]) -> None:
            if branch not in repo.branches:
                self._json({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
                return
            changes: dict[str, tuple[bytes, bool]] = {}
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    changes[value["path"]] = base64.b64decode(value["content"]), False
                elif line["key"] == "lfsFile":
                    changes[value["path"]] = hub.objects[value["oid"]], True
            oid = repo.commit(branch, changes)
            self._json({"commitUrl": f"{hub.url}/{name}/commit/{oid}", "commitOid": oid, "success": True})

        def _revision(self, repo: Repo, revision: str, answer: Any) -> None:
            oid = repo.resolve(revision)
            if oid is None:
                self._json({"error": f"Invalid rev id: {revision}"}, 404, {"X-Error-Code": "RevisionNotFound"})
            else:
                self._json(answer(oid))

        def _file(self, name: str, revision: str, path: str, token: str) -> None:
            repo = hub.repos.get(name)
            if repo is None or (repo.private and token != TOKEN):
                self._json({}, 404, {"X-Error-Code": "RepoNotFound"})
                return
            oid = repo.resolve(revision)
            if oid is None or path not in repo.commits[oid]:
                self._json({}, 404, {"X-Error-Code": "EntryNotFound"})
                return
            content, _ = repo.commits[oid][path]
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": oid}
            self._send(content, 200, "application/octet-stream", headers)

        def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
            self._send(json.dumps(value).encode(), status, "application/json", headers or {})

        def _send(self, content: bytes, status: int, kind: str, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Type": kind, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    return Handler


def _entry(path: str, content: bytes, large: bool) -> dict[str, Any]:
    entry = {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
    if large:
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry
