"""Members of a virtual organisation, by attributes in their proxy as VOMS writes them."""

import fts3.rest.client.easy as fts3

from world import PEOPLE, WAITING, among, case, context, run, same, status, submit

DN = "/DC=org/DC=example/OU=Users/CN=dora"
FQANS = ["/testvo/Role=production/Capability=NULL", "/testvo"]


def member():
    assert "dora-member" in PEOPLE, "no proxy with attributes was made"
    return "dora-member"


@case("VOMS: whoami tells the attributes, the community and the roles")
def whoami():
    me = run("fts-rest-whoami", "-j", who=member()).json()
    same((me["user_dn"], me["method"]), (DN, "certificate"))
    same(me["vos"], ["testvo"])
    same([fqan.removesuffix("/Role=NULL/Capability=NULL") for fqan in me["voms_cred"]], FQANS)
    same(me["roles"], ["production"])
    same(me["level"]["transfer"], "vo")
    # With other attributes it is another credential.
    assert me["delegation_id"] != fts3.whoami(context("dora"))["delegation_id"], me


@case("VOMS: delegation keeps the attributes")
def delegation():
    me = context(member())
    own = fts3.delegate(me, force=True)
    told = me.get("/delegation/" + own)
    assert "/testvo/Role=production" in told, told


@case("VOMS: a job is its organisation's, to see and to cancel")
def job():
    job = submit(who=member())
    found = status(job, who=member())
    same((found["vo_name"], found["user_dn"]), ("testvo", DN))
    among(found["job_state"], WAITING)
    same(found["job_metadata"], {"auth_method": "certificate"})
    # alice is of testvo, bob is of another; dora without attributes is of none, but the job is hers by no credential of hers.
    same(status(job, who="alice")["job_id"], job)
    for stranger in ("bob", "dora"):
        ran = run("fts-rest-transfer-status", job, who=stranger, fails=True)
        assert "Not enough permissions" in ran.out, ran
    ran = run("fts-rest-transfer-cancel", job, who="bob", fails=True)
    assert "Not enough permissions" in ran.out, ran
    same(run("fts-rest-transfer-cancel", job, who="alice").out.strip(), "CANCELED")


@case("VOMS: attributes give no right to configure")
def configure():
    run("fts-rest-ban", "--storage", "https://x.example.org", who=member(), fails=True)
