"""The transfer service as an operator of Rucio asks it, beside what Rucio does."""

import requests
import urllib3

from installation import GIVEN, ROBOT

urllib3.disable_warnings()


def get(path):
    answer = requests.get(GIVEN["endpoint"] + path, cert=(ROBOT, ROBOT), verify=False, timeout=30)
    assert answer.status_code == 200, "%s: %s %s" % (path, answer.status_code, answer.text)
    return answer.json()


def page(path):
    answer = requests.get(GIVEN["endpoint"] + path, verify=False, timeout=30)
    assert answer.status_code == 200, "%s: %s %s" % (path, answer.status_code, answer.text)
    return answer.text


def status_with(token):
    """What is said to whoever comes with that token."""
    headers = {"Authorization": "Bearer " + token}
    return requests.get(GIVEN["endpoint"] + "/jobs", headers=headers, verify=False, timeout=30).status_code
