-- People who log in with a password of this deployment's own.
CREATE TABLE accounts (
  name TEXT PRIMARY KEY,
  -- Its hash, in the form of the Password Hashing Competition.
  password TEXT NOT NULL,
  role TEXT NOT NULL,
  community TEXT,
  disabled INTEGER NOT NULL DEFAULT 0,
  created INTEGER NOT NULL,
  -- When the password was given.
  password_since INTEGER NOT NULL,
  last_login INTEGER
) STRICT, WITHOUT ROWID;

-- Who logged in and who was refused stands beside what was changed, and is forgotten by itself: refusals, of which there
-- may be many, drive out no changes.
ALTER TABLE audit ADD COLUMN kind TEXT NOT NULL DEFAULT 'change';
CREATE INDEX audit_of_kind ON audit (kind, id);
