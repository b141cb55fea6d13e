-- Everything that the three programs say to each other, they say in these tables.
--
-- This file is for readers. What is applied to a database are the numbered files in
-- store/migrations; tests/store/test_migrations.py holds that both make the same tables.
--
-- A caller's request becomes one row in `requests` and one row in `segments` for each piece of its
-- document, written in one transaction, so that no worker sees half of it. A worker claims a segment
-- for the length of a lease and writes its result back with the token of that claim. The request is
-- closed once, by whoever comes first: the node that answers, a cancel, or the batch when that node
-- has died. The close writes the outcome, one letter per segment, and from then on the letters and
-- the rows that are done are the answer for ever. The batch meters what the outcome names and deletes
-- the rows, in one transaction.
--
-- A request:  active -> completed | cancelled | abandoned. Final means final.
-- A segment:  pending -> processing -> done | failed, and processing -> pending when it is given back
--             or has to wait for another try. done and failed never change again.
-- `timed_out` and `cancelled` are words of the answer, read from the outcome; no segment row says them.
--
-- Times are the database's own: DATETIME(6), UTC, because whole seconds round up on MySQL and down on
-- MariaDB, and because a TIMESTAMP may be given an ON UPDATE that nobody asked for.
-- Identifiers are ascii_bin: what a caller sent is compared exactly. Texts are utf8mb4_bin.

