"""fts-rest-transfer-submit: one case for each option, seen again in the job's status."""

import json
import time

from world import SILENT_SE, TOKENS, WAITING, among, case, path, run, same, source, start, status, submit, target

TOOL = "fts-rest-transfer-submit"


def option(arguments, job=None, file=None, internal=None, two=False):
    """A case: these words, and then these attributes of the job and of each file."""

    @case("submit " + " ".join(arguments))
    def check():
        ends = None
        if two:
            middle = target("hop")
            bulk = {
                "files": [
                    {"sources": [source()], "destinations": [middle]},
                    {"sources": [middle], "destinations": [target()]},
                ]
            }
            for one in bulk["files"]:
                one["source_tokens"] = one["destination_tokens"] = [TOKENS["alice"]]
            ends = ["-f", path("hops.json", json.dumps(bulk))]
        found = status(submit(*arguments, files=ends))
        for name, wanted in (job or {}).items():
            assert found[name] == wanted, "%s is %r instead of %r" % (name, found[name], wanted)
        for name, wanted in (file or {}).items():
            for one in found["files"]:
                assert one[name] == wanted, "%s is %r instead of %r" % (name, one[name], wanted)
        if internal is not None:
            assert internal in found["internal_job_params"].split(","), found["internal_job_params"]


option(["-o"], {"overwrite_flag": "Y"})
option(["--overwrite"], {"overwrite_flag": "Y"})
option(["--overwrite-on-retry"], {"overwrite_flag": "R"})
option(
    ["--overwrite-when-only-on-disk", "--archive-timeout", "600"],
    {"overwrite_flag": "D", "archive_timeout": 600},
)
option(["--overwrite-hop", "-m"], {"overwrite_flag": "M", "job_type": "H"}, two=True)
option(
    ["--overwrite-hop", "--overwrite-when-only-on-disk", "--archive-timeout", "60", "-m"],
    {"overwrite_flag": "Q", "job_type": "H"},
    two=True,
)
option(["-r"], {"job_type": "Y"})
option(["--reuse"], {"job_type": "Y"})
option(["-m"], {"job_type": "H"}, two=True)
option(["--multi-hop"], {"job_type": "H"})
option(["-K"], {"verify_checksum": "b"})
option(["--compare-checksum"], {"verify_checksum": "b"})
option(["-C", "source"], {"verify_checksum": "s"})
option(["-C", "target"], {"verify_checksum": "t"})
option(["-C", "both"], {"verify_checksum": "b"})
option(["--checksum-mode", "none"], {"verify_checksum": "n"})
option(["--job-metadata", '{"a": 1}'], {"job_metadata": {"a": 1, "auth_method": "oauth2"}})
option(["--job-metadata", "label"], {"job_metadata": {"label": "label", "auth_method": "oauth2"}})
option(["--file-metadata", '{"b": [2]}'], file={"file_metadata": {"b": [2]}})
option(["--file-metadata", "name"], file={"file_metadata": {"label": "name"}})
option(
    ["--staging-metadata", '{"default": {"activity": "x"}}', "--bring-online", "100"],
    {"bring_online": 100},
    {"staging_metadata": {"default": {"activity": "x"}}},
)
option(
    ["--archive-metadata", '{"key": "value"}', "--archive-timeout", "100"],
    {"archive_timeout": 100},
    {"archive_metadata": {"key": "value"}},
)
option(["--file-size", "1024"], file={"user_filesize": 1024})
option(["-g", "pasv"])
option(["--gparam", "pasv"])
option(["-t", "TAPE"], {"destination_spacetoken": "TAPE"})
option(["--destination-spacetoken", "TAPE"], {"destination_spacetoken": "TAPE"})
option(["-S", "DISK"], {"source_spacetoken": "DISK"})
option(["--source-spacetoken", "DISK"], {"source_spacetoken": "DISK"})
option(["--copy-pin-lifetime", "300"], {"copy_pin_lifetime": 300})
option(["--bring-online", "120"], {"bring_online": 120})
option(["--dst-file-report"], {"dst_file_report": True})
option(["--archive-timeout", "900"], {"archive_timeout": 900})
option(["--timeout", "3600"], internal="timeout:3600")
option(["--fail-nearline"])
option(["--retry", "3"], {"retry": 3})
option(["--retry", "-1"], {"retry": -1})
option(["-p", "5"], {"priority": 5}, {"priority": 5})
option(["--priority", "1"], {"priority": 1})
option(["--nostreams", "4"], internal="nostreams:4")
option(["--buffer-size", "1048576"], internal="buffersize:1048576")
option(["--buff-size", "65536"], internal="buffersize:65536")
option(["--ipv4"], internal="ipv4")
option(["--ipv6"], internal="ipv6")
option(["--s3alternate"], internal="s3alternate")
option(["--strict-copy"], internal="strict")
option(["--disable-cleanup"], internal="disable-cleanup")
option(["--activity", "Production"], file={"activity": "Production"})
option(["--scitag", "65"], file={"scitag": 65})
option(["--cloud-credentials", "dropbox"])
option(["--unmanaged-tokens"])
option(["-e", "60"])
option(["--expire", "60"])
option(["--delegate-when-lifetime-lt", "5"])
option(["-v"])


