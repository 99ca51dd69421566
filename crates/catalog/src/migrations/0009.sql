-- Where a site lies: links between two regions have something in common. None: nobody said.
ALTER TABLE sites ADD COLUMN region TEXT;
