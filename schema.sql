-- The tables. The three programs communicate through them only.
--
-- This file is for readers. The numbered files in store/migrations are applied to a database;
-- tests/store/test_migrations.py checks that both make the same tables.
--
-- A request of a caller becomes one row in `requests` and one row in `segments` for each piece of its
-- document. They are written in one transaction, so that no worker sees a part of them. A worker
-- claims a segment for the length of a lease and writes its result back with the token of that claim.
-- The request is closed once: by the node that answers, by a cancel, or by the batch when that node
-- has died. The close writes the outcome, one letter per segment. From then on the outcome and the
-- rows that are done define the answer permanently. The batch meters what the outcome names and
-- deletes the rows, in one transaction.
--
-- Status of a request:  active -> completed | cancelled | abandoned. A final status never changes.
-- Status of a segment:  pending -> processing -> done | failed, and processing -> pending when it is
--                       given back or waits for a retry. done and failed never change.
-- `timed_out` and `cancelled` are segment statuses of the answer only, read from the outcome.
--
-- Times are the time of the database, UTC. They are DATETIME(6), because whole seconds are rounded up
-- on MySQL and down on MariaDB, and because some servers add ON UPDATE to a TIMESTAMP.
-- Identifiers are ascii_bin: what a caller sent is compared exactly. Texts are utf8mb4_bin.