CREATE TABLE IF NOT EXISTS schema_version (
  version     INT UNSIGNED NOT NULL
              COMMENT 'A row for each version whose programs may run on these tables; the highest is that of the tables.',
  applied_at  DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
              COMMENT 'An operator asks when the tables changed.',
  PRIMARY KEY (version)
              COMMENT 'A version is recorded once, even when a migration that was stopped runs again.'
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'Programs of different ages share one database, and each must know whether these tables serve it.';

CREATE TABLE IF NOT EXISTS requests (
  id          BIGINT UNSIGNED NOT NULL AUTO_INCREMENT
              COMMENT 'Segments of one request must lie together and in the order of arrival, which no public id promises.',
  tenant      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
              COMMENT 'Strangers share the service: each sees, pays for and waits for its own.',
  public_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
              COMMENT 'The caller must be able to name a request before it is answered: to join, read or cancel it.',
  body_hash   BINARY(32) NOT NULL
              COMMENT 'Another body under the same id must be refused, and the body itself is not kept.',
  status      ENUM('active', 'completed', 'cancelled', 'abandoned') CHARACTER SET ascii NOT NULL DEFAULT 'active'
              COMMENT 'Claims begin only inside active requests, and settlement takes only final ones.',
  segments    INT UNSIGNED NOT NULL
              COMMENT 'Settlement must know how many rows it has to hold before it counts, and small requests are claimed from first.',
  characters  INT UNSIGNED NOT NULL
              COMMENT 'A node must know how much text waits before it takes more, without reading a segment: code points of the sources.',
  params      MEDIUMTEXT NOT NULL
              COMMENT 'The handler gets what the caller meant for it, unchanged (JSON).',
  gaps        MEDIUMTEXT NULL
              COMMENT 'The white space around the segments, without which no document comes out whole (JSON list); NULL when the caller sent segments.',
  on_missing  ENUM('null', 'source', 'omit') CHARACTER SET ascii NOT NULL
              COMMENT 'Any node must put the same document together from a partial answer.',
  created_at  DATETIME(6) NOT NULL
              COMMENT 'The caller waits since then.',
  deadline    DATETIME(6) NOT NULL
              COMMENT 'The answer is due then, on the clock of the database, and no claim begins later.',
  closed_at   DATETIME(6) NULL
              COMMENT 'Settlement counts the time that an answer is kept from here.',
  traceparent VARCHAR(55) CHARACTER SET ascii COLLATE ascii_bin NULL
              COMMENT 'A trace that begins at the caller must go on in the handler (W3C trace context); NULL when none was sent.',
  outcome     MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin NULL
              COMMENT 'The answer, fixed by the close: a letter per segment, d(one) f(ailed) p(ending) r(unning).',
  PRIMARY KEY (id)
              COMMENT 'Every statement of the hot path comes with the internal number.',
  UNIQUE KEY by_caller (tenant, public_id)
              COMMENT 'One computation for one caller id, whoever asks first and on whichever node.',
  KEY by_status (status, deadline)
              COMMENT 'Workers read the active list and the batch the overdue, each from where its rows start (22 rows read for 20 active, at 0 and at 200,000 dead rows).',
  -- A close without its outcome, or an outcome before the close, would be an answer that can still change.
  CONSTRAINT outcome_with_close CHECK ((status = 'active') = (outcome IS NULL)),
  -- MySQL cuts GROUP_CONCAT at 1,024 characters unless told otherwise; a cut outcome must never be stored.
  CONSTRAINT outcome_is_whole CHECK (outcome IS NULL OR CHAR_LENGTH(outcome) = segments)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'A request outlives the node that took it, so that any node can finish it.';

CREATE TABLE IF NOT EXISTS segments (
  request_id  BIGINT UNSIGNED NOT NULL
              COMMENT 'A segment belongs to one request; claims, polls and settlement never cross it.',
  index_no    INT UNSIGNED NOT NULL
              COMMENT 'The place in the document, from 0 without holes: the outcome is read by it.',
  status      ENUM('pending', 'processing', 'done', 'failed') CHARACTER SET ascii NOT NULL DEFAULT 'pending'
              COMMENT 'Processing is only a word in a row, so that nobody waits for a lock while a handler runs.',
  attempts    SMALLINT UNSIGNED NOT NULL DEFAULT 0
              COMMENT 'Counted at the claim, since a segment that kills its worker never reaches any other count.',
  lease_token BINARY(16) NULL
              COMMENT 'The fence, fresh at every claim. It stays on a done row: the only way to read back a commit whose reply was lost.',
  lease_until DATETIME(6) NULL
              COMMENT 'Processing: the end of the lease. Pending: not before, which is how a retry waits.',
  owner_id    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL
              COMMENT 'Operators ask who holds a lease; no statement does.',
  source      MEDIUMTEXT NOT NULL
              COMMENT 'What the handler is given; never blank at either end unless the caller sent it so.',
  result      MEDIUMTEXT NULL
              COMMENT 'What the handler gave back; the answer and the bill are read from it.',
  error       VARCHAR(500) NULL
              COMMENT 'A caller must be told why a segment failed.',
  PRIMARY KEY (request_id, index_no)
              COMMENT 'The rows of a request lie together, so a claim reads about 100 rows however many lie dead elsewhere. No second index: measured, each made claims slower, and write-back and settlement deadlock.',
  -- A write-back that forgets a row would otherwise store NULL as a success.
  CONSTRAINT done_has_result CHECK (status <> 'done' OR result IS NOT NULL)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'Compute is claimed, retried and paid for in pieces that take seconds.';

CREATE TABLE IF NOT EXISTS meter (
  tenant            VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
                    COMMENT 'The bill goes to somebody.',
  public_id         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
                    COMMENT 'The caller checks the bill against the answers it got, which it knows by this id.',
  status            ENUM('completed', 'cancelled', 'abandoned') CHARACTER SET ascii NOT NULL
                    COMMENT 'How the request ended decides what it pays for.',
  segments          INT UNSIGNED NOT NULL
                    COMMENT 'The segments that were answered, or computed where nobody was answered.',
  input_characters  BIGINT UNSIGNED NOT NULL
                    COMMENT 'Unicode code points of their sources.',
  output_characters BIGINT UNSIGNED NOT NULL
                    COMMENT 'Unicode code points of their results.',
  billed            BOOLEAN NOT NULL
                    COMMENT 'An abandoned request is metered for its cost and charged to nobody.',
  settled_at        DATETIME(6) NOT NULL
                    COMMENT 'A bill covers a period.',
  PRIMARY KEY (tenant, public_id)
                    COMMENT 'One record per request by the id that never comes back; internal numbers do, after a restore.',
  KEY by_day (tenant, settled_at)
                    COMMENT 'A tenant asks for a month, which must cost what that month holds and nothing of what others or other years hold.'
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'The bill must outlive the rows that it was counted from.';

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
