"""What the service does not serve yet: the case, and why. One place, and shown with every run of the suite."""

CERTIFICATES = "certificates of people are not let in at the service's port yet"

NOT_SERVED = {
    "certificate: whoami tells the DN, and the virtual community": CERTIFICATES,
    "certificate: whoami by a proxy is its holder's": CERTIFICATES,
    "certificate: submission without delegated credentials is refused": CERTIFICATES,
    "certificate: delegate": CERTIFICATES,
    "certificate: delegate -f -H 4 -v": CERTIFICATES,
    "certificate: delegate --legacy-mode": CERTIFICATES,
    "certificate: delegate with a proxy": CERTIFICATES,
    "certificate: delegation of somebody else is refused": CERTIFICATES,
    "certificate: what is not the right proxy is refused": CERTIFICATES,
    "certificate: the delegated credentials can be taken back": CERTIFICATES,
    "certificate: submit delegates by itself; status, list, cancel": CERTIFICATES,
    "certificate: submit by a proxy": CERTIFICATES,
    "certificate: of an authority that is not trusted": CERTIFICATES,
    "certificate: whoami/certificate gives the chain back": CERTIFICATES,
}
