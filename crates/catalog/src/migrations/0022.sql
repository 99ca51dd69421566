-- Files that a verification did not read since they are on tape only. They are no problems of the copy.
ALTER TABLE tasks ADD COLUMN files_on_tape INTEGER NOT NULL DEFAULT 0;
