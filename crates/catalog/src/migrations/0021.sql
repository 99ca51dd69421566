-- Storage names that an administrator allowed to a site. A name that follows from the site's needs no row,
-- nor does that of a storage that is there.
CREATE TABLE storage_names (
  name TEXT PRIMARY KEY,
  site INTEGER NOT NULL,
  allowed INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX storage_names_of_site ON storage_names (site);
