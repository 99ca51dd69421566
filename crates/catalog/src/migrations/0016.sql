-- Open login sessions, which survive a restart. `hash` is that of the cookie. One session has a `token` (the
-- hash of the API token that opened it), an `account`, or a `holder` (JSON, of whoever logged in with a
-- certificate or at an issuer).
CREATE TABLE login_sessions (
  hash BLOB PRIMARY KEY,
  token BLOB,
  account TEXT,
  holder TEXT,
  created INTEGER NOT NULL,
  expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX login_sessions_by_time ON login_sessions (expires);
