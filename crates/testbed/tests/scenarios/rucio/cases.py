"""What a Rucio site does with its transfer service, from the rule to the replica.

A case sets something off and yields; what is expected comes after. So all of them are under way at the same time.
"""

import uuid

import community
import issuer
import service
from community import (
    add_storage, client, connect, content_at, dataset, file, forget, put, replicate, requests, rule, until_failed,
    until_fulfilled, until_repaired, until_stuck,
)
from installation import GIVEN, VO, log, start, stop, turned_away, until

BY_POLLING, BY_MESSAGES = [], []


def case(name, cases=BY_POLLING):
    def keep(function):
        cases.append((name, function))
        return function

    return keep


# What there is a way between: from GAMMA to ALPHA by BETA only, and from DELTA to ZETA by EPSILON.
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


def jobs(files):
    """Of what Rucio has asked for these files."""
    identities = sorted({one["job"] for one in requests(*files)})
    return [service.get("/jobs/%s?files=file_state" % identity) for identity in identities]


def kinds(files):
    return {(job["job_type"], job["job_state"]) for job in jobs(files)}


@case("a dataset by rule to two other storages; files of one target are one job, by the id that Rucio expects")
def by_rule():
    files = some("ALPHA")
    identity = replicate(dataset(*files), "BETA|GAMMA", copies=2)
    yield
    until_fulfilled(identity)
    arrived("BETA", files)
    arrived("GAMMA", files)
    done = requests(*files)
    assert len(done) == 6 and all(one["state"] == "DONE" for one in done), done
    me = service.get("/whoami")
    space = uuid.uuid5(uuid.UUID(me["base_id"]), VO)
    expected = {str(uuid.uuid5(space, one["request"])) for one in done}
    for job in jobs(files):
        assert job["job_id"] in expected, (job, expected)
        assert (job["job_type"], job["job_state"], job["vo_name"]) == ("N", "FINISHED", VO), job
        assert job["job_metadata"]["issuer"] == "rucio", job
    # What Rucio tells people to look at; the job is named behind a #, so the page has to lead on.
    assert "/fts3/ftsmon/lead.js" in service.page("/fts3/ftsmon/")
    assert "/ui/jobs/" in service.page("/fts3/ftsmon/lead.js")


@case("several sources, and a file is missing at one of them")
def multi_source():
    both = {lost: some("ALPHA", "BETA", missing_at=[lost]) for lost in ("ALPHA", "BETA")}
    files = both["ALPHA"] | both["BETA"]
    identity = replicate(dataset(*files), "GAMMA")
    yield
    until_fulfilled(identity)
    arrived("GAMMA", files)
    assert kinds(files) == {("R", "FINISHED")}, kinds(files)
    for lost, files in both.items():
        served = {one["source"] for one in requests(*files)}
        assert lost not in served, "the source that served is known: %s" % served


@case("by a storage between, in two hops")
def multihop():
    files = some("GAMMA")
    identity = replicate(dataset(*files), "ALPHA")
    yield
    until_fulfilled(identity)
    arrived("ALPHA", files)
    arrived("BETA", files)
    assert kinds(files) == {("H", "FINISHED")}, kinds(files)
    for job in jobs(files):
        assert [hop["file_state"] for hop in job["files"]] == ["FINISHED", "FINISHED"], job


@case("a hop that fails: the next is not tried, and both are told")
def hop_fails():
    name = file(b"nowhere", "GAMMA", missing_at=["GAMMA"])
    replicate(dataset(name), "ALPHA")
    yield
    errors = [one["error"] for one in until_failed(name, 2)]
    assert any("SOURCE [2]" in error for error in errors), errors
    assert any("Unused hop in multi-hop" in error for error in errors), errors
    forget(name)


@case("one file of a bulk job is missing: the others arrive, it is tried again, and the rule says why")
def one_is_missing():
    files = some("ALPHA")
    lost = file(b"lost and found", "ALPHA", missing_at=["ALPHA"])
    identity = replicate(dataset(lost, *files), "BETA")
    yield
    until_stuck(identity)
    arrived("BETA", files)
    error = rule(identity)["error"]
    assert "SOURCE [2]" in error, error
    tried = [one for one in requests(lost) if one["state"] == "FAILED"]
    assert len(tried) == 4, "the first time and three more: %s" % tried
    assert all("TRANSFER_FAILED:SOURCE [2]" in one["error"] for one in tried), tried
    states = {job["job_state"] for job in jobs([lost])}
    assert states == {"FINISHEDDIRTY", "FAILED"}, states
    # Found again: Rucio repairs the rule by itself.
    put("ALPHA", lost, b"lost and found")
    until_repaired(identity)
    arrived("BETA", {lost: b"lost and found"})


