"""What a Rucio site does with its transfer service, from the rule to the replica."""

import uuid

import community
import issuer
import service
from community import (
    add_storage, client, connect, content_at, dataset, file, forget, put, replicate, requests, rule, until_failed,
    until_fulfilled, until_stuck,
)
from installation import GIVEN, VO, log, start, stop, until

CASES = []


def case(name):
    def keep(function):
        CASES.append((name, function))
        return function

    return keep


# What there is a way between; from GAMMA to ALPHA by BETA only.
WAYS = [("ALPHA", "BETA"), ("ALPHA", "GAMMA"), ("BETA", "GAMMA"), ("BETA", "ALPHA"), ("GAMMA", "BETA"),
        ("SLOW", "BETA"), ("DELTA", "EPSILON"), ("EPSILON", "ZETA"), ("EPSILON", "DELTA"), ("ZETA", "DELTA")]


def set_up():
    client.add_scope("root", community.SCOPE)
    for name, given in GIVEN["storages"].items():
        add_storage(name, given["url"], given["folder"], **given.get("attributes", {}))
    for source, target in WAYS:
        connect(source, target)


def arrived(rse, files):
    for name, content in files.items():
        assert content_at(rse, name) == content, (rse, name)


def some(*rses, **options):
    """Files of every size, registered at storages: name and content."""
    contents = [b"first", b"", bytes(range(256)) * 4_000]
    return {file(content, *rses, **options): content for content in contents}


@case("a dataset by rule to two other storages")
def by_rule():
    files = some("ALPHA")
    until_fulfilled(replicate(dataset(*files), "BETA|GAMMA", copies=2))
    arrived("BETA", files)
    arrived("GAMMA", files)
    done = requests(*files)
    assert len(done) == 6 and all(one["state"] == "DONE" for one in done), done


@case("files of one rule are one job, by the id that Rucio expects")
def one_job():
    files = some("ALPHA")
    until_fulfilled(replicate(dataset(*files), "BETA"))
    jobs = {one["job"] for one in requests(*files)}
    assert len(jobs) == 1, jobs
    me = service.get("/whoami")
    names = [str(uuid.uuid5(uuid.uuid5(uuid.UUID(me["base_id"]), VO), one["request"])) for one in requests(*files)]
    job = service.get("/jobs/%s" % jobs.pop())
    assert job["job_id"] in names, (job, names)
    assert (job["job_type"], job["job_state"], job["vo_name"]) == ("N", "FINISHED", VO), job
    assert job["job_metadata"]["issuer"] == "rucio", job


@case("several sources, and a file is missing at one of them")
def multi_source():
    both = [some("ALPHA", "BETA", missing_at=[lost]) for lost in ("ALPHA", "BETA")]
    files = both[0] | both[1]
    until_fulfilled(replicate(dataset(*files), "GAMMA"))
    arrived("GAMMA", files)
    for one in requests(*files):
        assert one["state"] == "DONE", one
        job = service.get("/jobs/%s?files=file_state" % one["job"])
        assert (job["job_type"], job["job_state"]) == ("R", "FINISHED"), job
    lost_at = {one["file"]: one["source"] for one in requests(*files)}
    for lost, files in zip(("ALPHA", "BETA"), both):
        assert all(lost_at[name] != lost for name in files), "the source that served is known: %s" % lost_at


@case("by a storage between, in two hops")
def multihop():
    files = some("GAMMA")
    until_fulfilled(replicate(dataset(*files), "ALPHA"))
    arrived("ALPHA", files)
    arrived("BETA", files)
    for one in requests(*files):
        job = service.get("/jobs/%s?files=file_state" % one["job"])
        assert (job["job_type"], job["job_state"]) == ("H", "FINISHED"), job
        assert [hop["file_state"] for hop in job["files"]] == ["FINISHED", "FINISHED"], job


@case("a hop that fails: the next is not tried, and both are told")
def hop_fails():
    name = file(b"nowhere", "GAMMA", missing_at=["GAMMA"])
    replicate(dataset(name), "ALPHA")
    failed = until_failed(name, 2)
    errors = sorted(one["error"] for one in failed)
    assert any("SOURCE [2]" in error for error in errors), errors
    assert any("Unused hop in multi-hop" in error for error in errors), errors
    forget(name)


