/* Tests sample the orders in which things can happen; this folder tries every one of them.
 *
 * Two workers of one slot, two nodes, one batch, one request of two segments. A transition is one
 * statement, or one commit, as far as the locks of the rows let others come in between; its comment
 * names the statement by file and constant. Three rules keep the transactions honest:
 *
 * - The rows below are the committed ones. What a transaction has written and not committed lies in
 *   the variables of its worker, node or batch, and its row is locked. A plain read sees the rows.
 * - A statement that must wait for a lock is not enabled; SKIP LOCKED passes over the row.
 * - A frozen client is one whose next transition comes late. A crash, a lost connection and the
 *   server's wait_timeout release its locks and forget what it had not committed.
 *
 * Time is made of the steps of Clock, which may come at any moment.
 *
 * Each WITHOUT_... takes out one line that upholds a law; the model then fails by the name of that
 * law. What is left out of the model stands in docs/model.md.
 */

/* True until one is broken, and the checker stops there: so a failure is named by its law. */
#define LAW(name, holds) name = (holds); assert(name)

bool law_1_one_live_lease = true;
bool law_1_no_stale_write = true;
bool law_2_the_answer_is_fixed_by_the_close = true;
bool law_2_what_is_done_stays_done = true;
bool law_3_the_bill_is_the_answer = true;
bool law_3_no_answer_no_charge = true;
bool law_4_what_is_deleted_was_counted = true;
bool law_4_metered_exactly_once = true;
bool law_5_nothing_starts_too_late = true;
bool law_6_only_the_dead_are_overdue = true;
bool law_6_nothing_lives_for_ever = true;
bool law_7_settled_ids_stay_settled = true;

/* Who holds a lock: nobody, a worker or a node, or the batch. */
#define FREE 0
#define MINE (1 + me)
#define BATCH 3

/* The row of the request; NONE when there is none for anybody else to see. */
mtype:request = { NONE, ACTIVE, COMPLETED, CANCELLED, ABANDONED };
mtype:request request = NONE;
byte submitter; /* holds the unique key of a request it has not committed */
byte closer;    /* holds the row in a CLOSE */
bool settling;  /* the batch holds the row in a settlement */

/* The rows of the segments. The letters p, r, d and f of an outcome are the states that they say.
 */
mtype:segment = { GONE, PENDING, PROCESSING, DONE, FAILED };
mtype:segment segment[2] = GONE;
mtype:segment outcome[2] = GONE;
mtype:segment view[2] = GONE; /* what a CLOSE has read and not committed */
bool live[2]; /* lease_until lies ahead: a lease that has not run out, or a retry that waits */
byte attempts[2];
byte lock[2];

#define MAX_ATTEMPTS 2

/* lease_token. It is fresh at every claim, so it is named by who knows it: the lease that a worker
 * holds, or the claim of its exchange in flight. What nobody knows any more, nobody can present.
 */
byte token[2];
#define NOBODY 0
#define HELD (1 + me)
#define NEW (3 + me)

byte records; /* in the meter, of this id */

/* For the laws alone, no statement reads it: what the first close fixed; that a submit was
 * committed.
 */
mtype:request fixed_status = NONE;
mtype:segment fixed[2] = GONE;
bool known;

/* The deadline, deadline + grace and deadline + keep, in the order that the defaults give them. */
#define IN_TIME 0
#define LATE 1
#define GRACE_OVER 2
#define KEEP_OVER 3
byte hour = IN_TIME;

bool over; /* everybody but the batch has stopped for ever */

mtype:worker = { w_idle, w_running, w_ready, w_written, w_claimed };
mtype:worker worker[2] = w_idle;
#define NOTHING 2
byte leased[2];   /* the segment whose lease it holds, while it runs, is ready or is written */
bool written[2];  /* the open transaction has written it back */
byte claimed[2] = NOTHING; /* the segment that the open transaction claims */
bool in_doubt[2]; /* a commit was carried out and its reply lost: the exchange runs again */

/* LEASE waits for a row that is not its own yet: only where CLAIM locks nothing. */
#define MAY_COMMIT ((worker[me] == w_written || worker[me] == w_claimed) && \
    (claimed[me] == NOTHING || lock[claimed[me]] == FREE || lock[claimed[me]] == MINE))

