"""X.509: certificates, proxies, delegation."""

import json
import re
import time

import fts3.rest.client.easy as fts3
from fts3.rest.client import exceptions

from storages import Storage
from world import PEOPLE, STORAGE, WAITING, among, case, context, refused, run, same, source, status, submit, target

DN = "/DC=org/DC=example/OU=Users/CN=dora"


def dora():
    assert "dora" in PEOPLE, "the service trusts no authority of people"
    return "dora"


@case("certificate: whoami tells the DN, and the virtual community")
def whoami():
    me = run("fts-rest-whoami", "-j", who=dora()).json()
    same((me["user_dn"], me["dn"], me["method"]), (DN, [DN], "certificate"))
    assert re.fullmatch("[0-9a-f]{16}", me["delegation_id"]), me
    same(me["is_root"], False)


@case("certificate: whoami by a proxy is its holder's")
def whoami_proxy():
    dora()
    proxy = fts3.whoami(context("dora-proxy"))
    same((proxy["user_dn"], proxy["delegation_id"]), (DN, fts3.whoami(context("dora"))["delegation_id"]))


@case("certificate: submission without delegated credentials is refused")
def needs_delegation():
    body = {"files": [{"sources": [source()], "destinations": [target()]}]}
    refused(exceptions.NeedDelegation, "", lambda: context(dora() + "-new").post_json("/jobs", body))


@case("certificate: delegate")
def delegate():
    ran = run("fts-rest-delegate", who=dora())
    same(ran.out.strip(), "Delegation id: " + fts3.whoami(context("dora"))["delegation_id"])


@case("certificate: delegate -f -H 4 -v")
def delegate_forced():
    ran = run("fts-rest-delegate", "-f", "-H", "4", "-v", who=dora())
    assert "Termination time: " in ran.err + ran.out, ran


@case("certificate: delegate --legacy-mode is refused, and why is told")
def delegate_legacy():
    ran = run("fts-rest-delegate", "--legacy-mode", "--force", who=dora(), fails=True)
    assert "Could not process the proxy: " in ran.out and "is a legacy proxy" in ran.out, ran


@case("certificate: delegate with a proxy")
def delegate_proxy():
    dora()
    same(fts3.delegate(context("dora-proxy"), force=True), fts3.whoami(context("dora"))["delegation_id"])


@case("certificate: delegation of somebody else is refused")
def delegate_foreign():
    me = context(dora())
    text = "The requested ID and the credentials ID do not match"
    for path in ("", "/request"):
        refused(exceptions.Unauthorized, text, lambda: me.get("/delegation/" + "0" * 16 + path))


@case("certificate: what is not the right proxy is refused")
def delegate_wrong():
    me = context(dora())
    own = fts3.whoami(me)["delegation_id"]
    me.get("/delegation/%s/request" % own)
    with open(PEOPLE["dora"]["certificate"]) as file:
        pem = file.read()
    put = lambda body: lambda: me.put("/delegation/%s/credential" % own, body)
    refused(exceptions.ClientError, "Could not process the proxy: ", put("nonsense"))
    refused(exceptions.ClientError, "Malformed proxy", put(pem))
    refused(exceptions.ClientError, "does not match the stored associated private key", put(pem + pem))


@case("certificate: the delegated credentials can be taken back")
def delegate_away():
    me = context(dora())
    own = fts3.delegate(me)
    me.delete("/delegation/" + own)
    assert not json.loads(me.get("/delegation/" + own))
    refused(exceptions.NotFound, "Delegated credentials not found", lambda: me.delete("/delegation/" + own))


@case("certificate: submit delegates by itself; status, list, cancel")
def life():
    job = submit(who=dora())
    found = status(job, who="dora")
    among(found["job_state"], WAITING)
    same((found["user_dn"], found["job_metadata"]), (DN, {"auth_method": "certificate"}))
    assert job in run("fts-rest-transfer-list", "-u", DN, who="dora").out
    ran = run("fts-rest-transfer-status", job, who="alice", fails=True)
    assert "Not enough permissions" in ran.out, ran
    same(run("fts-rest-transfer-cancel", job, who="dora").out.strip(), "CANCELED")


@case("certificate: submit by a proxy")
def life_proxy():
    dora()
    job = submit(who="dora-proxy")
    same(status(job, who="dora")["user_dn"], DN)


@case("certificate: of an authority that is not trusted")
def stranger():
    assert "stranger" in PEOPLE, "the service trusts no authority of people"
    try:
        me = fts3.whoami(context("stranger"))
    except Exception:
        return
    raise AssertionError("let in as %r" % me)


@case("certificate: whoami/certificate gives the chain back")
def own_certificate():
    pem = context(dora()).get("/whoami/certificate")
    assert pem.startswith("-----BEGIN CERTIFICATE-----"), pem
    refused(exceptions.Unauthorized, "Certificate required", lambda: context("alice").get("/whoami/certificate"))


@case("certificate: a job ends, and its storages see the user's proxy")
def job_ends():
    who = dora()
    here, there = Storage(STORAGE), Storage(STORAGE)
    try:
        here.files["/data/one"] = b"as it was measured" * 1000
        job = submit("-K", who=who, files=[here.url + "/data/one", there.url + "/copy/one"])
        ends = time.monotonic() + 60
        while (found := status(job, who=who))["job_state"] in WAITING and time.monotonic() < ends:
            time.sleep(0.05)
        (file,) = found["files"]
        same((found["job_state"], file["file_state"], file["reason"] or ""), ("FINISHED", "FINISHED", ""))
        same(there.files, {"/copy/one": here.files["/data/one"]})
        for storage in (here, there):
            assert storage.users and all(user.startswith("org/example/Users/dora/") for user in storage.users), storage.users
    finally:
        here.close()
        there.close()
