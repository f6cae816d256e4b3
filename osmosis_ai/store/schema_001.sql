-- Version 1. One database holds all runs of a workspace. Nothing is deleted but by
-- `osmosis runs delete` and `osmosis runs prune`.

-- One `osmosis eval run` or `osmosis train run`.
CREATE TABLE run (
    run_id     TEXT PRIMARY KEY,
    kind       TEXT NOT NULL CHECK (kind IN ('eval', 'train')),
    state      TEXT NOT NULL CHECK (state IN ('running', 'done', 'interrupted', 'failed')),
    created_at REAL NOT NULL,           -- seconds since the epoch
    identity   TEXT NOT NULL,           -- JSON: what must not change when the run is resumed
    config     TEXT NOT NULL,           -- JSON: the resolved configuration
    error      TEXT NOT NULL
) STRICT;

-- One run of a workflow on a row.
CREATE TABLE rollout (
    rollout_id       TEXT PRIMARY KEY,
    run_id           TEXT NOT NULL REFERENCES run ON DELETE CASCADE,
    row_index        INTEGER NOT NULL,
    group_id         TEXT NOT NULL,
    member           INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    step             INTEGER NOT NULL,
    status           TEXT NOT NULL,     -- 'running' until the one terminal transition
    reason           TEXT NOT NULL,
    started_at       REAL NOT NULL,     -- seconds since the epoch
    duration_seconds REAL NOT NULL
) STRICT;
CREATE INDEX rollout_by_run ON rollout (run_id, started_at);
CREATE INDEX rollout_by_step ON rollout (run_id, step);
CREATE INDEX rollout_by_status ON rollout (run_id, status);

-- Each distinct chat message once, found by the SHA-256 of its JSON.
CREATE TABLE message (
    id   INTEGER PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    json TEXT NOT NULL
) STRICT;

-- Each distinct list of tool schemas once.
CREATE TABLE tools (
    id   INTEGER PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    json TEXT NOT NULL
) STRICT;

-- One LLM call. Token ids are little-endian uint32, log-probabilities little-endian float32.
CREATE TABLE turn (
    rollout_id           TEXT NOT NULL REFERENCES rollout ON DELETE CASCADE,
    ordinal              INTEGER NOT NULL,
    sample_id            TEXT NOT NULL,
    parent               INTEGER CHECK (parent < ordinal),  -- ordinal whose tokens the prompt continues
    branch_reason        TEXT,
    messages             TEXT NOT NULL,     -- JSON array of message.id
    tools                INTEGER NOT NULL REFERENCES tools,
    response             INTEGER NOT NULL REFERENCES message,
    finish_reason        TEXT NOT NULL,
    new_prompt_ids       BLOB NOT NULL,     -- the prompt without the parent's prompt and completion
    completion_ids       BLOB NOT NULL,
    logprobs             BLOB NOT NULL,
    total_tokens         INTEGER NOT NULL,  -- length of the whole prompt and completion
    tokens_digest        BLOB NOT NULL,     -- BLAKE2b-128 of the whole prompt and completion, as uint32
    policy_version       INTEGER,
    prompt_tokens        INTEGER NOT NULL,
    completion_tokens    INTEGER NOT NULL,
    sampling             TEXT NOT NULL,     -- JSON
    model                TEXT NOT NULL,
    malformed_tool_calls INTEGER NOT NULL,
    latency_ms           REAL NOT NULL,
    PRIMARY KEY (rollout_id, ordinal)
) STRICT;

-- One conversation of a rollout, as the grader saw and rewarded it.
CREATE TABLE sample (
    rollout_id TEXT NOT NULL REFERENCES rollout ON DELETE CASCADE,
    sample_id  TEXT NOT NULL,
    position   INTEGER NOT NULL,            -- order within the rollout
    messages   TEXT NOT NULL,               -- JSON array of message.id
    reward     REAL,                        -- NULL is "no reward", which is not 0
    removed    INTEGER NOT NULL,
    metrics    TEXT NOT NULL,               -- JSON
    PRIMARY KEY (rollout_id, sample_id)
) STRICT;

-- One optimizer step of a training run.
CREATE TABLE step (
    run_id      TEXT NOT NULL REFERENCES run ON DELETE CASCADE,
    step        INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    checkpoint  TEXT NOT NULL,
    metrics     TEXT NOT NULL,              -- JSON
    finished_at REAL NOT NULL,
    PRIMARY KEY (run_id, step)
) STRICT;

-- For people: every message of every turn, in order, as JSON.
CREATE VIEW turn_message AS
    SELECT t.rollout_id, t.ordinal, t.sample_id, e.key AS position, m.json
    FROM turn t, json_each(t.messages) e JOIN message m ON m.id = e.value;

-- Mean reward of the samples that count; only rollouts that were graded have one.
CREATE VIEW rollout_reward AS
    SELECT r.run_id, r.rollout_id, avg(s.reward) AS reward
    FROM rollout r JOIN sample s ON s.rollout_id = r.rollout_id
    WHERE r.status = 'graded' AND NOT s.removed AND s.reward IS NOT NULL
    GROUP BY r.rollout_id;