mtype:node = { n_idle, n_asking, n_inserted, n_asked, n_waiting, n_closing, n_looking };
mtype:node node[2] = n_idle;
mtype:request meant[2] = NONE; /* as what it has closed, when the reply was lost */
bool punctual[2]; /* it waits since before the grace was over, and was not frozen for so long */

mtype:batch = { b_idle, b_overdue, b_locking, b_counting, b_forgetting };
mtype:batch batch = b_idle;
bool counted[2];
bool billed;

#define UNLOCKED (closer == FREE && !settling)
#define WAITS(n) (punctual[n] && (node[n] == n_waiting || node[n] == n_closing))
#define RUNS(i) (segment[i] == PROCESSING && live[i])

/* What a segment that is done owes to the bill, by what the first close fixed. */
#define BILLABLE(i) (fixed[i] == DONE || fixed_status != COMPLETED && fixed[i] == PROCESSING)

/* The lines that uphold the laws, each with and without. */

#ifdef WITHOUT_TOKEN
#define TOKEN_FITS true
#else
#define TOKEN_FITS (token[leased[me]] == HELD)
#endif

#define FENCE (TOKEN_FITS && segment[leased[me]] == PROCESSING)

#ifdef WITHOUT_STATUS
#define WRITE_BACK_FENCE (TOKEN_FITS && segment[leased[me]] != GONE)
#else
#define WRITE_BACK_FENCE FENCE
#endif

#ifdef WITHOUT_CLAIM_STATUS
#define WANTED(i) (segment[i] != GONE && !live[i])
#else
#define WANTED(i) ((segment[i] == PENDING || segment[i] == PROCESSING) && !live[i])
#endif

#ifdef WITHOUT_CLAIM_LOCK
#define CLAIMABLE(i) WANTED(i)
#define LOCK_CLAIMED
#else
#define CLAIMABLE(i) (WANTED(i) && lock[i] == FREE)
#define LOCK_CLAIMED lock[claimed[me]] = MINE;
#endif

#ifdef WITHOUT_CHECK
#define OPEN true
#else
#define OPEN (request == ACTIVE && hour == IN_TIME)
#endif

#ifdef WITHOUT_GUARD
#define CLOSABLE (request != NONE)
#else
#define CLOSABLE (request == ACTIVE)
#endif

#if defined(WITHOUT_REAPER)
#define OVERDUE false
#elif defined(WITHOUT_GRACE)
#define OVERDUE (request == ACTIVE && hour >= LATE)
#else
#define OVERDUE (request == ACTIVE && hour >= GRACE_OVER)
#endif

#ifdef WITHOUT_LOCK
#define ROWS_MISSING false
#define LOCK_ROWS
#else
#define ROWS_MISSING (lock[0] != FREE || lock[1] != FREE)
#define LOCK_ROWS lock[0] = BATCH; lock[1] = BATCH;
#endif

#ifdef WITHOUT_RETENTION_LIMIT
#define STRAGGLES (request == CANCELLED && (RUNS(0) || RUNS(1)))
#else
#define STRAGGLES (request == CANCELLED && hour < KEEP_OVER && (RUNS(0) || RUNS(1)))
#endif

#ifdef WITHOUT_OUTCOME
#define COUNTS(i) (segment[i] == DONE)
#else
#define COUNTS(i) (segment[i] == DONE && \
    (outcome[i] == DONE || request != COMPLETED && outcome[i] == PROCESSING))
#endif

#ifdef WITHOUT_BILLED
#define BILLED true
#else
#define BILLED (request != ABANDONED)
#endif

#define RECORD records++; LAW(law_4_metered_exactly_once, records == 1)

#ifdef WITHOUT_TRANSACTION
#define AFTER_METER RECORD;
#define AT_COMMIT
#else
#define AFTER_METER
#define AT_COMMIT RECORD;
#endif

/* What several transitions have in common. */

inline forget_token(old)
{
    if :: token[0] == old -> token[0] = NOBODY :: else fi;
    if :: token[1] == old -> token[1] = NOBODY :: else fi
}

inline let_go()
{
    forget_token(HELD);
    leased[me] = 0;
    worker[me] = w_idle
}

inline end_transaction()
{
    if :: lock[0] == MINE -> lock[0] = FREE :: else fi;
    if :: lock[1] == MINE -> lock[1] = FREE :: else fi;
    written[me] = false;
    claimed[me] = NOTHING
}

/* Back to where the exchange began, with its result if it had one. */
inline begin_again()
{
    if
    :: written[me] -> worker[me] = w_ready
    :: else -> worker[me] = w_idle
    fi;
    end_transaction()
}

