"""The Python bindings: every function of fts3.rest.client.easy, and the answers that the tools never show."""

import json
import time
import uuid

import fts3.rest.client.easy as fts3
from fts3.rest.client import Inquirer, exceptions

from world import SILENT_SE, WAITING, among, case, context, refused, same, source, target

FIELDS = {"file_state", "dest_surl", "finish_time", "start_time", "reason", "source_surl", "file_metadata"}
BASE = uuid.UUID("01874efb-4735-4595-bc9c-591aef8240c9")


def job(*transfers, **parameters):
    return fts3.new_job(list(transfers) or [fts3.new_transfer(source(), target())], **parameters)


@case("Context tells the endpoint and its versions")
def endpoint_info():
    info = context().get_endpoint_info()
    same([info["api"][part] for part in ("major", "minor", "patch")], [3, 14, 2])
    assert all(key in info for key in ("core", "delegation", "schema")), info


@case("Context without credentials")
def nobody():
    info = context(None).get_endpoint_info()
    assert "api" in info
    refused(exceptions.Unauthorized, "", lambda: context(None).post_json("/jobs", job()))


@case("whoami of nobody")
def nobody_is():
    me = fts3.whoami(context(None))
    same((me["user_dn"], me["method"]), ("anon", "unauthenticated"))


@case("easy.submit and get_job_status")
def submit_and_status():
    me = context()
    id = fts3.submit(me, job(metadata={"issuer": "test"}))
    found = fts3.get_job_status(me, id)
    among(found["job_state"], WAITING)
    same(found["job_metadata"], {"issuer": "test", "auth_method": "oauth2"})
    same(found["http_status"], "200 Ok")
    same(found["retry"], -1)
    found = fts3.get_job_status(me, id, list_files=True)
    same((len(found["files"]), found["dm"]), (1, []))


@case("easy.get_jobs_statuses")
def bulk_status():
    me = context()
    ids = [fts3.submit(me, job()) for _ in range(3)]
    found = fts3.get_jobs_statuses(me, ids)
    same([one["job_id"] for one in found], ids)
    found = fts3.get_jobs_statuses(me, ids, list_files=True)
    for one in found:
        same((one["http_status"], set(one["files"][0])), ("200 Ok", FIELDS))


@case("easy.get_jobs_statuses with one that is not there")
def bulk_status_partly():
    me = context()
    unknown = str(uuid.uuid1())
    ids = [fts3.submit(me, job()), unknown]
    refused(exceptions.ClientError, "", lambda: fts3.get_jobs_statuses(me, ids))
    refused(exceptions.NotFound, "", lambda: fts3.get_job_status(me, unknown))
    try:
        me.get("/jobs/%s" % unknown)
    except exceptions.NotFound as error:
        assert "has been found" in str(error.reason) and unknown in str(error.reason), error.reason


@case("easy.list_jobs")
def lists():
    me = context()
    id = fts3.submit(me, job())
    ids = lambda **words: [one["job_id"] for one in Inquirer(me).get_job_list(**words)]
    assert id in ids() and id in ids(vo_name="testvo") and id in ids(source_se=SILENT_SE)
    assert id in ids(dest_se=SILENT_SE) and id not in ids(dest_se="https://elsewhere.example.org")
    assert id in ids(user_dn="alice")
    mine = fts3.whoami(me)["delegation_id"]
    assert id in ids(delegation_id=mine)
    refused(exceptions.Unauthorized, "does not match your delegation id", lambda: ids(delegation_id="0" * 16))
    # Ended ones only in a window of time or up to a limit.
    fts3.cancel(me, id)
    assert id not in ids() and id not in ids(state_in=["CANCELED"])
    query = lambda text: [one["job_id"] for one in json.loads(me.get("/jobs?" + text))]
    assert id in query("state_in=CANCELED&limit=10") and id in query("state_in=CANCELED&time_window=1")
    same(set(json.loads(me.get("/jobs?state_in=CANCELED&limit=1&fields=job_id,vo_name"))[0]), {"job_id", "vo_name"})
    refused(exceptions.ClientError, "", lambda: query("limit=501"))


@case("easy.cancel of a job and of files")
def cancels():
    me = context()
    id = fts3.submit(me, job(fts3.new_transfer(source(), target()), fts3.new_transfer(source(), target())))
    files = [one["file_id"] for one in fts3.get_job_status(me, id, list_files=True)["files"]]
    same(fts3.cancel(me, id, [files[0]]), "CANCELED")
    found = fts3.cancel(me, id)
    same((found["job_state"], found["http_status"], found["http_message"]), ("CANCELED", "200 Ok", None))
    found = fts3.cancel(me, id)
    same((found["http_status"], found["http_message"]), ("304 Not Modified", "The job is in a terminal state"))


@case("easy.cancel of the files of a multihop job is refused")
def cancel_hop():
    me = context()
    id = fts3.submit(me, job(multihop=True))
    file = fts3.get_job_status(me, id, list_files=True)["files"][0]["file_id"]
    text = "Multihop or reuse jobs must be cancelled at once"
    refused(exceptions.ClientError, text, lambda: fts3.cancel(me, id, [file]))


