-- Version 2: tenants with keys and limits, traces, bills by the month, and workers that are counted.
-- schema.sql at the top of the checkout shows the tables as they are now.

-- AFTER only so that every database shows its columns in the order of schema.sql: no statement
-- depends on it.
ALTER TABLE requests
  ADD COLUMN traceparent VARCHAR(55) CHARACTER SET ascii COLLATE ascii_bin NULL
             COMMENT 'A trace that begins at the caller must go on in the handler (W3C trace context); NULL when none was sent.'
             AFTER closed_at;

ALTER TABLE meter
  ADD KEY by_day (tenant, settled_at)
          COMMENT 'A tenant asks for a month, which must cost what that month holds and nothing of what others or other years hold.';

CREATE TABLE IF NOT EXISTS workers (
  name        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
              COMMENT 'The owner_id of its leases, by which an operator finds both.',
  slots       INT UNSIGNED NOT NULL
              COMMENT 'An operator must know what a fleet can do at once.',
  seen_at     DATETIME(6) NOT NULL
              COMMENT 'One that was killed says no goodbye; it stops counting when it is not seen.',
  PRIMARY KEY (name)
              COMMENT 'A worker is counted once, however often it says that it is there.'
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'Idle workers share the looking, so each must know how many there are; no statement of the laws reads it.';

CREATE TABLE IF NOT EXISTS access_keys (
  hash        BINARY(32) NOT NULL
              COMMENT 'A key is known by its SHA-256, so that whoever reads this table can call as nobody.',
  tenant      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
              COMMENT 'A key says who calls, and nothing else in a call does.',
  scopes      SET('requests', 'operator') CHARACTER SET ascii NOT NULL
              COMMENT 'A program that sends documents must not see what operators see, nor the other way round.',
  name        VARCHAR(100) NOT NULL
              COMMENT 'Whoever revokes a key must know where it is used.',
  created_at  DATETIME(6) NOT NULL
              COMMENT 'Keys are changed by their age.',
  revoked_at  DATETIME(6) NULL
              COMMENT 'A key that leaked ends at once; the row stays, since somebody will ask when.',
  PRIMARY KEY (hash)
              COMMENT 'Each call asks for its key by one read, whose time tells nothing of keys that are nearly right.'
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'Strangers share the service, and each node must know them all.';

CREATE TABLE IF NOT EXISTS sessions (
  hash        BINARY(32) NOT NULL
              COMMENT 'The SHA-256 of the token in the cookie, for the same reason as with a key.',
  key_hash    BINARY(32) NOT NULL
              COMMENT 'A session is worth what its key is worth, and ends with it.',
  created_at  DATETIME(6) NOT NULL
              COMMENT 'A session that nobody ends is over after half a day.',
  PRIMARY KEY (hash)
              COMMENT 'Each call of a page asks for its session by one read.',
  KEY by_age  (created_at)
              COMMENT 'What is over is deleted from the oldest on, without reading the rest.'
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'A browser must not keep a key, and any node may get its next call.';

CREATE TABLE IF NOT EXISTS allowances (
  tenant      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
              COMMENT 'Each tenant has an allowance of its own.',
  full_at     DATETIME(6) NOT NULL
              COMMENT 'When the whole allowance is there again: each document moves it on by the time in which its characters come back.',
  PRIMARY KEY (tenant)
              COMMENT 'One row is charged by one statement, so that all nodes together allow no more than one would.'
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'A tenant that sends too much must be told so before anything is stored, whichever node it asks.';