/* Of every write with a lease that found its row. */
inline must_be_mine()
{
    LAW(law_1_no_stale_write, token[leased[me]] == HELD && segment[leased[me]] == PROCESSING)
}

/* attempts is read no more: equal states must look equal. */
inline finish(i, how)
{
    segment[i] = how;
    live[i] = false;
    attempts[i] = 0
}

inline commit_exchange()
{
    if
    :: written[me] -> finish(leased[me], DONE)
    :: else
    fi;
    if
    :: claimed[me] != NOTHING ->
        LAW(law_1_one_live_lease, !RUNS(claimed[me]));
        if
        :: attempts[claimed[me]] >= MAX_ATTEMPTS ->
            finish(claimed[me], FAILED);
            token[claimed[me]] = NOBODY
        :: else ->
            segment[claimed[me]] = PROCESSING;
            token[claimed[me]] = NEW;
            live[claimed[me]] = true;
            attempts[claimed[me]]++
        fi
    :: else
    fi
}

inline end_settlement()
{
    settling = false;
    if :: lock[0] == BATCH -> lock[0] = FREE :: else fi;
    if :: lock[1] == BATCH -> lock[1] = FREE :: else fi;
    counted[0] = false; counted[1] = false;
    billed = false;
    batch = b_idle
}

/* store/close.py CLOSE has found the row and locked it. READ COMMITTED: it reads the segments as
 * they are committed and waits for none.
 */
inline begin_close(who)
{
    closer = who;
    view[0] = segment[0]; view[1] = segment[1]
}

inline forget_close()
{
    closer = FREE;
    view[0] = GONE; view[1] = GONE
}

inline commit_close(final)
{
    request = final;
    outcome[0] = view[0]; outcome[1] = view[1];
    if
    :: fixed_status == NONE ->
        fixed_status = final;
        fixed[0] = view[0]; fixed[1] = view[1]
    :: else
    fi;
    forget_close();
    /* Asked no more, save the hour of a cancelled request: equal states must look equal. */
    punctual[0] = false; punctual[1] = false;
    if
    :: final != CANCELLED -> hour = KEEP_OVER
    :: else
    fi
}

