"""The world in which the cases run, and how they call the client's tools: as they are installed, unmodified."""

import io
import json
import logging
import os
import re
import runpy
import socket
import subprocess
import sys
import traceback

from fts3.rest.client.context import Context

GIVEN = json.loads(os.environ["LONGHAUL_FTS3_WORLD"])
ENDPOINT = GIVEN["endpoint"]
CAPATH = GIVEN["capath"]
FOLDER = GIVEN["folder"]
TOKENS = GIVEN["tokens"]
# Of whoever has a certificate: file names of certificate and key, and of proxies.
PEOPLE = GIVEN.get("people", {})
# What a storage shows, and its authority.
STORAGE = GIVEN.get("storage")
SCRIPTS = os.path.dirname(sys.executable)
# States of a job or file that has not ended, whatever the scheduler made of it meanwhile.
WAITING = ("SUBMITTED", "READY", "ACTIVE")



def silent(number):
    """A storage that takes connections and never says a word: what is sent there is under way as long as a case lasts."""
    listener = socket.socket()
    listener.bind(("127.0.0.%d" % number, 0))
    listener.listen(128)
    _listeners.append(listener)
    return "https://127.0.0.%d:%d" % (number, listener.getsockname()[1])


def storage(url):
    """What FTS calls a storage: without the port."""
    return url.rsplit(":", 1)[0]


_listeners = []
SILENT = silent(1)
SILENT_SE = storage(SILENT)

_numbers = iter(range(1, 1_000_000))


def source(name="source"):
    return "%s/%s/%d" % (SILENT, name, next(_numbers))


def target(name="target"):
    return source(name)


def path(name, content):
    """A file with that content."""
    full = os.path.join(FOLDER, name)
    with open(full, "w") as file:
        file.write(content)
    return full


class Ran:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def json(self):
        return json.loads(self.out)

    def lines(self):
        return self.out.splitlines()

    def __repr__(self):
        return "exit %s\n--- stdout\n%s--- stderr\n%s" % (self.code, self.out, self.err)


def credentials(who):
    """The words with which a tool is told who calls."""
    if who is None:
        return []
    if who in TOKENS:
        return ["--access-token", TOKENS[who]]
    return ["--cert", PEOPLE[who]["certificate"], "--key", PEOPLE[who]["key"]]


# What each tool was called with.
TRIED = {}


def words(tool, arguments, who):
    said = TRIED.setdefault(tool, set())
    said.update(str(word) for word in [*credentials(who), *arguments] if str(word).startswith("-"))
    return [tool, "-s", ENDPOINT, "--capath", CAPATH, *credentials(who), *map(str, arguments)]


def run(tool, *arguments, who="alice", fails=False):
    """Runs a tool's own script in this interpreter (starting another sixty times would only cost time)."""
    out, err = io.StringIO(), io.StringIO()
    import fts3.cli as cli

    kept = sys.argv, sys.stdout, sys.stderr
    streams = cli.stdout_handler.stream, cli.stderr_handler.stream
    level = logging.getLogger("fts3").level
    sys.argv, sys.stdout, sys.stderr = words(tool, arguments, who), out, err
    cli.stdout_handler.stream, cli.stderr_handler.stream = out, err
    code = 0
    try:
        runpy.run_path(os.path.join(SCRIPTS, tool), run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.argv, sys.stdout, sys.stderr = kept
        cli.stdout_handler.stream, cli.stderr_handler.stream = streams
        logging.getLogger("fts3").setLevel(level)
    ran = Ran(code, out.getvalue(), err.getvalue())
    if fails is not None:
        assert (code != 0) == fails, "%s %s: %r" % (tool, " ".join(map(str, arguments)), ran)
    return ran


def start(tool, *arguments, who="alice"):
    """The same as a process of its own."""
    command = [sys.executable, os.path.join(SCRIPTS, tool), *words(tool, arguments, who)[1:]]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def context(who="alice"):
    if who is None:
        return Context(ENDPOINT, capath=CAPATH)
    if who in TOKENS:
        return Context(ENDPOINT, capath=CAPATH, fts_access_token=TOKENS[who])
    person = PEOPLE[who]
    return Context(ENDPOINT, capath=CAPATH, ucert=person["certificate"], ukey=person["key"])


def submit(*arguments, who="alice", files=None):
    """Submits with the command and gives the job's id."""
    ends = files if files is not None else [source(), target()]
    ran = run("fts-rest-transfer-submit", *arguments, *ends, who=who)
    assert ran.lines()[0] == "Job successfully submitted.", ran
    assert ran.lines()[1].startswith("Job id: "), ran
    return ran.lines()[1].removeprefix("Job id: ")


def status(job, who="alice"):
    """The job with its files, as the command prints it."""
    return run("fts-rest-transfer-status", "-j", job, who=who).json()


def same(found, wanted):
    assert found == wanted, "%r instead of %r" % (found, wanted)


def among(found, wanted):
    assert found in wanted, "%r, none of %r" % (found, wanted)


def refused(kind, text, action):
    """The action must raise that exception with that text."""
    try:
        result = action()
    except kind as error:
        assert text in str(error), "%r does not say %r" % (str(error), text)
        return
    raise AssertionError("not refused: %r" % (result,))


CASES = []


def case(name):
    def keep(function):
        assert all(name != known for known, _ in CASES), name
        CASES.append((name, function))
        return function

    return keep


def untried():
    """Options of the tools that no case gave them; two spellings are one option."""
    for name in sorted(os.listdir(SCRIPTS)):
        if not name.startswith("fts-rest-") or name.endswith("-snapshot"):
            continue
        said = TRIED.get(name, set()) | {"--help", "--endpoint", "--capath"}
        for line in run(name, "--help", who=None).out.splitlines():
            option = re.match(r"  (-\S.*?)(  |$)", line)
            forms = re.findall(r"(?:^|[ ,])(--?[a-zA-Z0-9][\w-]*)", option.group(1)) if option else []
            if forms and not said.intersection(forms):
                yield "%s %s" % (name, forms[-1])


def main(not_tried, only):
    """Runs all cases. Exit 1 if one fails, or is left out: what could not be tried counts as failed where nothing may be left
    out (CI=true), and is shown with its reason everywhere."""
    wrong = 0
    for name, function in CASES:
        if only and not any(word in name for word in only):
            continue
        reason = not_tried.get(name)
        try:
            function()
            trouble = None
        except Exception as error:
            trouble = "%s: %s" % (type(error).__name__, error)
            shown = traceback.format_exc()
        if trouble is None and reason is None:
            print("ok          %s" % name)
        elif trouble is None:
            wrong += 1
            print("TRIED NOW   %s: take it off the list of what is not" % name)
        elif reason is not None:
            wrong += os.environ.get("CI") == "true"
            print("NOT TRIED   %s: %s" % (name, reason))
        else:
            wrong += 1
            print("FAILED      %s: %s\n%s" % (name, trouble, shown))
        sys.stdout.flush()
    if not only:
        for option in untried():
            wrong += 1
            print("NO CASE     %s" % option)
    unknown = set(not_tried) - {name for name, _ in CASES}
    assert not unknown, "listed as not served, and no case: %s" % sorted(unknown)
    print("%d cases, %d wrong, %d not tried" % (len(CASES), wrong, len(not_tried)))
    return 1 if wrong else 0