@case("one file of a bulk job is missing: the others arrive, it is tried again, and the rule says why")
def one_is_missing():
    files = some("ALPHA")
    lost = file(b"lost and found", "ALPHA", missing_at=["ALPHA"])
    identity = replicate(dataset(lost, *files), "BETA")
    until_stuck(identity)
    arrived("BETA", files)
    error = rule(identity)["error"]
    assert "SOURCE [2]" in error, error
    tried = [one for one in requests(lost) if one["state"] == "FAILED"]
    assert len(tried) == 4, "the first time and three more: %s" % tried
    assert all("TRANSFER_FAILED:SOURCE [2]" in one["error"] for one in tried), tried
    first = service.get("/jobs/%s" % tried[0]["job"])
    assert first["job_state"] in ("FINISHEDDIRTY", "FAILED"), first
    # Found again: the rule is repaired by Rucio itself.
    put("ALPHA", lost, b"lost and found")
    client.update_replication_rule(identity, {"boost_rule": True})
    until_fulfilled(identity)
    arrived("BETA", {lost: b"lost and found"})


@case("a file that is another than was registered does not arrive")
def other_content():
    name = file(b"as registered", "ALPHA")
    put("ALPHA", name, b"other content")
    identity = replicate(dataset(name), "BETA")
    until_failed(name)
    error = requests(name)[-1]["error"] or requests(name)[0]["error"]
    assert "Source and user-defined ADLER32 checksum do not match" in error, error
    put("ALPHA", name, b"as registered")
    until_fulfilled(identity)
    arrived("BETA", {name: b"as registered"})


@case("a rule's priority is the job's, also when it changes; and a request that is cancelled ends its job")
def priority_and_cancel():
    name = file(bytes(3_000_000), "SLOW")
    identity = replicate(dataset(name), "BETA", priority=2)
    job = until("it is submitted", lambda: [one["job"] for one in requests(name) if one["job"]])[0]
    assert service.get("/jobs/%s" % job)["priority"] == 2
    until("it runs", lambda: service.get("/jobs/%s" % job)["job_state"] == "ACTIVE")
    client.update_replication_rule(identity, {"priority": 5})
    assert service.get("/jobs/%s" % job)["priority"] == 5
    client.update_replication_rule(identity, {"state": "SUSPENDED", "cancel_requests": True})
    ended = service.get("/jobs/%s" % job)
    assert (ended["job_state"], ended["reason"]) == ("CANCELED", "Job canceled by the user"), ended


@case("with tokens: for the service, and for each storage")
def with_tokens():
    before = len(issuer.given())
    files = some("DELTA")
    until_fulfilled(replicate(dataset(*files), "EPSILON"))
    arrived("EPSILON", files)
    job = service.get("/jobs/%s" % requests(*files)[0]["job"])
    assert job["job_metadata"]["auth_method"] == "oauth2" and job["user_dn"] == issuer.SUBJECT, job
    asked = {(one["aud"], one["scope"]) for one in issuer.given()[before:]}
    assert ("127.0.0.1", "fts") in asked, asked
    assert ("localhost", "offline_access storage.read:/") in asked, asked
    assert ("localhost", "offline_access storage.modify:/ storage.read:/") in asked, asked


@case("with tokens: several sources, and in two hops")
def with_tokens_further():
    both = some("EPSILON", "ZETA", missing_at=["ZETA"])
    hops = some("DELTA")
    several, far = replicate(dataset(*both), "DELTA"), replicate(dataset(*hops), "ZETA")
    until_fulfilled(several)
    until_fulfilled(far)
    arrived("DELTA", both)
    arrived("ZETA", hops)
    kinds = [{service.get("/jobs/%s" % one["job"])["job_type"] for one in requests(*files)} for files in (both, hops)]
    assert kinds == [{"R"}, {"H"}], kinds


@case("by messages alone: what arrived, what did not, and hops")
def by_messages():
    stop("conveyor-poller")
    start("conveyor-receiver")
    until("the receiver listens", lambda: "connecting to" in log("conveyor-receiver"))
    files = some("ALPHA")
    lost = file(b"lost", "ALPHA", missing_at=["ALPHA"])
    until_fulfilled(replicate(dataset(*files), "GAMMA"))
    arrived("GAMMA", files)
    hops = some("GAMMA")
    until_fulfilled(replicate(dataset(*hops), "ALPHA"))
    arrived("ALPHA", hops)
    sources = some("ALPHA", "BETA", missing_at=["BETA"])
    until_fulfilled(replicate(dataset(*sources), "GAMMA"))
    arrived("GAMMA", sources)
    replicate(dataset(lost), "GAMMA")
    assert "No such file" in until_failed(lost)[0]["error"]
    told = log("conveyor-receiver").count("RECEIVED Transfer")
    assert told >= 3 + 6 + 3 + 1, told
    forget(lost)