active [2] proctype Worker() provided (!over)
{
    byte me = _pid;

    do
    /* worker/lease.py WRITE_BACK, at the beginning of an exchange. A row in other hands makes it
     * wait, or LOCKABLE puts the result aside for a later one, which comes to the same.
     */
    :: d_step {
        worker[me] == w_ready && lock[leased[me]] == FREE && WRITE_BACK_FENCE ->
        printf("worker %d: WRITE_BACK of segment %d\n", me, leased[me]);
        must_be_mine();
        lock[leased[me]] = MINE;
        written[me] = true;
        worker[me] = w_written
    }
    /* WRITE_BACK finds no row; WRITTEN tells a lost reply from a lost lease, and both are over. */
    :: d_step {
        worker[me] == w_ready && lock[leased[me]] == FREE && !WRITE_BACK_FENCE ->
        printf("worker %d: WRITE_BACK of segment %d finds no row\n", me, leased[me]);
        let_go()
    }
    /* worker/lease.py CLAIM, in the same transaction if something was written back. */
    :: d_step {
        (worker[me] == w_written || worker[me] == w_idle && !in_doubt[me]) && OPEN &&
        (CLAIMABLE(0) || CLAIMABLE(1)) ->
        LAW(law_5_nothing_starts_too_late, request == ACTIVE && hour == IN_TIME);
        if
        :: CLAIMABLE(0) -> claimed[me] = 0
        :: else -> claimed[me] = 1
        fi;
        printf("worker %d: CLAIM of segment %d\n", me, claimed[me]);
        LOCK_CLAIMED
        worker[me] = w_claimed
    }
    /* worker/lease.py LEASE or EXHAUST, and COMMIT: the row is locked since CLAIM, so nobody can
     * come between. COMMIT alone, if there was nothing to claim.
     */
    :: d_step {
        MAY_COMMIT ->
        printf("worker %d: COMMIT\n", me);
        commit_exchange();
        let_go();
        if
        :: claimed[me] != NOTHING && token[claimed[me]] == NEW ->
            worker[me] = w_running;
            leased[me] = claimed[me];
            token[leased[me]] = HELD
        :: else
        fi;
        end_transaction()
    }
    /* The same, but the reply is lost: store/database.py retry runs the exchange again, with the
     * same new token.
     */
    :: d_step {
        MAY_COMMIT ->
        printf("worker %d: COMMIT, and the reply is lost\n", me);
        commit_exchange();
        in_doubt[me] = true;
        begin_again()
    }
    /* The connection is lost before COMMIT, or the server ended it: nothing has happened. */
    :: d_step {
        worker[me] == w_written || worker[me] == w_claimed ->
        printf("worker %d: the exchange is rolled back\n", me);
        begin_again()
    }
    /* worker/lease.py HOLDING: what the first run has claimed, if it is still so. */
    :: d_step {
        worker[me] == w_idle && in_doubt[me] ->
        printf("worker %d: HOLDING\n", me);
        in_doubt[me] = false;
        if
        :: token[0] == NEW && segment[0] == PROCESSING ->
            worker[me] = w_running; leased[me] = 0; token[0] = HELD
        :: token[1] == NEW && segment[1] == PROCESSING ->
            worker[me] = w_running; leased[me] = 1; token[1] = HELD
        :: else
        fi;
        forget_token(NEW)
    }
    /* The database is away for too long: Unavailable. The result is kept, the claim runs out. */
    :: d_step {
        in_doubt[me] ->
        printf("worker %d: gives the exchange up\n", me);
        in_doubt[me] = false;
        forget_token(NEW)
    }
    /* The handler has returned. */
    :: d_step {
        worker[me] == w_running ->
        printf("worker %d: has a result for segment %d\n", me, leased[me]);
        worker[me] = w_ready
    }
    /* worker/lease.py RENEW. A repeat is harmless; a lost lease may stop the handler, see the last.
     */
    :: d_step {
        (worker[me] == w_running || worker[me] == w_ready) && lock[leased[me]] == FREE && FENCE ->
        printf("worker %d: RENEW of segment %d\n", me, leased[me]);
        must_be_mine();
        live[leased[me]] = true
    }
    /* worker/lease.py FAIL: again after a wait, or failed at the last attempt. When the reply is
     * lost its repeat finds no row, for the token is gone.
     */
    :: d_step {
        worker[me] == w_running && lock[leased[me]] == FREE && FENCE ->
        printf("worker %d: FAIL of segment %d\n", me, leased[me]);
        must_be_mine();
        if
        :: attempts[leased[me]] >= MAX_ATTEMPTS -> finish(leased[me], FAILED)
        :: else ->
            segment[leased[me]] = PENDING;
            live[leased[me]] = true
        fi;
        let_go()
    }
    /* FAIL with max_attempts 0: the handler has rejected it. */
    :: d_step {
        worker[me] == w_running && lock[leased[me]] == FREE && FENCE ->
        printf("worker %d: FAIL of segment %d for good\n", me, leased[me]);
        must_be_mine();
        finish(leased[me], FAILED);
        let_go()
    }
    /* worker/lease.py GIVE_BACK. */
    :: d_step {
        worker[me] == w_running && lock[leased[me]] == FREE && FENCE ->
        printf("worker %d: GIVE_BACK of segment %d\n", me, leased[me]);
        must_be_mine();
        segment[leased[me]] = PENDING;
        live[leased[me]] = false;
        attempts[leased[me]]--;
        let_go()
    }
    /* It dies and another takes its place; or it drops its lease: stopped at the deadline, lost,
     * not renewed in time, or a FAIL or GIVE_BACK that finds no row.
     */
    :: d_step {
        worker[me] != w_idle || in_doubt[me] ->
        printf("worker %d: dies\n", me);
        end_transaction();
        let_go();
        forget_token(NEW);
        in_doubt[me] = false
    }
    od
}