@case("submit with nothing but two URLs has the defaults")
def defaults():
    ends = [source(), target()]
    found = status(submit(files=ends))
    among(found["job_state"], WAITING)
    same(found["job_type"], "N")
    same((found["source_se"], found["dest_se"]), (SILENT_SE, SILENT_SE))
    same(found["priority"], 3)
    same(found["verify_checksum"], "n")
    same((found["retry"], found["retry_delay"]), (0, 0))
    same((found["copy_pin_lifetime"], found["bring_online"], found["archive_timeout"]), (-1, -1, -1))
    same((found["cancel_job"], found["dst_file_report"]), (False, False))
    same(found["overwrite_flag"], None)
    same(found["job_finished"], None)
    same(found["max_time_in_queue"], None)
    time.strptime(found["submit_time"], "%Y-%m-%dT%H:%M:%S")
    same(found["dm"], [])
    (file,) = found["files"]
    same((file["source_surl"], file["dest_surl"]), tuple(ends))
    same(file["checksum"], "ADLER32")
    same((file["file_index"], file["retry"]), (0, 0))
    among(file["file_state"], WAITING)
    among(file["reason"], (None, ""))
    same(file["job_id"], found["job_id"])


@case("submit SOURCE DESTINATION CHECKSUM")
def checksum():
    found = status(submit(files=[source(), target(), "ADLER32:12345678"]))
    same(found["files"][0]["checksum"], "ADLER32:12345678")


@case("submit --bring-online begins with staging")
def staging():
    found = status(submit("--bring-online", "600"))
    same(found["job_state"], "STAGING")
    among(found["files"][0]["file_state"], ("STAGING", "STARTED"))


@case("submit -j prints the id as JSON")
def submit_json():
    found = run(TOOL, "-j", source(), target()).json()
    same(status(found)["job_id"], found)


@case("submit --dry-run sends nothing and prints the body")
def dry_run():
    body = run(TOOL, "--dry-run", "-p", "4", source(), target()).json()
    same(body["params"]["priority"], 4)
    same(len(body["files"]), 1)


@case("submit -f FILE with several files and parameters")
def bulk():
    token = [TOKENS["alice"]]
    ends = [(source(), target()) for _ in range(3)]
    files = [
        {
            "sources": [one],
            "destinations": [other],
            "metadata": "file-metadata",
            "checksum": "ADLER32:1234",
            "filesize": 1024,
            "source_tokens": token,
            "destination_tokens": token,
        }
        for one, other in ends
    ]
    name = path("bulk.json", json.dumps({"files": files, "params": {"priority": 2, "overwrite": True}}))
    found = status(submit("-f", name, files=[]))
    same((found["priority"], found["overwrite_flag"]), (2, "Y"))
    same([(one["source_surl"], one["dest_surl"]) for one in found["files"]], ends)
    same([one["file_index"] for one in found["files"]], [0, 1, 2])
    same(found["files"][2]["file_metadata"], {"label": "file-metadata"})
    same(found["files"][2]["user_filesize"], 1024)


@case("submit -b polls until the job has ended")
def blocking():
    process = start(TOOL, "-b", "-i", "1", source(), target())
    try:
        assert process.stdout.readline() == "Job successfully submitted.\n"
        job = process.stdout.readline().strip().removeprefix("Job id: ")
        among(process.stdout.readline().strip(), ["Job in state %s" % state for state in WAITING])
        same(run("fts-rest-transfer-cancel", job).out.strip(), "CANCELED")
        rest, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    same(rest.splitlines()[-2:], ["Job finished with state CANCELED", "Reason: Job canceled by the user"])


@case("submit refuses what the server refuses, with its text")
def refusals():
    def text(*arguments):
        return run(TOOL, *arguments, fails=True).out

    assert "Can not transfer local files" in text("file:///etc/passwd", target())
    assert "Missing scheme" in text("/etc/passwd", target())
    assert "metadata exceeds size limit of 1024" in text("--file-metadata", "x" * 1100, source(), target())
    assert "requires multihop job submission" in text("--overwrite-hop", source(), target())
