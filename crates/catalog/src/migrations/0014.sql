-- Agents whose certificates are refused, all of them: those that were renewed too.
CREATE TABLE refused_agents (
  agent INTEGER PRIMARY KEY,
  reason TEXT NOT NULL,
  refused INTEGER NOT NULL,
  -- No certificate of the agent is valid after this.
  expires INTEGER NOT NULL
) STRICT;
