-- Jobs: copies between URLs, as users of FTS submit them.

-- Servers by scheme, host and port.
CREATE TABLE job_ends (
  id INTEGER PRIMARY KEY,
  url TEXT NOT NULL UNIQUE
) STRICT;

-- What waits for one server under the same terms: the scheduler knows these, and of their files a window at a time.
CREATE TABLE job_queues (
  id INTEGER PRIMARY KEY,
  target INTEGER NOT NULL,
  vo TEXT NOT NULL,
  activity TEXT NOT NULL,
  priority INTEGER NOT NULL,
  strategy TEXT NOT NULL,
  UNIQUE (target, vo, activity, priority, strategy)
) STRICT;

CREATE TABLE jobs (
  number INTEGER PRIMARY KEY,
  id BLOB NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  -- Places of model's `JobState::ALL`.
  state INTEGER NOT NULL,
  vo TEXT NOT NULL,
  user TEXT NOT NULL,
  credential TEXT NOT NULL,
  priority INTEGER NOT NULL,
  strategy TEXT NOT NULL,
  source_se TEXT,
  target_se TEXT,
  submitted INTEGER NOT NULL,
  expires INTEGER,
  finished INTEGER,
  -- Somebody asked for its end.
  canceled INTEGER NOT NULL DEFAULT 0,
  reason TEXT NOT NULL DEFAULT '',
  -- Some files share an index, so that they are counted together.
  grouped INTEGER NOT NULL,
  -- Files by where they stand; of `grouped` ones not kept.
  files INTEGER NOT NULL,
  files_finished INTEGER NOT NULL DEFAULT 0,
  files_failed INTEGER NOT NULL DEFAULT 0,
  files_canceled INTEGER NOT NULL DEFAULT 0,
  files_active INTEGER NOT NULL DEFAULT 0,
  files_staging INTEGER NOT NULL DEFAULT 0,
  files_archiving INTEGER NOT NULL DEFAULT 0,
  files_waiting INTEGER NOT NULL DEFAULT 0,
  details TEXT NOT NULL
) STRICT;
-- A list is a page of one of these, however rare what it asks for.
CREATE INDEX jobs_by_state ON jobs (state, submitted);
CREATE INDEX jobs_by_vo ON jobs (vo, state, submitted);
CREATE INDEX jobs_by_user ON jobs (user, state, submitted);
CREATE INDEX jobs_by_credential ON jobs (credential, state, submitted);
CREATE INDEX jobs_by_source ON jobs (source_se, state, submitted) WHERE source_se IS NOT NULL;
CREATE INDEX jobs_by_target ON jobs (target_se, state, submitted) WHERE target_se IS NOT NULL;
CREATE INDEX jobs_by_end ON jobs (finished) WHERE finished IS NOT NULL;
CREATE INDEX jobs_by_expiry ON jobs (expires) WHERE finished IS NULL AND expires IS NOT NULL;

CREATE TABLE job_files (
  id INTEGER PRIMARY KEY,
  job INTEGER NOT NULL,
  place INTEGER NOT NULL,
  -- Places of model's `JobFileState::ALL`.
  state INTEGER NOT NULL,
  source TEXT NOT NULL,
  target TEXT NOT NULL,
  source_end INTEGER NOT NULL,
  target_end INTEGER NOT NULL,
  queue INTEGER NOT NULL,
  size INTEGER,
  checksum TEXT,
  -- Attempts that ended without the file and were followed by another.
  retries INTEGER NOT NULL DEFAULT 0,
  attempt INTEGER NOT NULL DEFAULT 0,
  not_before INTEGER NOT NULL DEFAULT 0,
  reason TEXT NOT NULL DEFAULT '',
  recoverable INTEGER NOT NULL DEFAULT 0,
  started INTEGER,
  finished INTEGER,
  bytes INTEGER,
  mode TEXT,
  details TEXT NOT NULL
) STRICT;
CREATE INDEX job_files_of_job ON job_files (job, id);
CREATE INDEX job_files_by_state ON job_files (state, id);
-- SUBMITTED and FORCE_START.
CREATE INDEX job_files_waiting ON job_files (queue, id) WHERE state IN (3, 4);
-- What is on its way, by where it is to be: duplicates are looked for here. Not what may never have its turn.
CREATE INDEX job_files_open_by_target ON job_files (target) WHERE state < 10;
CREATE INDEX job_files_ended ON job_files (finished) WHERE finished IS NOT NULL;

CREATE TABLE job_attempts (
  attempt INTEGER PRIMARY KEY,
  file INTEGER NOT NULL,
  began INTEGER NOT NULL,
  ended INTEGER,
  -- Why it was followed by another, or ended its file otherwise than well.
  reason TEXT,
  bytes INTEGER,
  choice TEXT NOT NULL
) STRICT;
CREATE INDEX job_attempts_of_file ON job_attempts (file, attempt);

-- What users have given us to act for them. What is secret in it is sealed before it comes here.
CREATE TABLE delegations (
  id TEXT PRIMARY KEY,
  user TEXT NOT NULL,
  request BLOB,
  proxy BLOB,
  expires INTEGER,
  details TEXT NOT NULL,
  changed INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