active [2] proctype Node() provided (!over)
{
    byte me = _pid - 2;

    do
    /* PUT: app/requests/fanout.py INSERT_REQUEST meets the row (1062) and joins. READ_REQUEST, which follows, reads
     * nothing of an active request that can change. Where it would wait for the lock of an insert,
     * a close or a settlement, it has not happened yet.
     */
    :: d_step {
        node[me] == n_idle && submitter == FREE && UNLOCKED && request != NONE ->
        printf("node %d: INSERT_REQUEST meets the row\n", me);
        node[me] = n_waiting;
        punctual[me] = request == ACTIVE && hour < GRACE_OVER
    }
#ifndef WITHOUT_INSERT_FIRST
    /* INSERT_REQUEST finds the key free. */
    :: d_step {
        node[me] == n_idle && submitter == FREE && UNLOCKED && request == NONE ->
        printf("node %d: INSERT_REQUEST\n", me);
        submitter = MINE;
        node[me] = n_inserted
    }
    /* app/requests/ledger.py FIND_METERED, in the same transaction: metered, ROLLBACK, 410. */
    :: d_step {
        node[me] == n_inserted ->
        printf("node %d: FIND_METERED finds %d\n", me, records);
        if
        :: records > 0 -> submitter = FREE; node[me] = n_idle
        :: else -> node[me] = n_asked
        fi
    }
#else
    :: d_step {
        node[me] == n_idle && records == 0 ->
        printf("node %d: FIND_METERED finds 0\n", me);
        node[me] = n_asking
    }
    :: d_step {
        node[me] == n_asking && submitter == FREE && UNLOCKED && request == NONE ->
        printf("node %d: INSERT_REQUEST\n", me);
        submitter = MINE;
        node[me] = n_asked
    }
#endif
    /* app/requests/fanout.py INSERT_SEGMENTS, COMMIT. When the reply is lost, or before it this connection,
     * the second run is a PUT of an idle node: that is what the death below leaves.
     */
    :: d_step {
        node[me] == n_asked ->
        printf("node %d: INSERT_SEGMENTS, COMMIT\n", me);
        LAW(law_7_settled_ids_stay_settled, records == 0);
        submitter = FREE;
        known = true;
        request = ACTIVE;
        segment[0] = PENDING; segment[1] = PENDING;
        hour = IN_TIME;
        punctual[me] = true;
        node[me] = n_waiting
    }
    /* app/requests/fanin.py gather, app/requests/watch.py PROGRESS: still active, and everything is finished, or it is
     * the deadline, or this node has to stop, or the caller has left. One of them, at any moment.
     */
    :: d_step {
        node[me] == n_waiting && request == ACTIVE ->
        printf("node %d: PROGRESS, and is about to close\n", me);
        node[me] = n_closing
    }
    /* DELETE: app/requests/answer.py READ_REQUEST says active. */
    :: d_step {
        node[me] == n_idle && request == ACTIVE ->
        printf("node %d: READ_REQUEST, and is about to cancel\n", me);
        node[me] = n_closing
    }
    /* store/close.py CLOSE; it waits for another CLOSE, and for a settlement. */
    :: d_step {
        node[me] == n_closing && UNLOCKED && CLOSABLE ->
        printf("node %d: CLOSE\n", me);
        begin_close(MINE)
    }
    :: d_step {
        node[me] == n_closing && UNLOCKED && !CLOSABLE ->
        printf("node %d: CLOSE finds no row\n", me);
        meant[me] = NONE;
        node[me] = n_waiting
    }
    /* The end of that statement, and its commit. Nobody sees before it as what it closes, so that
     * is chosen here.
     */
    :: d_step {
        closer == MINE && (meant[me] == NONE || meant[me] == COMPLETED) ->
        printf("node %d: CLOSE is committed as completed\n", me);
        commit_close(COMPLETED);
        meant[me] = NONE;
        node[me] = n_waiting
    }
    :: d_step {
        closer == MINE && (meant[me] == NONE || meant[me] == CANCELLED) ->
        printf("node %d: CLOSE is committed as cancelled\n", me);
        commit_close(CANCELLED);
        meant[me] = NONE;
        node[me] = n_waiting
    }
    :: d_step {
        closer == MINE && (meant[me] == NONE || meant[me] == ABANDONED) ->
        printf("node %d: CLOSE is committed as abandoned\n", me);
        commit_close(ABANDONED);
        meant[me] = NONE;
        node[me] = n_waiting
    }
    /* The same, but the reply is lost: once more, with the same word. */
    :: d_step {
        closer == MINE && (meant[me] == NONE || meant[me] == COMPLETED) ->
        printf("node %d: CLOSE is committed as completed, and the reply is lost\n", me);
        commit_close(COMPLETED);
        meant[me] = COMPLETED
    }
    :: d_step {
        closer == MINE && (meant[me] == NONE || meant[me] == CANCELLED) ->
        printf("node %d: CLOSE is committed as cancelled, and the reply is lost\n", me);
        commit_close(CANCELLED);
        meant[me] = CANCELLED
    }
    :: d_step {
        closer == MINE && (meant[me] == NONE || meant[me] == ABANDONED) ->
        printf("node %d: CLOSE is committed as abandoned, and the reply is lost\n", me);
        commit_close(ABANDONED);
        meant[me] = ABANDONED
    }
    /* app/requests/answer.py READ_REQUEST, the same for the closer, the joiner, GET and DELETE: status and outcome.
     * If there is no row, FIND_METERED comes second and answers 410; what it finds cannot change.
     */
    :: d_step {
        (node[me] == n_waiting || node[me] == n_idle && known) && request != ACTIVE ->
        printf("node %d: READ_REQUEST\n", me);
        if
        :: request == NONE ->
            LAW(law_4_metered_exactly_once, records == 1);
            node[me] = n_idle
        :: else ->
            LAW(law_2_the_answer_is_fixed_by_the_close, request == fixed_status &&
                outcome[0] == fixed[0] && outcome[1] == fixed[1]);
            node[me] = n_looking
        fi
    }
    /* app/requests/answer.py NEWLY_FINISHED: what is finished. Settled since READ_REQUEST: FIND_METERED, 410. */
    :: d_step {
        node[me] == n_looking ->
        printf("node %d: NEWLY_FINISHED, and answers\n", me);
        if
        :: request == NONE ->
            LAW(law_4_metered_exactly_once, records == 1)
        :: else ->
            LAW(law_2_what_is_done_stays_done,
                (fixed[0] != DONE && fixed[0] != FAILED || segment[0] == fixed[0]) &&
                (fixed[1] != DONE && fixed[1] != FAILED || segment[1] == fixed[1]))
        fi;
        node[me] = n_idle
    }
    /* It dies. Its caller comes back to any node, or never. */
    :: d_step {
        node[me] != n_idle ->
        printf("node %d: dies\n", me);
        if :: submitter == MINE -> submitter = FREE :: else fi;
        if :: closer == MINE -> forget_close() :: else fi;
        meant[me] = NONE;
        punctual[me] = false;
        node[me] = n_idle
    }
    /* It freezes for longer than the grace, and may wake. */
    :: d_step {
        WAITS(me) && hour == LATE ->
        printf("node %d: freezes past the grace\n", me);
        punctual[me] = false
    }
    od
}

