"""The other tools, option by option."""

import json
import subprocess

from world import (
    ENDPOINT,
    FOLDER,
    SCRIPTS,
    SILENT_SE,
    TOKENS,
    WAITING,
    among,
    case,
    path,
    run,
    same,
    silent,
    source,
    status,
    storage,
    submit,
    target,
)


@case("whoami")
def whoami():
    lines = run("fts-rest-whoami").lines()
    same(lines[0], "User DN: alice")
    same(lines[1], "VO: testvo")
    assert lines[2].startswith("VO id: ") and lines[3].startswith("Delegation id: "), lines
    same(lines[4], "Base id: 01874efb-4735-4595-bc9c-591aef8240c9")


@case("whoami -j")
def whoami_json():
    me = run("fts-rest-whoami", "-j").json()
    same((me["user_dn"], me["dn"], me["vos"]), ("alice", ["alice"], ["testvo"]))
    same(me["vos_id"], ["477b9065-8416-5b27-be32-ff1573788e71"])
    same((me["method"], me["is_root"], me["roles"]), ("oauth2", False, []))
    same(me["base_id"], "01874efb-4735-4595-bc9c-591aef8240c9")
    assert len(me["delegation_id"]) == 16 and int(me["delegation_id"], 16) >= 0, me
    assert "transfer" in me["level"], me


@case("whoami --fts-access-token")
def whoami_token():
    ran = run("fts-rest-whoami", "--fts-access-token", TOKENS["bob"], who=None)
    same(ran.lines()[0], "User DN: bob")


@case("whoami --insecure")
def whoami_insecure():
    command = [f"{SCRIPTS}/python", f"{SCRIPTS}/fts-rest-whoami", "-s", ENDPOINT, "--insecure"]
    ran = subprocess.run([*command, "--access-token", TOKENS["alice"]], capture_output=True, text=True)
    same((ran.returncode, ran.stdout.splitlines()[0]), (0, "User DN: alice"))