@case("easy.cancel_all is for administrators")
def cancel_all():
    refused(exceptions.Unauthorized, "User does not have root privileges", lambda: fts3.cancel_all(context()))
    refused(exceptions.Unauthorized, "User does not have root privileges", lambda: fts3.cancel_all(context(), "testvo"))
    root = context("admin")
    id = fts3.submit(context("bob"), job())
    found = fts3.cancel_all(root, "othervo")
    assert found["affected_jobs"] >= 1 and found["affected_files"] >= 1 and found["affected_dm"] == 0, found
    same(fts3.get_job_status(context("bob"), id)["job_state"], "CANCELED")


@case("easy.JobIdGenerator.deterministic")
def deterministic():
    me = context()
    sid = str(uuid.uuid4())
    wanted = str(uuid.uuid5(uuid.uuid5(BASE, "testvo"), sid))
    make = lambda: fts3.submit(me, job(id_generator=fts3.JobIdGenerator.deterministic, sid=sid))
    same(make(), wanted)
    refused(exceptions.ClientError, "409", make)
    wrong = lambda: fts3.submit(me, job(id_generator=fts3.JobIdGenerator.deterministic))
    refused(exceptions.ClientError, "Need sid for deterministic job id generation", wrong)


@case("easy.new_staging_job")
def staging():
    me = context()
    id = fts3.submit(me, fts3.new_staging_job([source()], bring_online=60, metadata="m"))
    found = fts3.get_job_status(me, id, list_files=True)
    same((found["job_state"], found["bring_online"]), ("STAGING", 60))
    same(found["files"][0]["source_surl"], found["files"][0]["dest_surl"])


@case("easy.new_delete_job is refused")
def deletion():
    text = "Deletion jobs are no longer supported by FTS"
    refused(exceptions.MethodNotAllowed, text, lambda: fts3.submit(context(), fts3.new_delete_job([source()])))


@case("easy.new_job with every argument")
def all_arguments():
    transfer = fts3.new_transfer(
        source(),
        target(),
        checksum="MD5:00112233445566778899aabbccddeeff",
        filesize=77,
        activity="Express",
        scitag=300,
        metadata={"m": 1},
        staging_metadata={"s": 1},
        archive_metadata={"a": 1},
        selection_strategy="orderly",
    )
    whole = job(
        transfer,
        verify_checksum="both",
        reuse=False,
        overwrite=True,
        source_spacetoken="A",
        destination_spacetoken="B",
        dst_file_report=True,
        archive_timeout=100,
        retry=4,
        retry_delay=30,
        priority=4,
        metadata={"j": 1},
        strict_copy=True,
        disable_cleanup=True,
        max_time_in_queue=5,
        timeout=1800,
        s3alternate=True,
        nostreams=3,
        buffer_size=4096,
        unmanaged_tokens=True,
    )
    me = context()
    before = time.time()
    found = fts3.get_job_status(me, fts3.submit(me, whole), list_files=True)
    wanted = {
        "verify_checksum": "b",
        "overwrite_flag": "Y",
        "source_spacetoken": "A",
        "destination_spacetoken": "B",
        "dst_file_report": True,
        "archive_timeout": 100,
        "retry": 4,
        "retry_delay": 30,
        "priority": 4,
        "job_metadata": {"j": 1, "auth_method": "oauth2"},
        "internal_job_params": "nostreams:3,timeout:1800,buffersize:4096,strict,disable-cleanup,s3alternate",
    }
    for name, value in wanted.items():
        assert found[name] == value, "%s is %r instead of %r" % (name, found[name], value)
    assert 4.9 < (found["max_time_in_queue"] - before) / 3600 < 5.1, found["max_time_in_queue"]
    (file,) = found["files"]
    wanted = {
        "checksum": "MD5:00112233445566778899aabbccddeeff",
        "user_filesize": 77,
        "activity": "Express",
        "scitag": 300,
        "file_metadata": {"m": 1},
        "staging_metadata": {"s": 1},
        "archive_metadata": {"a": 1},
        "selection_strategy": "orderly",
    }
    for name, value in wanted.items():
        assert file[name] == value, "%s is %r instead of %r" % (name, file[name], value)


@case("several sources make a job of replicas")
def replicas():
    me = context()
    transfer = fts3.new_transfer(source(), target(), selection_strategy="orderly")
    transfer["sources"].append(source())
    transfer["sources"].append(source())
    found = fts3.get_job_status(me, fts3.submit(me, job(transfer)), list_files=True)
    same(found["job_type"], "R")
    states = [one["file_state"] for one in found["files"]]
    among(states[0], WAITING)
    same(states[1:], ["NOT_USED", "NOT_USED"])
    same([one["file_index"] for one in found["files"]], [0, 0, 0])
    two = lambda: fts3.submit(me, job(transfer, fts3.new_transfer(source(), target())))
    refused(exceptions.ClientError, "Multiple replica jobs must only have one unique file", two)


