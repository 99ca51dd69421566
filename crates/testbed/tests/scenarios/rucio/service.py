"""The transfer service as an operator of Rucio asks it, beside what Rucio does."""

import requests

from installation import GIVEN, ISSUER, ROBOT

# The authority of the service's host certificate; the deployment's own is known to its agents only.
AUTHORITY = ISSUER["authority"]


def get(path):
    answer = requests.get(GIVEN["endpoint"] + path, cert=(ROBOT, ROBOT), verify=AUTHORITY, timeout=30)
    assert answer.status_code == 200, "%s: %s %s" % (path, answer.status_code, answer.text)
    return answer.json()


def page(path):
    answer = requests.get(GIVEN["endpoint"] + path, verify=AUTHORITY, timeout=30)
    assert answer.status_code == 200, "%s: %s %s" % (path, answer.status_code, answer.text)
    return answer.text


def status_with(token):
    """What is said to whoever comes with that token."""
    headers = {"Authorization": "Bearer " + token}
    answer = requests.get(GIVEN["endpoint"] + "/jobs", headers=headers, verify=AUTHORITY, timeout=30)
    return answer.status_code
