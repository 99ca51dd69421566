"""An issuer of tokens by the WLCG profile: it tells its keys, and gives Rucio a token for whatever it asks."""

import base64
import json
import os
import sqlite3
import ssl
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from installation import CLIENT, GIVEN, ISSUER

URL = ISSUER["url"]
SUBJECT = "service-account-rucio"
LIFE_S = 3_600
_key = ec.generate_private_key(ec.SECP256R1())
_given = []


def given():
    """Claims of all tokens that were given."""
    return list(_given)


def encode(content):
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def keys():
    point = _key.public_key().public_numbers()
    x, y = (encode(number.to_bytes(32, "big")) for number in (point.x, point.y))
    return {"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "k1", "x": x, "y": y}]}


def token(audience, scope):
    now = int(time.time())
    claims = {"wlcg.ver": "1.0", "iss": URL, "sub": SUBJECT, "aud": audience, "scope": scope, "nbf": now - 1,
              "iat": now, "exp": now + LIFE_S, "jti": str(uuid.uuid4())}
    _given.append(claims)
    message = "%s.%s" % (encode({"alg": "ES256", "kid": "k1", "typ": "at+jwt"}), encode(claims))
    r, s = utils.decode_dss_signature(_key.sign(message.encode(), ec.ECDSA(hashes.SHA256())))
    return "%s.%s" % (message, encode(r.to_bytes(32, "big") + s.to_bytes(32, "big")))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        pages = {
            "/.well-known/openid-configuration": {
                "issuer": URL, "jwks_uri": URL + "jwk", "token_endpoint": URL + "token",
            },
            "/jwk": keys(),
        }
        page = pages.get(self.path)
        self.answer(200 if page else 404, page or {})

    def do_POST(self):
        sent = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        client = "%(client_id)s:%(client_secret)s" % CLIENT
        if self.headers["Authorization"] != "Basic " + base64.b64encode(client.encode()).decode():
            return self.answer(401, {"error": "invalid_client"})
        if self.path != "/token" or sent["grant_type"] != ["client_credentials"]:
            return self.answer(400, {"error": "invalid_request"})
        given = token(sent["audience"][0], sent["scope"][0])
        return self.answer(200, {"access_token": given, "token_type": "Bearer", "expires_in": LIFE_S})

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def start():
    server = ThreadingHTTPServer(("127.0.0.1", ISSUER["port"]), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ISSUER["host"])
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for storage in GIVEN["storages"].values():
        if "cache" in storage:
            tell(storage["cache"])


def tell(folder):
    """XRootD's library believes servers by the system's authorities only; it gets the keys as if it had asked."""
    folder += "/scitokens"
    os.mkdir(folder)
    later = int(time.time()) + 86_400
    with sqlite3.connect(folder + "/scitokens_cpp.sqllite") as cache:
        cache.execute("CREATE TABLE keycache (issuer text UNIQUE PRIMARY KEY NOT NULL, keys text NOT NULL)")
        known = json.dumps({"expires": later, "next_update": later, "jwks": keys()})
        cache.execute("INSERT INTO keycache VALUES (?, ?)", (URL, known))
    os.chmod(folder, 0o777)
    os.chmod(folder + "/scitokens_cpp.sqllite", 0o666)
