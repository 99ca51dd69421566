-- Files that come from tape, and files that are watched until they are on tape.
ALTER TABLE job_files ADD COLUMN staging_began INTEGER;
ALTER TABLE job_files ADD COLUMN staging_ended INTEGER;
-- By which id the tape system knows the bulk that a file was asked for in.
ALTER TABLE job_files ADD COLUMN staging_request TEXT;
ALTER TABLE job_files ADD COLUMN archiving_began INTEGER;
ALTER TABLE job_files ADD COLUMN archiving_ended INTEGER;
-- STAGING and ARCHIVING.
CREATE INDEX job_files_staging ON job_files (source_end, id) WHERE state = 1;
CREATE INDEX job_files_archiving ON job_files (not_before) WHERE state = 7;

-- Bulks that a tape system is about to be asked for, or was. Written before it is asked: a restart asks again.
CREATE TABLE tape_requests (
  id INTEGER PRIMARY KEY,
  source_end INTEGER NOT NULL,
  vo TEXT NOT NULL,
  -- Where it was asked, and by which id it knows the bulk; none until it has answered.
  base TEXT,
  request TEXT,
  made INTEGER NOT NULL,
  -- When it is to be looked at; none while there is nothing to ask.
  next INTEGER,
  -- Questions that failed since the last that did not.
  tries INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX tape_requests_due ON tape_requests (next) WHERE next IS NOT NULL;
CREATE INDEX tape_requests_of_end ON tape_requests (source_end, vo);

CREATE TABLE tape_files (
  request INTEGER NOT NULL,
  file INTEGER NOT NULL,
  -- 0: wanted; 1: on disk and pinned; 2, 3: the same of what nobody wants any more.
  stands INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (request, file)
) STRICT, WITHOUT ROWID;
CREATE INDEX tape_files_of_file ON tape_files (file);