active proctype Batch()
{
    do
    /* batch/reaper.py OVERDUE, without a lock. */
    :: d_step {
        batch == b_idle && OVERDUE ->
        printf("batch: OVERDUE\n");
        batch = b_overdue
    }
    /* store/close.py CLOSE. */
    :: d_step {
        batch == b_overdue && UNLOCKED && CLOSABLE ->
        printf("batch: CLOSE\n");
        begin_close(BATCH)
    }
    :: d_step {
        batch == b_overdue && UNLOCKED && !CLOSABLE ->
        printf("batch: CLOSE finds no row\n");
        batch = b_idle
    }
    :: d_step {
        closer == BATCH ->
        printf("batch: CLOSE is committed as abandoned\n");
        LAW(law_6_only_the_dead_are_overdue, !WAITS(0) && !WAITS(1));
        commit_close(ABANDONED);
        batch = b_idle
    }
    /* The same, but the reply is lost: once more. */
    :: d_step {
        closer == BATCH && !over ->
        printf("batch: CLOSE is committed as abandoned, and the reply is lost\n");
        LAW(law_6_only_the_dead_are_overdue, !WAITS(0) && !WAITS(1));
        commit_close(ABANDONED)
    }
    /* batch/settle.py SETTLEABLE, without a lock: what it reads as final stays so. LOCK_REQUEST. */
    :: d_step {
        batch == b_idle && request != NONE && request != ACTIVE && closer == FREE ->
        printf("batch: LOCK_REQUEST\n");
        settling = true;
        batch = b_locking
    }
    /* batch/settle.py LOCK_SEGMENTS. A row in other hands, or a straggler: deferred, ROLLBACK. */
    :: d_step {
        batch == b_locking ->
        if
        :: ROWS_MISSING || STRAGGLES ->
            printf("batch: LOCK_SEGMENTS, deferred\n");
            LAW(law_6_nothing_lives_for_ever, !over);
            settling = false;
            batch = b_idle
        :: else ->
            printf("batch: LOCK_SEGMENTS\n");
            LOCK_ROWS
            batch = b_counting
        fi
    }
    /* batch/settle.py METER. */
    :: d_step {
        batch == b_counting ->
        counted[0] = COUNTS(0); counted[1] = COUNTS(1);
        billed = BILLED;
        printf("batch: METER of %d segments\n", counted[0] + counted[1]);
        AFTER_METER
        batch = b_forgetting
    }
    /* batch/settle.py DELETE_SEGMENTS, which would wait for rows in other hands, DELETE_REQUEST and
     * COMMIT. When the reply is lost, LOCK_REQUEST finds no row the second time.
     */
    :: d_step {
        batch == b_forgetting && (lock[0] == FREE || lock[0] == BATCH) &&
        (lock[1] == FREE || lock[1] == BATCH) ->
        printf("batch: DELETE_SEGMENTS, DELETE_REQUEST, COMMIT\n");
        LAW(law_3_the_bill_is_the_answer,
            (!counted[0] || BILLABLE(0)) && (!counted[1] || BILLABLE(1)) &&
            (fixed[0] != DONE || counted[0]) && (fixed[1] != DONE || counted[1]));
        LAW(law_3_no_answer_no_charge, billed == (fixed_status != ABANDONED));
        LAW(law_4_what_is_deleted_was_counted,
            (counted[0] || !(segment[0] == DONE && BILLABLE(0))) &&
            (counted[1] || !(segment[1] == DONE && BILLABLE(1))));
        AT_COMMIT
        request = NONE;
        outcome[0] = GONE; outcome[1] = GONE;
        fixed_status = NONE;
        fixed[0] = GONE; fixed[1] = GONE;
        segment[0] = GONE; segment[1] = GONE;
        live[0] = false; live[1] = false;
        attempts[0] = 0; attempts[1] = 0;
        token[0] = NOBODY; token[1] = NOBODY;
        end_settlement()
    }
    /* It dies, or its connection is lost; another takes its place. */
    :: d_step {
        batch != b_idle && !over ->
        printf("batch: dies\n");
        if :: closer == BATCH -> forget_close() :: else fi;
        end_settlement()
    }
    /* Alone, with nothing to close and nothing to settle: then there is nothing. */
    :: d_step {
        over && batch == b_idle && !OVERDUE && (request == NONE || request == ACTIVE) ->
        printf("batch: rests\n");
        LAW(law_6_nothing_lives_for_ever, request == NONE && records == 1)
    }
    od
}