@case("verify_checksum as a boolean")
def checksum_flags():
    me = context()
    mode = lambda job: fts3.get_job_status(me, fts3.submit(me, job))["verify_checksum"]
    same(mode(job(verify_checksum=True)), "b")
    same(mode(job(fts3.new_transfer(source(), target(), checksum=None), verify_checksum=False)), "n")
    same(mode(job(fts3.new_transfer(source(), target(), checksum="ADLER32:1234"), verify_checksum=False)), "t")


@case("the priority of a job can be changed")
def priority():
    me = context()
    id = fts3.submit(me, job())
    found = json.loads(me.post_json("/jobs/%s" % id, {"params": {"priority": 5}}))
    same((found["http_status"], found["http_message"], found["priority"]), ("200 Ok", None, 5))
    wrong = lambda: me.post_json("/jobs/%s" % id, {"params": {"priority": "high"}})
    refused(exceptions.ClientError, "Invalid priority value", wrong)


@case("easy.ban_se and unban_se")
def ban_se():
    manager = context("manager")
    same(fts3.ban_se(manager, "https://easy.example.org", status="wait", timeout=10, allow_submit=True), [])
    (found,) = [one for one in json.loads(manager.get("/ban/se")) if one["se"] == "https://easy.example.org"]
    same((found["vo"], found["admin_dn"]), ("testvo", "manager"))
    fts3.unban_se(manager, "https://easy.example.org")
    assert not [one for one in json.loads(manager.get("/ban/se")) if one["se"] == "https://easy.example.org"]
    wrong = lambda: fts3.ban_se(manager, "https://easy.example.org", status="sometimes")
    refused(exceptions.ClientError, "status can only be cancel or wait", wrong)
    wrong = lambda: fts3.ban_se(manager, "https://easy.example.org", status="cancel", allow_submit=True)
    refused(exceptions.ClientError, "allow_submit and status = CANCEL can not be combined", wrong)


@case("easy.ban_dn and unban_dn")
def ban_dn():
    manager = context("manager")
    same(fts3.ban_dn(manager, "/CN=nobody at all"), [])
    assert [one for one in json.loads(manager.get("/ban/dn")) if one["dn"] == "/CN=nobody at all"]
    fts3.unban_dn(manager, "/CN=nobody at all")
    refused(exceptions.ClientError, "409", lambda: fts3.ban_dn(manager, "manager"))


@case("easy.delegate with a token")
def delegate():
    me = context()
    fts3.delegate(me)


@case("single attributes, files and retries of a job")
def parts():
    me = context()
    id = fts3.submit(me, job())
    among(json.loads(me.get("/jobs/%s/job_state" % id)), WAITING)
    refused(exceptions.NotFound, "No such field", lambda: me.get("/jobs/%s/colour" % id))
    (file,) = json.loads(me.get("/jobs/%s/files" % id))
    same(json.loads(me.get("/jobs/%s/files/%d/retries" % (id, file["file_id"]))), [])
    same(json.loads(me.get("/jobs/%s/dm" % id)), [])
    refused(exceptions.NotFound, "", lambda: me.get("/archive/%s" % uuid.uuid1()))


def texts(**changes):
    """What is wrong with a submission, as the client raises it."""
    body = {"files": [{"sources": [source()], "destinations": [target()]}], "params": {}}
    body.update(changes)
    return lambda: context().post_json("/jobs", {key: value for key, value in body.items() if value is not None})


@case("texts of refused submissions")
def refusals():
    bad = lambda text, **changes: refused(exceptions.ClientError, text, texts(**changes))
    one = lambda **changes: [{"sources": [source()], "destinations": [target()], **changes}]
    bad("No transfers operations specified", files=None)
    bad("No valid pairs available", files=[])
    bad("Missing parameter: ", files=[{"sources": [source()]}])
    bad("Missing scheme", files=one(sources=["/data/x"]))
    bad("Can not transfer local files", files=one(sources=["file:///data/x"]))
    bad("Invalid SciTag value: 64", files=one(scitag=64))
    bad("algorithm is not supported by Scheduler", files=one(sources=[source(), source()], selection_strategy="fastest"))
    bad("Incompatible overwrite flags used at the same time", params={"overwrite": True, "overwrite_on_retry": True})
    bad("'overwrite-hop' requires multihop job submission", params={"overwrite_hop": True})
    bad("Need sid for deterministic job id generation", params={"id_generator": "deterministic"})
    bad("at the same time", files=one(sources=[source(), source()]), params={"multihop": True})
    bad("exceeds size limit of 1024", params={"job_metadata": {"x": "y" * 1100}})
    bad("Malformed request", files="none")
    refused(exceptions.ClientError, "Badly formatted JSON request", lambda: context().post_json("/jobs", "{"))
    refused(exceptions.ClientError, "Expecting a dictionary", lambda: context().post_json("/jobs", "[]"))
