"""What another community, a page of another site, or a body that is no submission, gets. Every endpoint as everybody is in
`isolation.rs`, which has the service's own list of them."""

import glob
import json
import os
import uuid

import requests

from world import CAPATH, ENDPOINT, TOKENS, case, same, source, target

AUTHORITY = glob.glob(os.path.join(CAPATH, "*.0"))[0]


def ask(method, path, who=None, body=None, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if who:
        headers["Authorization"] = "Bearer " + TOKENS[who]
    if body is not None and "Content-Type" not in headers:
        headers["Content-Type"] = "application/json"
    data = body if body is None or isinstance(body, str) else json.dumps(body)
    return requests.request(method, ENDPOINT + path, headers=headers, data=data, verify=AUTHORITY, timeout=30)


def job_of(who):
    body = {"files": [{"sources": [source()], "destinations": [target()]}]}
    reply = ask("POST", "/jobs", who, body)
    same(reply.status_code, 200)
    id = reply.json()["job_id"]
    return id, ask("GET", "/jobs/%s/files" % id, who).json()[0]["file_id"]


@case("another community's jobs are in no list")
def lists():
    job, _ = job_of("alice")
    for path in ("/jobs", "/jobs?vo_name=testvo", "/jobs?limit=500", "/files", "/files?vo_name=testvo", "/archive"):
        assert job not in ask("GET", path, "bob").text, path
    assert job in ask("GET", "/jobs", "carol").text


@case("tokens that are none are refused")
def tokens():
    for value in ("Bearer lht_unknown", "Bearer ", "Basic YTpi", "lht_x", "Bearer a.b.c"):
        reply = requests.get(ENDPOINT + "/whoami", headers={"Authorization": value}, verify=AUTHORITY, timeout=30)
        same((value, reply.status_code), (value, 401))


@case("a page of another site is refused")
def origins():
    reply = ask("GET", "/whoami", "alice", Origin="https://evil.example")
    same((reply.status_code, reply.json()["message"]), (403, "Host and Origin do not match"))
    own = ENDPOINT.removeprefix("https://")
    same(ask("GET", "/whoami", "alice", Origin="https://" + own).status_code, 200)


@case("bodies come in the types that FTS takes")
def types():
    body = json.dumps({"files": [{"sources": [source()], "destinations": [target()]}]})
    same(ask("POST", "/jobs", "alice", body, Content_Type="application/json; charset=utf-8").status_code, 200)
    same(ask("PUT", "/jobs", "alice", body, Content_Type="text/plain").status_code, 200)
    odd = "application/json, application/x-www-form-urlencoded"
    same(ask("POST", "/jobs", "alice", requests.utils.quote(body), Content_Type=odd).status_code, 200)
    reply = ask("POST", "/jobs", "alice", body, Content_Type="text/plain")
    wanted = "Expecting application/json or application/x-www-form-urlencoded"
    same((reply.status_code, reply.json()["message"]), (400, wanted))
    reply = ask("POST", "/ban/se", "manager", "storage=https%3A%2F%2Fform.example.org&status=wait",
                Content_Type="application/x-www-form-urlencoded")
    same((reply.status_code, reply.json()), (200, []))
    same(ask("DELETE", "/ban/se?storage=https://form.example.org", "manager", "{}").status_code, 204)


@case("slashes are collapsed, and an unknown path is told in JSON")
def slashes():
    for path in ("//whoami", "/whoami/", "///whoami//"):
        same(ask("GET", path, "alice").json()["user_dn"], "alice")
    same(ask("GET", "/jobs/%s/a/b/c" % uuid.uuid1(), "alice").status_code in (404, 405), True)


@case("browsers are led to the pages, clients read the versions")
def root():
    reply = requests.get(ENDPOINT + "/", headers={"Accept": "text/html"}, verify=AUTHORITY, timeout=30, allow_redirects=False)
    assert "api" not in reply.text or reply.status_code in (302, 303, 307, 308, 404), reply.text
    same(ask("GET", "/").json()["api"], {"major": 3, "minor": 14, "patch": 2})


@case("configuration is kept, and who changed it is told")
def configuration():
    link = {"symbolicname": "test link", "source": "davs://a.example.org", "destination": "*", "max_active": 7}
    reply = ask("POST", "/config/links", "manager", link)
    same((reply.status_code, reply.json()["max_active"], reply.json()["min_active"]), (201, 7, 2))
    same(ask("GET", "/config/links/test%20link", "manager").json()["source"], "davs://a.example.org")
    share = {"source": "davs://a.example.org/x", "destination": "*", "vo": "testvo", "share": 5}
    same(ask("POST", "/config/shares", "manager", share).json()["share"], 5.0)
    bad = ask("POST", "/config/links", "manager", {"symbolicname": "x", "colour": 1})
    same((bad.status_code, bad.json()["message"]), (400, "Field colour unknown"))
    limits = {"davs://x.example.org": {"se_info": {"inbound_max_active": 9}, "operations": {"testvo": {"staging": 3}}}}
    info, operations = ask("POST", "/config/se", "manager", limits).json()
    same((info, operations), ({"inbound_max_active": 9}, {"testvo": {"staging": 3}}))
    same(ask("GET", "/config/se", "manager").json()["davs://x.example.org"]["se_info"]["inbound_max_active"], 9)
    shares = {"vo": "testvo", "share": {"Production": 0.7, "default": 0.3}, "active": True}
    same(ask("POST", "/config/activity_shares", "manager", shares).status_code, 200)
    same(ask("GET", "/config/activity_shares", "manager").json()["testvo"]["active"], True)
    same(ask("POST", "/config/authorize", "manager", {"dn": "bob", "operation": "admin"}).status_code, 400)
    same(ask("POST", "/config/authorize", "manager", {"dn": "bob", "operation": "config"}).status_code, 200)
    same(ask("GET", "/ban/dn", "bob").status_code, 200)
    same(ask("DELETE", "/config/authorize?dn=bob&operation=config", "manager").status_code, 204)
    same(ask("GET", "/ban/dn", "bob").status_code, 403)
    text = ask("GET", "/config/audit", "manager").text
    assert "test link" in text and "manager" in text, text
    same(ask("DELETE", "/config/links/test%20link", "manager").status_code, 204)
    same(ask("GET", "/config/shares", "manager").json(), [])
