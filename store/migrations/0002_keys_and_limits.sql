-- Version 2: keys and limits of tenants, traces, bills by month, and the count of workers.
-- schema.sql at the top of the checkout shows the tables of the newest version.

-- AFTER is used only so that every database has its columns in the order of schema.sql. No statement
-- depends on that order.
ALTER TABLE requests
  ADD COLUMN traceparent VARCHAR(55) CHARACTER SET ascii COLLATE ascii_bin NULL
             COMMENT 'A trace of the caller continues in the handler (W3C trace context); NULL when none was sent.'
             AFTER closed_at;

ALTER TABLE meter
  ADD KEY by_day (tenant, settled_at)
          COMMENT 'A tenant reads one month; the cost must not depend on other tenants or other months.';

CREATE TABLE IF NOT EXISTS workers (
  name        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
              COMMENT 'The owner_id of the leases of this worker, so that an operator can find them.',
  slots       INT UNSIGNED NOT NULL
              COMMENT 'Operators must know how many segments the fleet can run at once.',
  seen_at     DATETIME(6) NOT NULL
              COMMENT 'A worker that was killed cannot delete its row; it is no longer counted when this time is too old.',
  PRIMARY KEY (name)
              COMMENT 'A worker is counted once, however often it registers.'
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'Idle workers share the polling, so each must know how many there are; no law depends on this table.';

CREATE TABLE IF NOT EXISTS access_keys (
  hash        BINARY(32) NOT NULL
              COMMENT 'The SHA-256 of the key, so that a reader of this table cannot use the keys.',
  tenant      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
              COMMENT 'The key alone decides which tenant calls.',
  scopes      SET('requests', 'operator') CHARACTER SET ascii NOT NULL
              COMMENT 'A key that sends documents must not have the rights of an operator, and the key of an operator must not send documents.',
  name        VARCHAR(100) NOT NULL
              COMMENT 'Before operators revoke a key, they must know where it is used.',
  created_at  DATETIME(6) NOT NULL
              COMMENT 'Operators replace keys by age.',
  revoked_at  DATETIME(6) NULL
              COMMENT 'A revoked key is refused at once; the row stays, to show when it was revoked.',
  PRIMARY KEY (hash)
              COMMENT 'Each call reads its key by hash, so that the time of the read reveals nothing about similar keys.'
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'Tenants share the service, and every node must know the keys of all.';

CREATE TABLE IF NOT EXISTS sessions (
  hash        BINARY(32) NOT NULL
              COMMENT 'The SHA-256 of the token in the cookie, so that a reader of this table cannot use the sessions.',
  key_hash    BINARY(32) NOT NULL
              COMMENT 'A session has the rights of its key, and ends with it.',
  created_at  DATETIME(6) NOT NULL
              COMMENT 'A session ends by itself after half a day.',
  PRIMARY KEY (hash)
              COMMENT 'Each call of a page reads its session by hash.',
  KEY by_age  (created_at)
              COMMENT 'Expired sessions are deleted from the oldest on, without reading the others.'
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'A browser must not store a key, and any node can get its next call.';

CREATE TABLE IF NOT EXISTS allowances (
  tenant      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
              COMMENT 'Each tenant has its own allowance.',
  full_at     DATETIME(6) NOT NULL
              COMMENT 'The time at which the allowance is full again (the theoretical arrival time of GCRA). Each document moves it forward by the time in which its characters are allowed again.',
  PRIMARY KEY (tenant)
              COMMENT 'One statement charges one row, so that all nodes together allow no more than one node would.'
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'A tenant that sends too much must be refused before anything is stored, on every node.';
