"""A storage that lets in whoever shows a certificate or a proxy of a known authority, and remembers who that was."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Storage:
    def __init__(self, given):
        self.files = {}
        self.users = set()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(given["certificate"], given["key"])
        context.load_verify_locations(given["authority"])
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_ALLOW_PROXY_CERTS
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"storage": self}))
        self.server.daemon_threads = True
        # The handshake is made by the thread of its connection.
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = "https://127.0.0.1:%d" % self.server.server_address[1]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    storage = None

    def parse_request(self):
        known = super().parse_request()
        names = [value for part in self.connection.getpeercert()["subject"] for _, value in part]
        self.storage.users.add("/".join(names))
        return known

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        found = self.storage.files.get(self.path)
        self.answer(404) if found is None else self.answer(200, found)

    do_HEAD = do_GET

    def do_PUT(self):
        if "100-continue" in self.headers.get("Expect", ""):
            self.send_response_only(100)
            self.end_headers()
        self.storage.files[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(201)

    def do_DELETE(self):
        self.answer(404 if self.storage.files.pop(self.path, None) is None else 204)

    def do_MKCOL(self):
        self.answer(201)

    def do_MOVE(self):
        found = self.storage.files.pop(self.path, None)
        if found is None:
            return self.answer(404)
        self.storage.files[urlsplit(self.headers["Destination"]).path] = found
        self.answer(201)

    def log_message(self, *_):
        pass