@case("whoami as a process of its own, CA folder from the environment, endpoint with a slash")
def whoami_process():
    from world import CAPATH

    command = [f"{SCRIPTS}/python", f"{SCRIPTS}/fts-rest-whoami", "-s", ENDPOINT + "/"]
    command += ["--access-token", TOKENS["alice"]]
    environment = {"X509_CERT_DIR": CAPATH, "HOME": FOLDER, "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    same((ran.returncode, ran.stdout.splitlines()[0]), (0, "User DN: alice"))


@case("whoami -v tells the version of the interface")
def whoami_verbose():
    ran = run("fts-rest-whoami", "-v")
    assert "REST API version: 3.14.2" in ran.err + ran.out, ran


@case("whoami without the right certificate of the service is refused by the client")
def whoami_unverified():
    import os

    empty = os.path.join(FOLDER, "no-authorities")
    os.makedirs(empty, exist_ok=True)
    command = [f"{SCRIPTS}/python", f"{SCRIPTS}/fts-rest-whoami", "-s", ENDPOINT, "--capath", empty]
    ran = subprocess.run([*command, "--access-token", TOKENS["alice"]], capture_output=True, text=True)
    assert ran.returncode == 1 and "CERTIFICATE_VERIFY_FAILED" in ran.stdout + ran.stderr, ran


@case("status")
def show():
    job = submit("-p", "2")
    lines = run("fts-rest-transfer-status", job).lines()
    same(lines[0], "Request ID: " + job)
    among(lines[1], ["Status: " + state for state in WAITING])
    same(lines[2], "Client DN: alice")
    assert lines[4].startswith("Submission time: "), lines
    same(lines[5:7], ["Priority: 2", "VO Name: testvo"])


@case("status -j")
def show_json():
    found = status(submit())
    same((found["user_dn"], found["vo_name"], found["dm"]), ("alice", "testvo", []))
    same(len(found["files"]), 1)


@case("status of an unknown job")
def show_unknown():
    ran = run("fts-rest-transfer-status", "6b1bcd54-0000-1000-8000-000000000000", fails=True)
    assert "6b1bcd54-0000-1000-8000-000000000000" in ran.out, ran


@case("status of another community's job is refused")
def show_foreign():
    ran = run("fts-rest-transfer-status", submit(who="bob"), fails=True)
    assert "Not enough permissions" in ran.out, ran


@case("list")
def listed():
    mine, other = submit(), submit(who="bob")
    out = run("fts-rest-transfer-list").out
    assert mine in out and other not in out, (mine, other, out)


@case("list -j")
def listed_json():
    job = submit()
    (found,) = [one for one in run("fts-rest-transfer-list", "-j").json() if one["job_id"] == job]
    same((found["vo_name"], found["user_dn"]), ("testvo", "alice"))


@case("list -u")
def listed_user():
    job = submit()
    assert job in run("fts-rest-transfer-list", "-u", "alice").out
    ran = run("fts-rest-transfer-list", "--userdn", "bob", fails=True)
    assert "do not correspond to the same user" in ran.out, ran


@case("list -o")
def listed_vo():
    job = submit()
    assert job in run("fts-rest-transfer-list", "-o", "testvo").out
    assert job not in run("fts-rest-transfer-list", "--voname", "othervo").out


@case("list --source --destination")
def listed_storages():
    here, there = silent(2), silent(3)
    ends = [here + "/x", there + "/x"]
    job = submit(files=ends)
    run_list = lambda *words: run("fts-rest-transfer-list", *words).out
    assert job in run_list("--source", storage(here))
    assert job in run_list("--destination", storage(there))
    both = run_list("--source", storage(here), "--destination", SILENT_SE)
    assert job not in both
    run("fts-rest-transfer-cancel", job, fails=None)


@case("cancel JOB")
def cancel():
    job = submit()
    same(run("fts-rest-transfer-cancel", job).out.strip(), "CANCELED")
    found = status(job)
    same((found["job_state"], found["reason"]), ("CANCELED", "Job canceled by the user"))
    same((found["cancel_job"], found["files"][0]["file_state"]), (True, "CANCELED"))
    same(found["files"][0]["reason"], "Job canceled by the user")
    assert found["job_finished"] is not None
    # A job that has ended stays as it is, and that is no error.
    same(run("fts-rest-transfer-cancel", job).out.strip(), "CANCELED")


@case("cancel JOB:FILE,FILE")
def cancel_files():
    token = [TOKENS["alice"]]
    ends = [(source(), target()) for _ in range(3)]
    files = [
        {"sources": [a], "destinations": [b], "source_tokens": token, "destination_tokens": token}
        for a, b in ends
    ]
    job = submit("-f", path("three.json", json.dumps({"files": files})), files=[])
    ids = [one["file_id"] for one in status(job)["files"]]
    assert all(isinstance(one, int) for one in ids), ids
    same(run("fts-rest-transfer-cancel", "%s:%d" % (job, ids[0])).out.strip(), "CANCELED")
    states = [one["file_state"] for one in status(job)["files"]]
    same(states[0], "CANCELED")
    assert "CANCELED" not in states[1:], states
    both = run("fts-rest-transfer-cancel", "%s:%d,%d" % (job, ids[1], ids[2])).lines()
    same(both, ["CANCELED", "CANCELED"])
    same(status(job)["job_state"], "CANCELED")


@case("cancel of a file of another job says so")
def cancel_foreign_file():
    one, other = submit(), submit()
    file = status(other)["files"][0]["file_id"]
    same(run("fts-rest-transfer-cancel", "%s:%d" % (one, file)).out.strip(), "File does not belong to the job")


@case("cancel of another community's job is refused")
def cancel_foreign():
    job = submit(who="bob")
    ran = run("fts-rest-transfer-cancel", job, fails=True)
    assert "Not enough permissions" in ran.out, ran
    among(status(job, who="bob")["job_state"], WAITING)


@case("ban --storage cancels what is queued, and --unban lets in again")
def ban_storage():
    banned = silent(4)
    ends = [banned + "/x", silent(5) + "/x"]
    job = submit(files=ends, who="manager")
    lines = run("fts-rest-ban", "--storage", storage(banned), who="manager").lines()
    same(lines, ["Affected jobs:", job])
    found = status(job, who="manager")
    same((found["job_state"], found["files"][0]["reason"]), ("CANCELED", "Storage banned"))
    ran = run("fts-rest-transfer-submit", *ends, who="manager", fails=True)
    assert storage(banned) + " is banned" in ran.out, ran
    same(run("fts-rest-ban", "--storage", storage(banned), "--unban", who="manager").out, "")
    run("fts-rest-transfer-cancel", submit(files=ends, who="manager"), who="manager", fails=None)


@case("ban --storage of one that has no jobs")
def ban_nothing():
    idle = "https://idle.example.org"
    same(run("fts-rest-ban", "--storage", idle, who="manager").lines(), ["No jobs affected"])
    run("fts-rest-ban", "--storage", idle, "--unban", who="manager")


@case("ban --status wait --allow-submit --timeout")
def ban_wait():
    held = silent(6)
    words = ["--storage", storage(held), "--status", "WAIT", "--timeout", "60", "--allow-submit"]
    run("fts-rest-ban", *words, who="manager")
    job = submit(files=[held + "/x", silent(7) + "/x"], who="manager")
    same(status(job, who="manager")["files"][0]["file_state"], "ON_HOLD")
    run("fts-rest-ban", "--storage", storage(held), "--unban", who="manager")
    assert status(job, who="manager")["files"][0]["file_state"] != "ON_HOLD"
    run("fts-rest-transfer-cancel", job, who="manager", fails=None)


@case("ban --user")
def ban_user():
    job = submit(who="carol")
    lines = run("fts-rest-ban", "--user", "carol", who="manager").lines()
    same(lines, ["Affected jobs:", job])
    ran = run("fts-rest-whoami", who="carol", fails=True)
    assert "The user has been banned" in ran.out, ran
    run("fts-rest-ban", "--user", "carol", "--unban", who="manager")
    found = status(job, who="carol")
    same((found["job_state"], found["reason"]), ("CANCELED", "User banned"))


@case("ban is for those who may configure")
def ban_refused():
    run("fts-rest-ban", "--storage", "https://x.example.org", fails=True)


@case("server-status")
def server_status():
    lines = run("fts-rest-server-status", who="manager").lines()
    assert any(line.startswith("\tactive: ") for line in lines), lines
    assert any(line.startswith("\tstaging: ") for line in lines), lines


@case("server-status -H --is-active")
def server_status_host():
    ran = run("fts-rest-server-status", "-H", "nowhere.example.org", "--is-active", who="manager")
    same(ran.lines(), ["nowhere.example.org"])


@case("delete-submit is answered that there are no deletion jobs")
def delete_submit():
    ran = run("fts-rest-delete-submit", source(), fails=True)
    assert "Deletion jobs are no longer supported" in ran.out, ran


@case("delete-submit --dry-run -f FILE")
def delete_dry_run():
    name = path("deletions.txt", "https://a.example.org/x\n")
    body = run("fts-rest-delete-submit", "--dry-run", "-f", name, "-S", "T", "--retry", "1").json()
    same(body["delete"], ["https://a.example.org/x\n"])


@case("delegate with a token needs none")
def delegate_token():
    assert run("fts-rest-delegate").out.startswith("Delegation id: ")


@case("every tool tells its options")
def helps():
    names = "transfer-submit transfer-status transfer-list transfer-cancel delegate whoami ban server-status delete-submit"
    for name in names.split():
        assert "--endpoint" in run("fts-rest-" + name, "--help", who=None).out, name
