-- Who moved the bytes of an attempt; null if nobody did, and for attempts that ended before this column was.
ALTER TABLE history ADD COLUMN executor TEXT;
