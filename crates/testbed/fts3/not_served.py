"""What the service does not serve yet: the case, and why. One place, and shown with every run of the suite."""

NOT_SERVED = {
}
