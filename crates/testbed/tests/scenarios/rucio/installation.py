"""A Rucio of its own: configuration, database, server and daemons, as they are published."""

import configparser
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time

GIVEN = json.loads(os.environ["LONGHAUL_RUCIO_WORLD"])
HERE = GIVEN["folder"]
SCRIPTS = os.path.dirname(sys.executable)
BROKER = GIVEN["broker"]
VO = GIVEN["vo"]
# Whoever waits longer waits in vain; what Rucio tries again comes within this, also on a busy machine.
WITHIN_S = 240
# After so long, what is waited for may be something that Rucio asks for again only after ten minutes.
POLLED_AGAIN_S = 10
# Daemons look again that often, in seconds; by itself each would wait for minutes.
ROUND = "1"
# Of all rules that do not say another.
ACTIVITY = "User Subscriptions"
ISSUER = GIVEN["issuer"]
# How Rucio is known to the issuer of its tokens.
CLIENT = {"client_id": "rucio", "client_secret": "between-the-two"}
# A certificate and its key, of a Rucio's robot.
ROBOT = GIVEN["robot"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


# Its logging has to be set up, quietly.
ALEMBIC = """[alembic]
script_location = rucio.db.sqla:migrate_repo
sqlalchemy.url = %s
[loggers]
keys = root
[logger_root]
level = WARN
handlers = stderr
[handlers]
keys = stderr
[handler_stderr]
class = StreamHandler
args = (sys.stderr,)
[formatters]
keys =
"""


def configure():
    """Writes rucio.cfg and alembic.ini, and makes this process and all it starts go by them."""
    url = "http://127.0.0.1:%d" % free_port()
    database = "postgresql+psycopg://" + GIVEN["database"]
    sections = {
        "common": {"logdir": HERE, "loglevel": "DEBUG"},
        "client": {
            "rucio_host": url, "auth_host": url, "auth_type": "userpass", "account": "root",
            "username": "operator", "password": "secret", "request_retries": "1",
        },
        "database": {"default": database},
        "bootstrap": {"userpass_identity": "operator", "userpass_pwd": "secret"},
        "alembic": {"cfg": HERE + "/alembic.ini"},
        "policy": {"permission": "generic", "schema": "generic", "lfn2pfn_algorithm_default": "hash"},
        "conveyor": {
            "scheme": "davs", "transfertool": "fts3", "usercert": ROBOT,
            "use_deterministic_id": "true", "poller_oidc_support": "false",
        },
        "messaging-fts3": {
            "brokers": "127.0.0.1", "port": str(BROKER["port"]), "use_ssl": "false",
            "username": BROKER["user"], "password": BROKER["password"],
            "destination": "/topic/transfer.fts_monitoring_complete", "voname": VO,
        },
        "transfers": {"multihop_tombstone_delay": "3600"},
    }
    sections["oidc"] = {"idpsecrets": HERE + "/idpsecrets.json", "admin_issuer": "testbed"}
    with open(HERE + "/idpsecrets.json", "w") as file:
        json.dump({"testbed": {"issuer": ISSUER["url"], **CLIENT}}, file)
    config = configparser.ConfigParser(interpolation=None)
    config.read_dict(sections)
    with open(HERE + "/rucio.cfg", "w") as file:
        config.write(file)
    with open(HERE + "/alembic.ini", "w") as file:
        file.write(ALEMBIC % database)
    os.environ.update(RUCIO_CONFIG=HERE + "/rucio.cfg", RUCIO_HOME=HERE, REQUESTS_CA_BUNDLE=ISSUER["authority"])
    return url


URL = configure()
_running = {}


def bootstrap():
    """An empty database, with the account that may do all."""
    from rucio.db.sqla.util import build_database, create_base_vo, create_root_account

    build_database()
    create_base_vo()
    create_root_account()


def start(name, *words):
    """Starts a program of Rucio's as it is installed, until `stop` or the end of this process."""
    log = open("%s/%s.log" % (HERE, name), "a")
    command = [sys.executable, os.path.join(SCRIPTS, "rucio-" + name), *words]
    if name == "server":
        port = URL.rsplit(":", 1)[1]
        command = [sys.executable, "-m", "flask", "--app", "rucio.web.rest.flaskapi.v1.main:application", "run",
                   "--with-threads", "--port", port]
    _running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def stop(name):
    process = _running.pop(name)
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def without(name):
    """It is away meanwhile, and then comes back as it was."""
    words = _running[name].args[2:]
    stop(name)
    yield
    start(name, *words)


def stop_all():
    for process in _running.values():
        process.terminate()
    for name in list(_running):
        stop(name)


def until(what, seen, within=WITHIN_S):
    """What `seen` gives as soon as it gives something."""
    began = time.monotonic()
    end, again = began + within, began + POLLED_AGAIN_S
    while True:
        found = seen()
        if found:
            return found
        for name, process in _running.items():
            assert process.poll() is None, "%s has ended: %s" % (name, log(name)[-4000:])
        assert time.monotonic() < end, "it never came that %s" % (what() if callable(what) else what)
        if time.monotonic() > again:
            poll_all()
            again = time.monotonic() + POLLED_AGAIN_S
        time.sleep(0.1)


def poll_all():
    """The daemon leaves alone for ten minutes what was under way when it asked; one that runs once does not.

    With that word it goes by a name of its own: by the daemon's it would share the requests with it, and leave it its half.
    The receiver turns away what it is told before the submitter has noted which job a request has become, and nobody tells it again:
    sites have a poller beside it.
    """
    if "conveyor-poller" in _running or turned_away():
        command = [sys.executable, os.path.join(SCRIPTS, "rucio-conveyor-poller"), "--run-once", "--older-than", "0",
                   "--activities", ACTIVITY]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


def turned_away():
    """Requests of which the receiver was told too early to use it."""
    if "conveyor-receiver" not in _running:
        return set()
    words = r"Response (\w+) with transfer id \S+ is different from the request transfer id None"
    return set(re.findall(words, log("conveyor-receiver")))


def log(name):
    with open("%s/%s.log" % (HERE, name)) as file:
        return file.read()


def answers():
    try:
        socket.create_connection(("127.0.0.1", int(URL.rsplit(":", 1)[1])), 1).close()
        return True
    except OSError:
        return False


def complaints():
    """What daemons and server have said that something went wrong with, each once."""
    words = ("ERROR", "CRITICAL", "Traceback", "Error: ")
    logs = [name.removesuffix(".log") for name in sorted(os.listdir(HERE)) if name.endswith(".log")]
    found = [(name, line) for name in logs for line in log(name).splitlines() if any(word in line for word in words)]
    return sorted({"%s: %s" % (name, line.split("\t")[-1]) for name, line in found})
