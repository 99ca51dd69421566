"""Rucio as it is published, against this service: every case of `cases`, with its daemons running."""

import sys
import time
import traceback

import installation
import issuer
from installation import ROUND, start, stop_all, until

BY_POLLING = {
    "conveyor-submitter": ["--sleep-time", ROUND, "--group-bulk", "10"],
    "conveyor-poller": ["--sleep-time", ROUND, "--older-than", "0"],
    "conveyor-finisher": ["--sleep-time", ROUND],
    "judge-evaluator": ["--sleep-time", ROUND],
    "judge-repairer": ["--sleep-time", ROUND],
}


def main(only):
    installation.bootstrap()
    issuer.start()
    start("server")
    for daemon, words in BY_POLLING.items():
        start(daemon, *words)
    until("the server answers", installation.answers)
    import cases

    wrong = 0
    cases.set_up()
    for name, function in cases.CASES:
        if only and not any(word in name for word in only):
            continue
        begun = time.monotonic()
        try:
            function()
            print("ok      %s (%.1f s)" % (name, time.monotonic() - begun), flush=True)
        except Exception:
            wrong += 1
            print("FAILED  %s\n%s" % (name, traceback.format_exc()), flush=True)
    print("%d cases, %d wrong" % (len(cases.CASES), wrong))
    return wrong


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    finally:
        stop_all()
    sys.exit(1 if status else 0)
