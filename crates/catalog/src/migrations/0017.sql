-- How often a damaged replica was replaced by a good one at its storage, and when last.
CREATE TABLE repairs (
  file INTEGER NOT NULL,
  storage INTEGER NOT NULL,
  dataset INTEGER NOT NULL,
  count INTEGER NOT NULL,
  last INTEGER NOT NULL,
  PRIMARY KEY (file, storage)
) STRICT, WITHOUT ROWID;
CREATE INDEX repairs_by_time ON repairs (last);
CREATE INDEX repairs_of_dataset ON repairs (dataset);
