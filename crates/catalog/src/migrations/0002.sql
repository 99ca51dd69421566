-- Measurement hosts, end points of storages that are not ours, and networks, with the site each belongs to. `place` is a
-- host name or address, or a network with its length; a network has no role.
CREATE TABLE site_places (
  place TEXT PRIMARY KEY,
  site INTEGER NOT NULL,
  role TEXT,
  family TEXT,
  origin TEXT NOT NULL,
  created INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