@case("a file that is another than was registered does not arrive")
def other_content():
    name = file(b"as registered", "ALPHA")
    put("ALPHA", name, b"other content")
    identity = replicate(dataset(name), "BETA")
    yield
    until_stuck(identity)
    for one in requests(name):
        assert "Source and user-defined ADLER32 checksum do not match" in one["error"], one
    put("ALPHA", name, b"as registered")
    until_repaired(identity)
    arrived("BETA", {name: b"as registered"})


@case("a rule's priority is the job's, also when it changes; and a request that is cancelled ends its job")
def priority_and_cancel():
    name = file(bytes(3_000_000), "SLOW")
    identity = replicate(dataset(name), "BETA", priority=2)
    yield
    # The newest one: XRootD may have lost its first.
    asked = lambda: [one["job"] for one in requests(name) if one["job"]][-1:]
    job = until("it runs", lambda: [job for job in asked() if service.get("/jobs/%s" % job)["job_state"] == "ACTIVE"])[0]
    assert service.get("/jobs/%s" % job)["priority"] == 2
    client.update_replication_rule(identity, {"priority": 5})
    assert service.get("/jobs/%s" % job)["priority"] == 5
    client.update_replication_rule(identity, {"state": "SUSPENDED", "cancel_requests": True})
    ended = service.get("/jobs/%s" % job)
    assert (ended["job_state"], ended["reason"]) == ("CANCELED", "Job canceled by the user"), ended


@case("with tokens: one for the service, and one for each storage")
def with_tokens():
    files = some("DELTA")
    identity = replicate(dataset(*files), "EPSILON")
    yield
    until_fulfilled(identity)
    arrived("EPSILON", files)
    job = service.get("/jobs/%s" % requests(*files)[0]["job"])
    assert job["job_metadata"]["auth_method"] == "oauth2" and job["user_dn"] == issuer.SUBJECT, job
    asked = {(one["aud"], one["scope"]) for one in issuer.given()}
    assert ("127.0.0.1", "fts") in asked, asked
    assert ("localhost", "offline_access storage.read:/") in asked, asked
    assert ("localhost", "offline_access storage.modify:/ storage.read:/") in asked, asked


@case("tokens that are for others, lack the scope, or were tampered with open nothing")
def other_tokens():
    good = issuer.token("127.0.0.1", "fts")
    header, claims, signature = good.split(".")
    yield
    assert service.status_with(good) == 200
    assert service.status_with(issuer.token("localhost", "fts")) == 401
    assert service.status_with(issuer.token("127.0.0.1", "storage.read:/")) == 403
    changed = issuer.encode({**issuer.given()[0], "sub": "somebody", "aud": "127.0.0.1", "scope": "fts"})
    assert service.status_with(".".join((header, changed, signature))) == 401


@case("with tokens: several sources, and two hops")
def with_tokens_further():
    both, far = some("EPSILON", "ZETA", missing_at=["ZETA"]), some("DELTA")
    several, hops = replicate(dataset(*both), "DELTA"), replicate(dataset(*far), "ZETA")
    yield
    until_fulfilled(several)
    until_fulfilled(hops)
    arrived("DELTA", both)
    arrived("ZETA", far)
    assert (kinds(both), kinds(far)) == ({("R", "FINISHED")}, {("H", "FINISHED")}), (kinds(both), kinds(far))


@case("by messages alone: what arrived, from one source or several or by hops, and what did not", BY_MESSAGES)
def by_messages():
    stop("conveyor-poller")
    start("conveyor-receiver")
    until("the receiver listens", lambda: "connecting to" in log("conveyor-receiver"))
    plain, hops, several = some("ALPHA"), some("GAMMA"), some("ALPHA", "BETA", missing_at=["BETA"])
    lost = file(b"lost", "ALPHA", missing_at=["ALPHA"])
    rules = {replicate(dataset(*plain), "GAMMA"): ("GAMMA", plain), replicate(dataset(*hops), "ALPHA"): ("ALPHA", hops),
             replicate(dataset(*several), "GAMMA"): ("GAMMA", several)}
    replicate(dataset(lost), "GAMMA")
    yield
    for identity, (rse, files) in rules.items():
        until_fulfilled(identity)
        arrived(rse, files)
    assert "No such file" in until_failed(lost)[0]["error"]
    over = requests(lost, *(name for _, files in rules.values() for name in files))
    over = {one["request"] for one in over if one["state"] in ("DONE", "FAILED")}
    assert len(over) >= 3 + 6 + 3 + 1, over
    received = {request for request in over if "--(%s)-> " % request in log("conveyor-receiver")}
    assert received and over - received <= turned_away(), (over, received, turned_away())
    forget(lost)
