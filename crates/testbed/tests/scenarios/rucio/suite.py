"""Rucio as it is published, against this service: all of `cases`, with its daemons running."""

import sys
import time
import traceback

import distance
import installation
import issuer
from installation import ROUND, start, stop_all, until

# The submitter looks for what is queued while it still submits what it found before, and would find the hops that it makes on the
# way: it submits them once more, alone, or gives their jobs up and leaves them for two hours. Where its rounds take longer than its
# work, as they do by default (ten minutes), there is nothing to find.
SUBMITTERS_ROUND = "6"

DAEMONS = {
    "conveyor-submitter": ["--sleep-time", SUBMITTERS_ROUND, "--group-bulk", "10", "--group-policy", "rule_src_dest"],
    "conveyor-poller": ["--sleep-time", ROUND, "--older-than", "0"],
    "conveyor-finisher": ["--sleep-time", ROUND],
    "judge-evaluator": ["--sleep-time", ROUND],
    "judge-repairer": ["--sleep-time", ROUND],
}


def run(cases):
    """Begins all of them, then looks at what became of each. How many went wrong."""
    begun = [(name, function()) for name, function in cases]
    wrong = set()
    for then in ("begin", "end"):
        for name, course in begun:
            started = time.monotonic()
            try:
                if name not in wrong:
                    next(course, None)
                    if then == "end":
                        print("ok      %s (after %.1f s more)" % (name, time.monotonic() - started), flush=True)
            except Exception:
                wrong.add(name)
                print("FAILED  %s\n%s" % (name, traceback.format_exc()), flush=True)
    return len(wrong)


def main(only):
    installation.bootstrap()
    distance.put_between(installation.GIVEN["storages"])
    issuer.start()
    start("server")
    for daemon, words in DAEMONS.items():
        start(daemon, *words)
    until("the server answers", installation.answers)
    import cases

    chosen = [[(name, function) for name, function in group if not only or any(word in name for word in only)]
              for group in (cases.BY_POLLING, cases.BY_MESSAGES)]
    cases.set_up()
    wrong = sum(map(run, chosen))
    for complaint in installation.complaints() if wrong else []:
        print("said    %s" % complaint[:400])
    print("%d cases, %d wrong" % (sum(map(len, chosen)), wrong))
    return wrong


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    finally:
        stop_all()
    sys.exit(1 if status else 0)
