"""Reads a catalog on SQLite, also while a service uses it: all that can be named in it, or its rows by name.

Ids, times and what belongs to the site `mallory` are left out of the rows, so that those of two deployments with
the same history are equal.
"""

import json
import sqlite3
import sys

NAMED = {
    "live attempts": "SELECT attempt, epoch FROM live WHERE leased = 1",
    "attempts": "SELECT attempt, epoch FROM history",
    "open tasks": "SELECT id FROM tasks WHERE done = 0",
    "tasks": "SELECT id FROM tasks WHERE done = 1",
    "storages": "SELECT name, site FROM storages",
    "files": "SELECT lfn, size FROM files",
    "agents": "SELECT id, site FROM agents",
}
STORED = """ FROM {table} r JOIN datasets d ON d.id = r.dataset JOIN storages t ON t.id = r.storage"""
SUMS = "r.files, r.bytes, r.suspect_files, r.suspect_bytes, r.registered, r.wire, r.end_to_end, r.readback"
ROWS = {
    "sites": """SELECT name, state, reason, active_in, active_out, in_bytes_per_s, out_bytes_per_s, region,
        removed IS NULL FROM sites WHERE name <> 'mallory'""",
    "agents": "SELECT s.name, a.version FROM agents a JOIN sites s ON s.id = a.site WHERE s.name <> 'mallory'",
    "refused": "SELECT count(*) FROM refused_agents",
    "storages": """SELECT t.name, s.name, t.rules, t.writable, t.case_insensitive, t.trouble, t.files, t.bytes,
        t.relay, t.strategy, t.kind, t.removed IS NULL FROM storages t JOIN sites s ON s.id = t.site
        WHERE s.name <> 'mallory'""",
    "storage names": "SELECT n.name, s.name FROM storage_names n JOIN sites s ON s.id = n.site",
    "datasets": "SELECT name, community, open, files, bytes, blocks FROM datasets",
    "blocks": "SELECT name, open, files, bytes FROM blocks",
    "files": "SELECT lfn, size, hex(digests) FROM files",
    "dataset replicas": f"SELECT d.name, t.name, {SUMS}" + STORED.format(table="dataset_replicas"),
    "block replicas": f"SELECT d.name, b.name, t.name, r.deleting = 0, {SUMS}"
    + STORED.format(table="block_replicas") + " JOIN blocks b ON b.id = r.block",
    "replicas": """SELECT f.lfn, t.name, r.state, r.how, r.fault FROM replicas r JOIN files f ON f.id = r.file
        JOIN storages t ON t.id = r.storage WHERE r.state <> 0""",
    "subscriptions": """SELECT d.name, t.name, s.block = 0, s.state, s.priority, s.verification, s.community,
        s.activity, s.strategy, s.completed IS NULL FROM subscriptions s JOIN datasets d ON d.id = s.dataset
        JOIN storages t ON t.id = s.target""",
    "demands": "SELECT count(*) FROM demands",
    "live": "SELECT count(*) FROM live",
    "history": """SELECT f.lfn, a.name, b.name, h.number, h.state, h.already_there, h.verification,
        hex(h.digests), h.fault FROM history h LEFT JOIN files f ON f.id = h.file
        JOIN storages a ON a.id = h.source JOIN storages b ON b.id = h.target""",
    "arrivals": """SELECT d.name, r.block = 0, a.name, b.name, r.files, r.bytes, r.attempts_failed
        FROM arrivals r JOIN datasets d ON d.id = r.dataset JOIN storages a ON a.id = r.source
        JOIN storages b ON b.id = r.target""",
    "links": """SELECT a.name, b.name, r.files, r.bytes, r.attempts_failed FROM links r
        JOIN storages a ON a.id = r.source JOIN storages b ON b.id = r.target""",
    "failures": "SELECT blame, attempts FROM failures",
    "tasks": """SELECT k.kind, d.name, t.name, k.path, k.force, k.done, k.files_total, k.bytes_total,
        k.files_done, k.bytes_done, k.files_bad, k.problems, k.fault FROM tasks k
        JOIN datasets d ON d.id = k.dataset JOIN storages t ON t.id = k.storage""",
    "left out": "SELECT d.name, t.name, r.reason, r.number, r.examples" + STORED.format(table="left_out"),
    "accusations": "SELECT count(*) FROM accusations",
    "repairs": "SELECT count(*) FROM repairs",
    "relayed": "SELECT count(*) FROM relayed",
    "doors": "SELECT site, storage, allowed, who FROM decisions WHERE site IS NOT NULL AND site <> 'mallory'",
    "circuits": """SELECT count(*) FROM circuit_links c JOIN agents a ON a.id = c.agent
        JOIN sites s ON s.id = a.site WHERE s.name <> 'mallory'""",
}


def main():
    path, what = sys.argv[1:]
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    queries = {"named": NAMED, "rows": ROWS}[what]
    found = {name: sorted(database.execute(query).fetchall(), key=repr) for name, query in queries.items()}
    json.dump(found, sys.stdout)


main()
