-- Replicas that agents of targets found bad at their source: the storage's own agent verifies them before they
-- are suspect. `task` verifies them then, 0 before. Not verified before `due`. `refuted`: when its own agent
-- found it good.
CREATE TABLE accusations (
  file INTEGER NOT NULL,
  storage INTEGER NOT NULL,
  -- The site whose agent says so.
  site INTEGER NOT NULL,
  dataset INTEGER NOT NULL,
  due INTEGER NOT NULL,
  task INTEGER NOT NULL DEFAULT 0,
  refuted INTEGER,
  PRIMARY KEY (file, storage, site)
) STRICT, WITHOUT ROWID;
CREATE INDEX accusations_by_time ON accusations (due) WHERE task = 0 AND refuted IS NULL;
CREATE INDEX accusations_of_task ON accusations (task, file) WHERE task <> 0;
CREATE INDEX accusations_of_dataset ON accusations (dataset);
