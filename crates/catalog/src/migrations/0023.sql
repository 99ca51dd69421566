-- What had arrived for a subscription's data at its target (see `arrivals`), by source: when the subscription
-- was created (`ended` 0) and when it was cancelled (`ended` 1). A subscription's own numbers are the
-- difference. No row: nothing had arrived.
CREATE TABLE arrival_marks (
  subscription INTEGER NOT NULL,
  ended INTEGER NOT NULL,
  source INTEGER NOT NULL,
  files INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  attempts_failed INTEGER NOT NULL,
  PRIMARY KEY (subscription, ended, source)
) STRICT, WITHOUT ROWID;
-- Subscriptions cancelled before this format keep the numbers that they show.
INSERT INTO arrival_marks (subscription, ended, source, files, bytes, attempts_failed)
  SELECT s.id, 1, a.source, a.files, a.bytes, a.attempts_failed FROM subscriptions s
  JOIN arrivals a ON a.dataset = s.dataset AND a.block = s.block AND a.target = s.target
  WHERE s.state = 'cancelled';
