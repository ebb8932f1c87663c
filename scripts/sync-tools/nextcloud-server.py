#!/usr/bin/env python3
"""The part of a Nextcloud server that its client needs to keep a folder equal: files in memory, for one user and any password.

    nextcloud-server.py PORT

It speaks WebDAV with the properties that the client asks for (etag, file id, permissions), and keeps times. A directory's etag changes
with everything below it, as the client expects.
"""
import json
import sys
import threading
import time
import urllib.parse
import xml.sax.saxutils as xml
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FILES = "/remote.php/dav/files/user"
lock = threading.Lock()


class Node:
    count = 0

    def __init__(self, data=None):
        Node.count += 1
        self.id = Node.count
        self.data = data  # None for a directory
        self.children = {}
        self.mtime = int(time.time())
        self.touch()

    def touch(self):
        Node.count += 1
        self.etag = f"{Node.count:032x}"


root = Node()


def find(parts):
    node = root
    for part in parts:
        node = node.children.get(part) if node.data is None else None
        if node is None:
            return None
    return node


def touch(parts):
    """Changes the etags of the directories on the way."""
    node = root
    node.touch()
    for part in parts:
        node = node.children.get(part)
        if node is None:
            return
        node.touch()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are sent in one packet, because the client would acknowledge a separate head only after 40 ms.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, code, body=b"", kind="application/xml; charset=utf-8", headers=()):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def parts(self, url=None):
        path = urllib.parse.unquote(urllib.parse.urlsplit(url or self.path).path)
        if not path.startswith(FILES):
            return None
        return [part for part in path[len(FILES):].split("/") if part]

    def body(self):
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self):
        self.body()
        path = urllib.parse.urlsplit(self.path).path
        version = {"major": 25, "minor": 0, "micro": 0, "string": "25.0.0", "edition": "", "extendedSupport": False}
        if path == "/status.php":
            status = {"installed": True, "maintenance": False, "needsDbUpgrade": False, "version": "25.0.0.1", "versionstring": "25.0.0",
                      "edition": "", "productname": "Nextcloud", "extendedSupport": False}
            return self.answer(200, json.dumps(status).encode(), "application/json")
        if path.startswith("/ocs/"):
            data = {"id": "user", "display-name": "user"}
            if path.endswith("/capabilities"):
                data = {"version": version, "capabilities": {"core": {"pollinterval": 60, "webdav-root": "remote.php/webdav"},
                                                            "dav": {"chunking": "1.0"}, "files": {"bigfilechunking": True}}}
            meta = {"status": "ok", "statuscode": 100, "message": "OK"}
            return self.answer(200, json.dumps({"ocs": {"meta": meta, "data": data}}).encode(), "application/json")
        parts = self.parts()
        with lock:
            node = find(parts) if parts is not None else None
            if node is None or node.data is None:
                return self.answer(404)
            data, headers = node.data, [("ETag", f'"{node.etag}"'), ("OC-ETag", f'"{node.etag}"'),
                                        ("Last-Modified", formatdate(node.mtime, usegmt=True))]
        self.answer(200, data, "application/octet-stream", headers)

    do_HEAD = do_GET

    def do_PROPFIND(self):
        self.body()
        parts = self.parts()
        if parts is None:
            parts = []
        with lock:
            node = find(parts)
            if node is None:
                return self.answer(404)
            listed = [(parts, node)]
            if self.headers.get("Depth", "1") != "0" and node.data is None:
                listed += [(parts + [name], child) for name, child in node.children.items()]
            text = "".join(self.properties(*each) for each in listed)
        text = '<?xml version="1.0"?><d:multistatus xmlns:d="DAV:" xmlns:oc="http://owncloud.org/ns">' + text + "</d:multistatus>"
        self.answer(207, text.encode())

    @staticmethod
    def properties(parts, node):
        is_dir = node.data is None
        href = FILES + "".join("/" + urllib.parse.quote(part, safe="") for part in parts) + ("/" if is_dir else "")
        size = "" if is_dir else f"<d:getcontentlength>{len(node.data)}</d:getcontentlength>"
        return (f"<d:response><d:href>{xml.escape(href)}</d:href><d:propstat><d:prop>"
                f"<d:resourcetype>{'<d:collection/>' if is_dir else ''}</d:resourcetype>"
                f"<d:getlastmodified>{formatdate(node.mtime, usegmt=True)}</d:getlastmodified>{size}"
                f"<d:getetag>&quot;{node.etag}&quot;</d:getetag><oc:id>{node.id:08d}oc</oc:id><oc:fileid>{node.id}</oc:fileid>"
                f"<oc:size>{0 if is_dir else len(node.data)}</oc:size>"
                f"<oc:permissions>{'RGDNVCK' if is_dir else 'RGDNVW'}</oc:permissions>"
                "</d:prop><d:status>HTTP/1.1 200 OK</d:status></d:propstat></d:response>")

    def do_PUT(self):
        data, parts = self.body(), self.parts()
        with lock:
            parent = find(parts[:-1]) if parts else None
            if parent is None or parent.data is not None:
                return self.answer(409)
            node = parent.children.get(parts[-1])
            if node is not None and node.data is None:
                return self.answer(405)
            expected = self.headers.get("If-Match")
            if expected and (node is None or expected.strip('"') != node.etag):
                return self.answer(412)
            if self.headers.get("If-None-Match") == "*" and node is not None:
                return self.answer(412)
            code = 201 if node is None else 204
            if node is None:
                node = parent.children[parts[-1]] = Node(data)
            node.data = data
            node.mtime = int(self.headers.get("X-OC-Mtime", time.time()))
            touch(parts)
            headers = [("ETag", f'"{node.etag}"'), ("OC-ETag", f'"{node.etag}"'), ("OC-FileId", f"{node.id:08d}oc"),
                       ("X-OC-MTime", "accepted")]
        self.answer(code, headers=headers)

    def do_MKCOL(self):
        self.body()
        parts = self.parts()
        with lock:
            parent = find(parts[:-1]) if parts else None
            if parent is None or parent.data is not None:
                return self.answer(409)
            if parts[-1] in parent.children:
                return self.answer(405)
            node = parent.children[parts[-1]] = Node()
            touch(parts)
        self.answer(201, headers=[("OC-FileId", f"{node.id:08d}oc")])

    def do_DELETE(self):
        self.body()
        parts = self.parts()
        with lock:
            if not parts or find(parts) is None:
                return self.answer(404)
            del find(parts[:-1]).children[parts[-1]]
            touch(parts[:-1])
        self.answer(204)

    def do_MOVE(self):
        self.body()
        parts, target = self.parts(), self.parts(self.headers["Destination"])
        with lock:
            node, parent = find(parts or []), find(target[:-1]) if target else None
            if not parts or node is None:
                return self.answer(404)
            if parent is None or parent.data is not None:
                return self.answer(409)
            if target[-1] in parent.children and self.headers.get("Overwrite", "T") == "F":
                return self.answer(412)
            del find(parts[:-1]).children[parts[-1]]
            parent.children[target[-1]] = node
            touch(parts[:-1])
            touch(target)
            headers = [("OC-FileId", f"{node.id:08d}oc"), ("ETag", f'"{node.etag}"'), ("OC-ETag", f'"{node.etag}"')]
        self.answer(201, headers=headers)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
