-- Of which sites a manager is the manager, separated by blanks. None: of none.
ALTER TABLE api_tokens ADD COLUMN sites TEXT;
ALTER TABLE accounts ADD COLUMN sites TEXT;

-- At which site a decision was made, and about which of its storages: at a door. None: by the service.
ALTER TABLE decisions ADD COLUMN site TEXT;
ALTER TABLE decisions ADD COLUMN storage TEXT;
CREATE INDEX decisions_by_site ON decisions (site, id);
-- Those of the service and of each site are forgotten apart.
CREATE INDEX decisions_by_outcome_and_site ON decisions (allowed, site, id);
