-- Version 2. A sample whose agent is answered by the policy and not trained.

-- Version 1 did not keep it: its samples count as trained.
ALTER TABLE sample ADD COLUMN frozen INTEGER NOT NULL DEFAULT 0;
