"""JSON web tokens of an issuer, and the ways in which the tools are told credentials."""

import os
import subprocess

import fts3.rest.client.easy as fts3
from fts3.rest.client import exceptions

from world import (
    CAPATH,
    ENDPOINT,
    FOLDER,
    PEOPLE,
    SCRIPTS,
    TOKENS,
    WAITING,
    among,
    case,
    context,
    refused,
    run,
    same,
    source,
    status,
    submit,
    target,
)

DN = "/DC=org/DC=example/OU=Users/CN=dora"


@case("token of an issuer: whoami")
def whoami():
    me = run("fts-rest-whoami", "-j", who="eve").json()
    same((me["user_dn"], me["vos"], me["method"]), ("eve", ["testvo"], "oauth2"))
    same((me["oauth2_scope"], me["wlcg_profile"]), ("fts openid", True))


@case("token of an issuer: submit, status, list, cancel, delegate")
def life():
    job = submit("--unmanaged-tokens", who="eve")
    found = status(job, who="eve")
    same((found["user_dn"], found["vo_name"]), ("eve", "testvo"))
    among(found["job_state"], WAITING)
    same(found["job_metadata"], {"auth_method": "oauth2"})
    assert job in run("fts-rest-transfer-list", "-j", who="eve").out
    ran = run("fts-rest-transfer-status", job, who="bob", fails=True)
    assert "Not enough permissions" in ran.out, ran
    assert run("fts-rest-delegate", who="eve").out.startswith("Delegation id: ")
    same(run("fts-rest-transfer-cancel", job, who="eve").out.strip(), "CANCELED")


@case("token of an issuer: it configures nothing")
def configures_nothing():
    for words in (["fts-rest-ban", "--user", "carol"], ["fts-rest-server-status"]):
        ran = run(*words, who="eve", fails=True)
        assert "Not enough permissions" in ran.out + ran.err, ran


@case("token of an issuer: a changed one is refused")
def changed():
    head, claims, signature = TOKENS["eve"].split(".")
    for bad in (".".join([head, claims, signature[:-6] + "AAAAAA"]), ".".join([head, claims, ""])):
        call = lambda: fts3.whoami(fts3.Context(ENDPOINT, capath=CAPATH, fts_access_token=bad))
        refused(exceptions.Unauthorized, "", call)


@case("submit --fts-access-token --src-access-token --dst-access-token")
def own_tokens():
    words = ["--fts-access-token", TOKENS["alice"], "--src-access-token", "from", "--dst-access-token", "to"]
    ran = run("fts-rest-transfer-submit", *words, source(), target(), who=None)
    found = status(ran.lines()[1].removeprefix("Job id: "))
    among(found["job_state"], WAITING)
    (file,) = found["files"]
    assert "from" not in (file["src_token_id"], file["dst_token_id"]), "tokens are never told"


@case("every tool takes --fts-access-token and -v")
def fts_access_token():
    job = submit(who="manager")
    token = ["--fts-access-token", TOKENS["manager"], "-v"]
    for words in (
        ["fts-rest-whoami"],
        ["fts-rest-transfer-status", job],
        ["fts-rest-transfer-list"],
        ["fts-rest-delegate"],
        ["fts-rest-server-status"],
        ["fts-rest-ban", "--storage", "https://idle-2.example.org"],
        ["fts-rest-ban", "--storage", "https://idle-2.example.org", "--unban"],
        ["fts-rest-transfer-cancel", job],
    ):
        run(words[0], *token, *words[1:], who=None)
    ran = run("fts-rest-delete-submit", *token, source(), who=None, fails=True)
    assert "Deletion jobs are no longer supported" in ran.out, ran


@case("every tool takes -j")
def as_json():
    job = submit(who="manager")
    for words in (["fts-rest-delegate", "-j"], ["fts-rest-server-status", "-j"], ["fts-rest-transfer-cancel", "-j", job]):
        run(*words, who="manager")
    run("fts-rest-ban", "-j", "--storage", "https://idle-3.example.org", who="manager")
    run("fts-rest-ban", "-j", "--storage", "https://idle-3.example.org", "--unban", who="manager")


@case("certificate: every tool takes --cert and --key, of a proxy too")
def by_certificate():
    assert "dora-proxy" in PEOPLE, "the service trusts no authority of people"
    for who in ("dora", "dora-proxy"):
        run("fts-rest-delegate", "--hours", "3", "--force", who=who)
        job = submit("--expire", "60", who=who)
        same(run("fts-rest-transfer-status", "-j", job, who=who).json()["user_dn"], DN)
        assert job in run("fts-rest-transfer-list", "--userdn", DN, who=who).out
        same(run("fts-rest-transfer-cancel", job, who=who).out.strip(), "CANCELED")
        for words in (["fts-rest-ban", "--user", "carol"], ["fts-rest-server-status"]):
            ran = run(*words, who=who, fails=True)
            assert "Not enough permissions" in ran.out + ran.err, ran
        ran = run("fts-rest-delete-submit", source(), who=who, fails=True)
        assert "Deletion jobs are no longer supported" in ran.out, ran


@case("every tool takes --insecure")
def insecure():
    """Without the service's authority: the words are given by hand, since `run` names a folder of authorities."""
    job = submit(who="manager")
    empty = os.path.join(FOLDER, "no-authorities-either")
    os.makedirs(empty, exist_ok=True)
    for words in (
        ["fts-rest-whoami"],
        ["fts-rest-transfer-status", job],
        ["fts-rest-transfer-list"],
        ["fts-rest-delegate"],
        ["fts-rest-server-status"],
        ["fts-rest-ban", "--storage", "https://idle-4.example.org", "--unban"],
        ["fts-rest-transfer-submit", source(), target()],
        ["fts-rest-transfer-cancel", job],
    ):
        # The last of two folders counts, and has no authority in it.
        run(words[0], "--insecure", "--capath", empty, *words[1:], who="manager")
    run("fts-rest-delete-submit", "--insecure", "--capath", empty, source(), who="manager", fails=True)


@case("certificate: from X509_USER_PROXY, and from X509_USER_CERT and X509_USER_KEY")
def from_environment():
    assert "dora" in PEOPLE, "the service trusts no authority of people"
    proxy = os.path.join(FOLDER, "proxy.pem")
    with open(proxy, "w") as file:
        for part in ("certificate", "key"):
            with open(PEOPLE["dora-proxy"][part]) as read:
                file.write(read.read())
    os.chmod(proxy, 0o600)
    dora = PEOPLE["dora"]
    for told in (
        {"X509_USER_PROXY": proxy},
        {"X509_USER_CERT": dora["certificate"], "X509_USER_KEY": dora["key"]},
    ):
        command = [f"{SCRIPTS}/python", f"{SCRIPTS}/fts-rest-whoami", "-s", ENDPOINT]
        environment = {"X509_CERT_DIR": CAPATH, "HOME": FOLDER, "PATH": "/usr/bin:/bin", **told}
        ran = subprocess.run(command, capture_output=True, text=True, env=environment)
        same((ran.returncode, ran.stdout.splitlines()[:1]), (0, ["User DN: " + DN]))


@case("delete-submit with all its options is answered 405")
def delete_options():
    words = ["-j", "-b", "-i", "1", "-e", "60", "-S", "T", "--retry", "1", "--cloud-credentials", "dropbox"]
    words += ["--job-metadata", '{"a": 1}', "--file-metadata", '{"b": 2}']
    ran = run("fts-rest-delete-submit", *words, source(), fails=True)
    assert "Deletion jobs are no longer supported" in ran.out, ran
