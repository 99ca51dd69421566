-- Changes of files of jobs that are still to be told to brokers: written with the change, gone when they are spooled.
-- What may change later is kept as it was then.
CREATE TABLE job_news (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  job INTEGER NOT NULL,
  file INTEGER NOT NULL,
  -- Places of model's `JobFileState::ALL`; none: it was submitted.
  was INTEGER,
  state INTEGER NOT NULL,
  -- A place of `JobState::ALL`.
  job_state INTEGER NOT NULL,
  at INTEGER NOT NULL,
  retries INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  -- Of the attempt; none of one that was taken back.
  began INTEGER,
  ended INTEGER,
  started INTEGER,
  reason TEXT NOT NULL,
  recoverable INTEGER NOT NULL,
  bytes INTEGER,
  mode TEXT
) STRICT;
