"""What cannot be tried on this machine: the case, and why. One place, and shown with every run of the suite."""

from world import CASES, PEOPLE


def not_tried():
    if PEOPLE and "dora-member" in PEOPLE:
        return {}
    if PEOPLE:
        reason = "there are no tools of VOMS on this machine (voms-clients)"
        return {name: reason for name, _ in CASES if name.startswith("VOMS: ")}
    reason = "this service was told of no authority of people"
    return {name: reason for name, _ in CASES if name.startswith(("certificate: ", "VOMS: "))}
