-- Conventions: ids and times (µs) are integers, enumerations are words, faults and lists are JSON text,
-- digests are packed bytes, `how` is 0 registered, 1 wire, 2 end-to-end, 3 readback. In `subscriptions` and
-- `arrivals` block 0 stands for the whole dataset.

CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (key TEXT PRIMARY KEY, reply TEXT NOT NULL, at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_at ON idempotency (at);

CREATE TABLE sites (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  state TEXT NOT NULL,
  reason TEXT,
  active_in INTEGER,
  active_out INTEGER,
  in_bytes_per_s INTEGER,
  out_bytes_per_s INTEGER,
  created INTEGER NOT NULL
) STRICT;

CREATE TABLE join_tokens (
  hash BLOB PRIMARY KEY,
  site INTEGER NOT NULL,
  expires INTEGER NOT NULL,
  created INTEGER NOT NULL,
  used INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE api_tokens (
  hash BLOB PRIMARY KEY,
  name TEXT NOT NULL,
  role TEXT NOT NULL,
  expires INTEGER,
  created INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE agents (
  id INTEGER PRIMARY KEY,
  site INTEGER NOT NULL,
  host TEXT NOT NULL,
  version TEXT NOT NULL,
  incarnation INTEGER NOT NULL,
  nonce INTEGER NOT NULL,
  addresses TEXT NOT NULL,
  certificate_expires INTEGER NOT NULL,
  acknowledged INTEGER NOT NULL,
  created INTEGER NOT NULL,
  last_hello INTEGER
) STRICT;

CREATE TABLE storages (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  site INTEGER NOT NULL,
  agent INTEGER NOT NULL,
  rules TEXT NOT NULL,
  writable INTEGER NOT NULL,
  case_insensitive INTEGER NOT NULL,
  total_bytes INTEGER NOT NULL DEFAULT 0,
  free_bytes INTEGER NOT NULL DEFAULT 0,
  trouble TEXT,
  files INTEGER NOT NULL DEFAULT 0,
  bytes INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Numbers of datasets and blocks are never used again: `arrivals` outlive a dataset that is deleted.
CREATE TABLE datasets (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL UNIQUE,
  community TEXT NOT NULL,
  open INTEGER NOT NULL,
  files INTEGER NOT NULL DEFAULT 0,
  bytes INTEGER NOT NULL DEFAULT 0,
  blocks INTEGER NOT NULL DEFAULT 0,
  -- The automatically made block that files without a block of their own go to, 0 if there is none,
  -- and the number of the next one.
  filling INTEGER NOT NULL DEFAULT 0,
  next_number INTEGER NOT NULL DEFAULT 1,
  created INTEGER NOT NULL
) STRICT;

CREATE TABLE blocks (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  dataset INTEGER NOT NULL,
  name TEXT NOT NULL UNIQUE,
  open INTEGER NOT NULL,
  files INTEGER NOT NULL DEFAULT 0,
  bytes INTEGER NOT NULL DEFAULT 0,
  last_file INTEGER NOT NULL DEFAULT 0,
  created INTEGER NOT NULL
) STRICT;
CREATE INDEX blocks_of_dataset ON blocks (dataset, id);

CREATE TABLE files (
  id INTEGER PRIMARY KEY,
  block INTEGER NOT NULL,
  lfn TEXT NOT NULL UNIQUE,
  size INTEGER NOT NULL,
  digests BLOB NOT NULL
) STRICT;
CREATE INDEX files_of_block ON files (block, id);

-- What one storage holds of one block. Files with an id up to `base_file` are there, good, and verified as
-- `base_how` says, unless `replicas` has a row that says otherwise; later ones are there only by such a row.
-- So a complete block is this one row, and a block that grows stays cheap.
CREATE TABLE block_replicas (
  block INTEGER NOT NULL,
  storage INTEGER NOT NULL,
  dataset INTEGER NOT NULL,
  base_file INTEGER NOT NULL,
  base_how INTEGER NOT NULL,
  files INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  suspect_files INTEGER NOT NULL,
  suspect_bytes INTEGER NOT NULL,
  registered INTEGER NOT NULL,
  wire INTEGER NOT NULL,
  end_to_end INTEGER NOT NULL,
  readback INTEGER NOT NULL,
  -- Rows in `replicas`.
  exceptions INTEGER NOT NULL,
  -- The task that deletes it, 0 if none.
  deleting INTEGER NOT NULL,
  PRIMARY KEY (block, storage)
) STRICT, WITHOUT ROWID;
CREATE INDEX block_replicas_of_dataset ON block_replicas (dataset, storage, block);

-- state: 0 good, 1 suspect (`fault` says why), 2 not there although `base_file` covers it.
CREATE TABLE replicas (
  block INTEGER NOT NULL,
  storage INTEGER NOT NULL,
  file INTEGER NOT NULL,
  how INTEGER NOT NULL,
  state INTEGER NOT NULL,
  fault TEXT,
  PRIMARY KEY (block, storage, file)
) STRICT, WITHOUT ROWID;

-- Sums of `block_replicas`.
CREATE TABLE dataset_replicas (
  dataset INTEGER NOT NULL,
  storage INTEGER NOT NULL,
  files INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  suspect_files INTEGER NOT NULL,
  suspect_bytes INTEGER NOT NULL,
  registered INTEGER NOT NULL,
  wire INTEGER NOT NULL,
  end_to_end INTEGER NOT NULL,
  readback INTEGER NOT NULL,
  PRIMARY KEY (dataset, storage)
) STRICT, WITHOUT ROWID;

CREATE TABLE subscriptions (
  id INTEGER PRIMARY KEY,
  dataset INTEGER NOT NULL,
  block INTEGER NOT NULL,
  target INTEGER NOT NULL,
  state TEXT NOT NULL,
  priority INTEGER NOT NULL,
  verification TEXT NOT NULL,
  created INTEGER NOT NULL,
  completed INTEGER
) STRICT;
CREATE UNIQUE INDEX subscriptions_once ON subscriptions (dataset, target, block) WHERE state <> 'cancelled';
CREATE INDEX subscriptions_of_target ON subscriptions (target, id);

-- A row exactly as long as an active subscription lacks a good replica of some file of the block.
CREATE TABLE demands (
  subscription INTEGER NOT NULL,
  block INTEGER NOT NULL,
  target INTEGER NOT NULL,
  PRIMARY KEY (subscription, block)
) STRICT, WITHOUT ROWID;
CREATE INDEX demands_of_block ON demands (block, target);

-- Transfers that are waiting or leased, with their present or last attempt.
CREATE TABLE live (
  id INTEGER PRIMARY KEY,
  file INTEGER NOT NULL,
  block INTEGER NOT NULL,
  dataset INTEGER NOT NULL,
  target INTEGER NOT NULL,
  subscription INTEGER NOT NULL,
  leased INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  attempt INTEGER NOT NULL UNIQUE,
  epoch INTEGER NOT NULL,
  source INTEGER NOT NULL,
  agent INTEGER NOT NULL,
  start_by INTEGER NOT NULL,
  not_before INTEGER NOT NULL,
  created INTEGER NOT NULL,
  chosen INTEGER NOT NULL,
  changed INTEGER NOT NULL,
  fault TEXT
) STRICT;
CREATE UNIQUE INDEX live_once ON live (target, block, file);

-- Why the source of an attempt was chosen. Written once, so that live rows stay small.
CREATE TABLE choices (attempt INTEGER PRIMARY KEY, transfer INTEGER NOT NULL, choice TEXT NOT NULL) STRICT;

-- One row per finished attempt. The last row of a finished transfer has its terminal state, the others none;
-- a transfer that was ended while it waited has a last row without attempt (0).
CREATE TABLE history (
  transfer INTEGER NOT NULL,
  number INTEGER NOT NULL,
  state INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  file INTEGER NOT NULL,
  dataset INTEGER NOT NULL,
  source INTEGER NOT NULL,
  target INTEGER NOT NULL,
  agent INTEGER NOT NULL,
  created INTEGER NOT NULL,
  chosen INTEGER NOT NULL,
  finished INTEGER NOT NULL,
  received INTEGER,
  started INTEGER,
  first_byte INTEGER,
  last_byte INTEGER,
  committed INTEGER,
  bytes_moved INTEGER NOT NULL,
  bytes_resent INTEGER NOT NULL,
  already_there INTEGER NOT NULL,
  verification TEXT,
  digests BLOB,
  fault TEXT,
  PRIMARY KEY (transfer, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX history_of_dataset ON history (dataset, transfer) WHERE state > 0;
CREATE INDEX history_of_source ON history (source, transfer) WHERE state > 0;
CREATE INDEX history_of_target ON history (target, transfer) WHERE state > 0;
CREATE INDEX history_unsuccessful ON history (state, transfer) WHERE state > 1;

-- What arrived by transfer, and what failed, by source; for each block, and (block 0) for the dataset.
CREATE TABLE arrivals (
  dataset INTEGER NOT NULL,
  block INTEGER NOT NULL,
  target INTEGER NOT NULL,
  source INTEGER NOT NULL,
  files INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  attempts_failed INTEGER NOT NULL,
  PRIMARY KEY (dataset, block, target, source)
) STRICT, WITHOUT ROWID;

CREATE TABLE links (
  source INTEGER NOT NULL,
  target INTEGER NOT NULL,
  files INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  attempts_failed INTEGER NOT NULL,
  PRIMARY KEY (source, target)
) STRICT, WITHOUT ROWID;

CREATE TABLE failures (blame TEXT PRIMARY KEY, attempts INTEGER NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE tasks (
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  dataset INTEGER NOT NULL,
  storage INTEGER NOT NULL,
  path TEXT NOT NULL,
  algorithms TEXT NOT NULL,
  force INTEGER NOT NULL,
  -- Files registered later are not its business.
  last_file INTEGER NOT NULL,
  done INTEGER NOT NULL,
  files_total INTEGER NOT NULL,
  bytes_total INTEGER NOT NULL,
  files_done INTEGER NOT NULL DEFAULT 0,
  bytes_done INTEGER NOT NULL DEFAULT 0,
  files_bad INTEGER NOT NULL DEFAULT 0,
  problems TEXT NOT NULL DEFAULT '[]',
  fault TEXT,
  created INTEGER NOT NULL,
  finished INTEGER
) STRICT;
CREATE UNIQUE INDEX tasks_open ON tasks (storage, dataset, kind, path) WHERE done = 0;
CREATE INDEX tasks_of_dataset ON tasks (dataset, id);

CREATE TABLE left_out (
  dataset INTEGER NOT NULL,
  storage INTEGER NOT NULL,
  reason TEXT NOT NULL,
  number INTEGER NOT NULL,
  examples TEXT NOT NULL,
  PRIMARY KEY (dataset, storage, reason)
) STRICT, WITHOUT ROWID;