active proctype Clock() provided (!over)
{
    do
    /* lease_until passes, however slow, frozen or dead the worker. */
    :: d_step { live[0] -> printf("clock: the lease of segment 0 runs out\n"); live[0] = false }
    :: d_step { live[1] -> printf("clock: the lease of segment 1 runs out\n"); live[1] = false }
    :: d_step {
        (request == ACTIVE || request == CANCELLED) && hour == IN_TIME ->
        printf("clock: the deadline\n");
        hour = LATE
    }
    /* The grace is longer than a node takes that is alive and does not freeze. */
    :: d_step {
        request == ACTIVE && hour == LATE && !WAITS(0) && !WAITS(1) ->
        printf("clock: deadline + grace\n");
        hour = GRACE_OVER
    }
    :: d_step {
        request == CANCELLED && (hour == LATE || hour == GRACE_OVER) ->
        printf("clock: deadline + keep\n");
        hour = KEEP_OVER
    }
    /* From any state: everybody but the batch stops for ever, the server ends what they held open
     * and all times pass. Leases stay live, for a handler may hang in a worker that goes on
     * renewing.
     */
    :: d_step {
        known ->
        printf("clock: only the batch is left\n");
        over = true;
        hour = KEEP_OVER;
        submitter = FREE;
        if :: closer != BATCH -> forget_close() :: else fi;
        if :: lock[0] != BATCH -> lock[0] = FREE :: else fi;
        if :: lock[1] != BATCH -> lock[1] = FREE :: else fi;
        token[0] = NOBODY; token[1] = NOBODY;
        worker[0] = w_idle; worker[1] = w_idle;
        leased[0] = 0; leased[1] = 0;
        written[0] = false; written[1] = false;
        claimed[0] = NOTHING; claimed[1] = NOTHING;
        in_doubt[0] = false; in_doubt[1] = false;
        node[0] = n_idle; node[1] = n_idle;
        meant[0] = NONE; meant[1] = NONE;
        punctual[0] = false; punctual[1] = false
    }
    od
}
