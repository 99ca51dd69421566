"""What a community does with its Rucio, by its client: storages, datasets, rules, and what became of them."""

import itertools
import os
import zlib
from urllib.parse import urlsplit

from rucio.client import Client
from rucio.rse import rsemanager

import service
from installation import GIVEN, until, without

SCOPE = "test"
client = Client()
_numbers = itertools.count(1)


def add_storage(rse, base, folder, **attributes):
    """An RSE of everything below a URL; what lies there lies in that folder too."""
    parts = urlsplit(base)
    client.add_rse(rse, deterministic=True, rse_type="DISK")
    third_party = {"third_party_copy_read": 1, "third_party_copy_write": 1}
    client.add_protocol(rse, {
        "scheme": "davs", "hostname": parts.hostname, "port": parts.port, "prefix": parts.path,
        "impl": "rucio.rse.protocols.gfal.Default",
        "domains": {"wan": {"read": 1, "write": 1, "delete": 1, **third_party},
                    "lan": {"read": 1, "write": 1, "delete": 1}},
    })
    for name, value in {"fts": GIVEN["endpoint"], **attributes}.items():
        client.add_rse_attribute(rse, name, value)
    client.set_local_account_limit("root", rse, 10**12)
    _folders[rse] = folder


_folders = {}


def connect(source, target, distance=1):
    client.add_distance(source, target, {"distance": distance})


def path(rse, name):
    """Where a file of an RSE lies on this machine."""
    found = rsemanager.lfns2pfns(rsemanager.get_rse_info(rse), [{"scope": SCOPE, "name": name}])
    url = urlsplit(next(iter(found.values())))
    base = rsemanager.get_rse_info(rse)["protocols"][0]["prefix"]
    return os.path.join(_folders[rse], url.path.removeprefix(base).lstrip("/"))


def put(rse, name, content):
    """As somebody's upload has left it. Whoever serves it may write beside it."""
    there = path(rse, name)
    missing = []
    folder = os.path.dirname(there)
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        os.mkdir(folder)
        os.chmod(folder, 0o777)
    with open(there, "wb") as file:
        file.write(content)
    os.chmod(there, 0o644)


def file(content, *rses, missing_at=()):
    """A new file with that content, registered at storages, and there unless it is missing."""
    name = "file%d" % next(_numbers)
    facts = {"scope": SCOPE, "name": name, "bytes": len(content), "adler32": "%08x" % zlib.adler32(content)}
    for rse in rses:
        if rse not in missing_at:
            put(rse, name, content)
        client.add_replicas(rse, [facts])
    return name


def dataset(*files):
    name = "dataset%d" % next(_numbers)
    client.add_dataset(SCOPE, name)
    client.attach_dids(SCOPE, name, [{"scope": SCOPE, "name": file} for file in files])
    return name


def replicate(name, rses, copies=1, **options):
    """A rule; gives its id."""
    dids = [{"scope": SCOPE, "name": name}]
    return client.add_replication_rule(dids, copies, rses, ask_approval=False, **options)[0]


def rule(identity):
    return client.get_replication_rule(identity)


def until_fulfilled(identity):
    until_is(identity, "OK")


def until_stuck(identity):
    until_is(identity, "STUCK")


def until_is(identity, state):
    def met():
        """What stands instead of what was waited for."""
        found = rule(identity)
        names = [one["name"] for one in client.list_files(found["scope"], found["name"])]
        waiting = {one["job"] for one in requests(*names) if one["state"] == "SUBMITTED"}
        jobs = [service.get("/jobs/%s/files" % job) for job in waiting]
        return "%s becomes %s: %s, %s" % (found, state, requests(*names), jobs)

    until(met, lambda: rule(identity)["state"] == state)


def until_repaired(identity):
    """What was stuck is tried again by the judge, soon."""
    client.update_replication_rule(identity, {"boost_rule": True})
    until_fulfilled(identity)


def until_failed(name, count=1):
    """The requests for a file that have failed, as soon as there are that many."""

    def failed():
        found = [one for one in requests(name) if one["state"] == "FAILED"]
        return found if len(found) >= count else None

    return until("%d requests for %s have failed" % (count, name), failed)


def forget(name):
    """Takes back the rules on everything that holds a file: nothing of it shall run beside what comes next.

    A request that is taken back while the submitter holds it fails everything that it holds (a foreign key of Rucio's), and none of
    that is submitted for minutes. So it is away meanwhile.
    """
    with without("conveyor-submitter"):
        for parent in client.list_parent_dids(SCOPE, name):
            for found in client.list_did_rules(parent["scope"], parent["name"]):
                client.update_replication_rule(found["id"], {"state": "SUSPENDED", "cancel_requests": True})


def content_at(rse, name):
    with open(path(rse, name), "rb") as file:
        return file.read()


def requests(*files):
    """What the database holds of the requests for these files, also of those that are over; the oldest first."""
    from rucio.db.sqla import models
    from rucio.db.sqla.session import get_session
    from sqlalchemy import select

    found = []
    with get_session()() as session:
        names = dict(session.execute(select(models.RSE.id, models.RSE.rse)).all())
        for kind in (models.RequestHistory, models.Request):
            for row in session.execute(select(kind).where(kind.name.in_(files))).scalars():
                found.append({
                    "request": row.id, "file": row.name, "state": row.state.name, "job": row.external_id,
                    "error": row.err_msg, "source": names.get(row.source_rse_id), "begun": row.created_at,
                })
    return sorted(found, key=lambda one: one["begun"])
