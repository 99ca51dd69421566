-- What a subscription asks for beside its priority. No community: that of its dataset.
ALTER TABLE subscriptions ADD COLUMN community TEXT;
ALTER TABLE subscriptions ADD COLUMN activity TEXT;
ALTER TABLE subscriptions ADD COLUMN strategy TEXT;
ALTER TABLE subscriptions ADD COLUMN deadline INTEGER;
CREATE INDEX subscriptions_by_deadline ON subscriptions (deadline) WHERE deadline IS NOT NULL;

-- Whether files may pass through a storage on their way, and how sources are chosen for what goes there. Decided by
-- an administrator of the service, so an agent's hello leaves both alone.
ALTER TABLE storages ADD COLUMN relay INTEGER NOT NULL DEFAULT 0;
ALTER TABLE storages ADD COLUMN strategy TEXT;

-- 1: the target is a relay, on the way to storages that want the block.
ALTER TABLE live ADD COLUMN hop INTEGER NOT NULL DEFAULT 0;
CREATE INDEX live_hops ON live (block) WHERE hop = 1;

-- Files that came to a relay on their way and are removed there when nobody waits for them any more; `task` removes
-- them then, 0 before.
CREATE TABLE relayed (
  storage INTEGER NOT NULL,
  file INTEGER NOT NULL,
  block INTEGER NOT NULL,
  dataset INTEGER NOT NULL,
  task INTEGER NOT NULL DEFAULT 0,
  -- Not looked at before.
  look_at INTEGER NOT NULL,
  PRIMARY KEY (storage, file)
) STRICT, WITHOUT ROWID;
CREATE INDEX relayed_by_time ON relayed (look_at) WHERE task = 0;
CREATE INDEX relayed_of_task ON relayed (task, file) WHERE task <> 0;

-- Who decided what, newest last.
CREATE TABLE audit (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  who TEXT NOT NULL,
  what TEXT NOT NULL
) STRICT;
