-- Custodial subscriptions: kept on purpose. Their cancellation needs the consent of a second person in another
-- role.
ALTER TABLE subscriptions ADD COLUMN custodial INTEGER NOT NULL DEFAULT 0;
-- The first consent, as JSON; NULL: there is none.
ALTER TABLE subscriptions ADD COLUMN consent TEXT;
