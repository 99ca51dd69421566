-- Who was allowed or refused what. Equal decisions of a short while are one row that says how often.
CREATE TABLE decisions (
  id INTEGER PRIMARY KEY,
  allowed INTEGER NOT NULL,
  -- The first and the last of them.
  since INTEGER NOT NULL,
  at INTEGER NOT NULL,
  times INTEGER NOT NULL,
  who TEXT NOT NULL,
  -- What kind of credential they showed; never the credential.
  credential TEXT NOT NULL,
  origin TEXT NOT NULL,
  operation TEXT NOT NULL,
  object TEXT NOT NULL,
  why TEXT NOT NULL
) STRICT;
CREATE INDEX decisions_by_outcome ON decisions (allowed, id);
CREATE INDEX decisions_by_who ON decisions (who, id);

-- What an API token is confined to. None: nothing but its role.
ALTER TABLE api_tokens ADD COLUMN scopes TEXT;
ALTER TABLE api_tokens ADD COLUMN community TEXT;
