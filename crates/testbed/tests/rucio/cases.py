"""What a Rucio site does with its transfer service, from the rule to the replica."""

from community import SCOPE, add_storage, client, connect, content_at, dataset, file, replicate, until_fulfilled
from installation import GIVEN

CASES = []


def case(name):
    def keep(function):
        CASES.append((name, function))
        return function

    return keep


def storages():
    for name, given in GIVEN["storages"].items():
        add_storage(name, given["url"], given["folder"])
    for source, target in [("ALPHA", "BETA"), ("ALPHA", "GAMMA"), ("BETA", "GAMMA"), ("BETA", "ALPHA")]:
        connect(source, target)


@case("a dataset by rule to two other storages")
def by_rule():
    contents = [b"first", b"", bytes(range(256)) * 4_000]
    files = [file(content, "ALPHA") for content in contents]
    rule = replicate(dataset(*files), "BETA|GAMMA", copies=2)
    until_fulfilled(rule)
    for rse in ("BETA", "GAMMA"):
        for name, content in zip(files, contents):
            assert content_at(rse, name) == content, (rse, name)
