-- Circuits of the agents' links. What an agent tells of a link is kept as it told it; what is asked for by people and what
-- came of each circuit is kept for itself.

CREATE TABLE circuit_links (
  agent INTEGER NOT NULL,
  source TEXT NOT NULL,
  told INTEGER NOT NULL,
  details TEXT NOT NULL,
  PRIMARY KEY (agent, source)
) STRICT, WITHOUT ROWID;

CREATE TABLE circuits (
  id TEXT PRIMARY KEY,
  agent INTEGER NOT NULL,
  source TEXT NOT NULL,
  asked INTEGER NOT NULL,
  ended INTEGER,
  details TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX circuits_by_time ON circuits (asked, id);
CREATE INDEX circuits_of_link ON circuits (agent, source, asked);

CREATE TABLE circuit_orders (
  id INTEGER PRIMARY KEY,
  agent INTEGER NOT NULL,
  source TEXT NOT NULL,
  at INTEGER NOT NULL,
  who TEXT NOT NULL,
  -- The agent has said what became of it, or it was withdrawn.
  over INTEGER NOT NULL DEFAULT 0,
  details TEXT NOT NULL
) STRICT;
CREATE INDEX circuit_orders_open ON circuit_orders (agent, id) WHERE over = 0;
CREATE INDEX circuit_orders_of_link ON circuit_orders (agent, source, id);