CREATE TABLE IF NOT EXISTS schema_version (
  version     INT UNSIGNED NOT NULL
              COMMENT 'One row for each version whose programs can run on these tables; the highest is the version of the tables.',
  applied_at  DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
              COMMENT 'Operators need to know when the tables changed.',
  PRIMARY KEY (version)
              COMMENT 'A version is recorded once, even when a migration is stopped and runs again.'
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'Programs of different versions share one database, and each must know whether it can run on these tables.';

CREATE TABLE IF NOT EXISTS requests (
  id          BIGINT UNSIGNED NOT NULL AUTO_INCREMENT
              COMMENT 'The segments of one request must be stored together, and requests in order of arrival; a public id has no such order.',
  tenant      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
              COMMENT 'Tenants share the service: each sees, and pays for, only its own requests.',
  public_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
              COMMENT 'The caller must be able to name a request before it is answered, to attach to it, read it or cancel it.',
  body_hash   BINARY(32) NOT NULL
              COMMENT 'A different body under the same id must be refused, and the body itself is not stored.',
  status      ENUM('active', 'completed', 'cancelled', 'abandoned') CHARACTER SET ascii NOT NULL DEFAULT 'active'
              COMMENT 'Claims begin only inside active requests, and settlement takes only final ones.',
  segments    INT UNSIGNED NOT NULL
              COMMENT 'Settlement must know how many rows to lock before it counts, and workers claim from small requests first.',
  characters  INT UNSIGNED NOT NULL
              COMMENT 'A node must know how much text is active before it accepts more, without reading segments: code points of the sources.',
  params      MEDIUMTEXT NOT NULL
              COMMENT 'The handler gets the parameters that the caller sent, unchanged (JSON).',
  gaps        MEDIUMTEXT NULL
              COMMENT 'The separators: the white space around the segments, needed to join the document (JSON list); NULL when the caller sent segments.',
  on_missing  ENUM('null', 'source', 'omit') CHARACTER SET ascii NOT NULL
              COMMENT 'Every node must join the same document from a partial answer.',
  created_at  DATETIME(6) NOT NULL
              COMMENT 'The caller has been waiting since this time.',
  deadline    DATETIME(6) NOT NULL
              COMMENT 'The answer is due at this time of the database, and no claim begins later.',
  closed_at   DATETIME(6) NULL
              COMMENT 'The retention of the answer begins at this time.',
  traceparent VARCHAR(55) CHARACTER SET ascii COLLATE ascii_bin NULL
              COMMENT 'A trace of the caller continues in the handler (W3C trace context); NULL when none was sent.',
  outcome     MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin NULL
              COMMENT 'The answer, fixed by the close: one letter per segment, d(one) f(ailed) p(ending) r(unning).',
  PRIMARY KEY (id)
              COMMENT 'Every statement of the hot path finds a request by its internal number.',
  UNIQUE KEY by_caller (tenant, public_id)
              COMMENT 'One id of a tenant is computed once, on whichever nodes it is sent.',
  KEY by_status (status, deadline)
              COMMENT 'Workers read active requests, and the batch reads overdue ones, without reading others (22 rows read for 20 active, at 0 and at 200,000 dead rows).',
  -- A final request without an outcome, or an active one with it, would have an answer that can still change.
  CONSTRAINT outcome_with_close CHECK ((status = 'active') = (outcome IS NULL)),
  -- MySQL cuts GROUP_CONCAT at 1,024 characters by default; an outcome that was cut must never be stored.
  CONSTRAINT outcome_is_whole CHECK (outcome IS NULL OR CHAR_LENGTH(outcome) = segments)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'A request must survive the node that accepted it, so that any node can finish it.';

CREATE TABLE IF NOT EXISTS segments (
  request_id  BIGINT UNSIGNED NOT NULL
              COMMENT 'A segment belongs to one request; claims, polls and settlement never cross it.',
  index_no    INT UNSIGNED NOT NULL
              COMMENT 'The position in the document, from 0 without holes; the outcome is read by this position.',
  status      ENUM('pending', 'processing', 'done', 'failed') CHARACTER SET ascii NOT NULL DEFAULT 'pending'
              COMMENT 'A claim is a value in the row, so that no lock is held while a handler runs.',
  attempts    SMALLINT UNSIGNED NOT NULL DEFAULT 0
              COMMENT 'Counted at the claim, since a segment that kills its worker could not be counted later.',
  lease_token BINARY(16) NULL
              COMMENT 'The fence, new at every claim. It stays on a done row, so that a write-back whose reply was lost can be read back.',
  lease_until DATETIME(6) NULL
              COMMENT 'Processing: the end of the lease. Pending: no claim before this time, so that a retry waits.',
  owner_id    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL
              COMMENT 'Operators need to know which worker holds a lease; no statement reads it.',
  source      MEDIUMTEXT NOT NULL
              COMMENT 'The text for the handler; no white space at its ends unless the caller sent segments.',
  result      MEDIUMTEXT NULL
              COMMENT 'The text that the handler returned; the answer and the bill are read from it.',
  error       VARCHAR(500) NULL
              COMMENT 'A caller must learn why a segment failed.',
  PRIMARY KEY (request_id, index_no)
              COMMENT 'The rows of a request are stored together, so a claim reads about 100 rows, however many dead rows there are. No second index: as measured, each made claims slower and let write-back and settlement deadlock.',
  -- Otherwise a write-back without the result of a row would store NULL as a success.
  CONSTRAINT done_has_result CHECK (status <> 'done' OR result IS NOT NULL)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'Work is claimed, retried and billed in pieces that take seconds.';

CREATE TABLE IF NOT EXISTS meter (
  tenant            VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
                    COMMENT 'The tenant who pays.',
  public_id         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
                    COMMENT 'The caller knows its answers by this id, and can compare them with the bill.',
  status            ENUM('completed', 'cancelled', 'abandoned') CHARACTER SET ascii NOT NULL
                    COMMENT 'The final status of the request decides what is billed.',
  segments          INT UNSIGNED NOT NULL
                    COMMENT 'The segments that were answered, or that were computed when there was no answer.',
  input_characters  BIGINT UNSIGNED NOT NULL
                    COMMENT 'Unicode code points of their sources.',
  output_characters BIGINT UNSIGNED NOT NULL
                    COMMENT 'Unicode code points of their results.',
  billed            BOOLEAN NOT NULL
                    COMMENT 'An abandoned request is metered for its cost, and not billed.',
  settled_at        DATETIME(6) NOT NULL
                    COMMENT 'A bill covers a period of time.',
  PRIMARY KEY (tenant, public_id)
                    COMMENT 'One record per request, by the id that is never used again; internal numbers can repeat after a restore.',
  KEY by_day (tenant, settled_at)
                    COMMENT 'A tenant reads one month; the cost must not depend on other tenants or other months.'
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'The bill must survive the rows from which it was counted.';

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
