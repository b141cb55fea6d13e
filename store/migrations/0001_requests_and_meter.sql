-- Version 1: the tables that a request needs from its arrival to its bill.
-- schema.sql at the top of the checkout shows the tables of the newest version.

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
                    COMMENT 'One record per request, by the id that is never used again; internal numbers can repeat after a restore.'
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'The bill must survive the rows from which it was counted.';
