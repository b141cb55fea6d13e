"""Takes one line that upholds a law out of a copy of the tree, and sees whether its test fails.

`make mutants` runs them all and prints a table; the exit status is 1 when one survives. A mutant is
a text that stands in a file exactly once and what stands there instead, so a list that has fallen
behind the code is found at once.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

COPIED = (
    *("app", "batch", "bench", "client", "local", "partway", "proof", "store", "tests", "worker"),
    *("docs", "schema.sql", "README.md", "pyproject.toml"),
)

# A mutant may make a test wait for what never comes.
TEST_SECONDS = 150

AT_ONCE = 2


@dataclass(frozen=True)
class Mutant:
    """A line taken out: where, what stood there, what stands there instead, and who must notice."""

    guards: str
    path: str
    line: str
    instead: str
    test: str


WRITE_BACK_FENCE = """       lease_until = NULL
WHERE  request_id = %s
  AND  lease_token = UNHEX(%s)
  AND  status = 'processing'
  AND  index_no IN (...)
"""

GIVE_BACK_FENCE = """       attempts = attempts - 1
WHERE  request_id = %s
  AND  index_no = %s
  AND  lease_token = UNHEX(%s)
  AND  status = 'processing'
"""

FAIL_FENCE = """       lease_until = NOW(6) + INTERVAL %s MICROSECOND
WHERE  request_id = %s
  AND  index_no = %s
  AND  lease_token = UNHEX(%s)
  AND  status = 'processing'
"""

ANY_TOKEN = ("  AND  lease_token = UNHEX(%s)\n", "  AND  (lease_token = UNHEX(%s) OR TRUE)\n")
ANY_STATUS = ("  AND  status = 'processing'\n", "  AND  status <> ''\n")

LEASE = "worker/lease.py"
SETTLE = "batch/settle.py"
ACCESS = "app/api/access.py"

MUTANTS = (
    # Law 1: one live lease.
    Mutant(
        "law 1: a claim skips rows that another claim has locked",
        LEASE,
        "LIMIT  %s\nFOR UPDATE SKIP LOCKED",
        "LIMIT  %s",
        "worker/test_claim.py::test_a_hundred_open_claims_take_a_hundred_segments",
    ),
    Mutant(
        "law 1: a live lease is not claimed",
        LEASE,
        "  AND  (s.lease_until IS NULL OR s.lease_until < NOW(6))\n",
        "",
        "worker/test_claim.py::test_a_live_lease_is_not_claimed_and_an_expired_one_is",
    ),
    Mutant(
        "law 1: write-back is fenced by the token",
        LEASE,
        WRITE_BACK_FENCE,
        WRITE_BACK_FENCE.replace(*ANY_TOKEN),
        "worker/test_fence.py::test_a_stale_token_changes_nothing",
    ),
    Mutant(
        "law 1: write-back is fenced by the status",
        LEASE,
        WRITE_BACK_FENCE,
        WRITE_BACK_FENCE.replace(*ANY_STATUS),
        "worker/test_fence.py::test_a_token_changes_nothing_once_its_attempt_is_over",
    ),
    Mutant(
        "law 1: giving back is fenced by the token",
        LEASE,
        GIVE_BACK_FENCE,
        GIVE_BACK_FENCE.replace(*ANY_TOKEN),
        "worker/test_fence.py::test_a_stale_token_changes_nothing",
    ),
    Mutant(
        "law 1: giving back is fenced by the status",
        LEASE,
        GIVE_BACK_FENCE,
        GIVE_BACK_FENCE.replace(*ANY_STATUS),
        "worker/test_fence.py::test_a_token_changes_nothing_once_its_attempt_is_over",
    ),
    Mutant(
        "law 1: failing is fenced by the token",
        LEASE,
        FAIL_FENCE,
        FAIL_FENCE.replace(*ANY_TOKEN),
        "worker/test_fence.py::test_a_stale_token_changes_nothing",
    ),
    Mutant(
        "law 1: failing is fenced by the status",
        LEASE,
        FAIL_FENCE,
        FAIL_FENCE.replace(*ANY_STATUS),
        "worker/test_fence.py::test_a_token_changes_nothing_once_its_attempt_is_over",
    ),
    Mutant(
        "law 1: renewal is fenced by the token",
        LEASE,
        'HELD = "request_id = %s AND lease_token = UNHEX(%s) AND',
        'HELD = "request_id = %s AND (lease_token = UNHEX(%s) OR TRUE) AND',
        "worker/test_fence.py::test_a_stale_token_changes_nothing",
    ),
    Mutant(
        "law 1: renewal is fenced by the status",
        LEASE,
        "SET    lease_until = NOW(6) + INTERVAL %s MICROSECOND\nWHERE  status = 'processing'\n",
        "SET    lease_until = NOW(6) + INTERVAL %s MICROSECOND\nWHERE  status <> ''\n",
        "worker/test_fence.py::test_a_token_changes_nothing_once_its_attempt_is_over",
    ),
    # Law 2: the answer is fixed by the close.
    Mutant(
        "law 2: only an active request is closed",
        "store/close.py",
        "\n  AND  r.status = 'active'",
        "",
        "store/test_close.py::test_only_the_first_close_counts",
    ),
    Mutant(
        "law 2: only the outcome decides about a completed request",
        "app/requests/answer.py",
        'counted = "df" if request.status == "completed" else "dfr"',
        'counted = "dfrp"',
        "worker/test_fence.py::test_a_result_after_the_deadline_is_neither_answered_nor_billed",
    ),
    # Law 3: the bill is the answer.
    Mutant(
        "law 3: the bill counts through the outcome",
        SETTLE,
        "AND (SUBSTRING(r.outcome, s.index_no + 1, 1) = 'd'",
        "AND (TRUE",
        "batch/test_settle.py::test_a_segment_done_after_the_close_of_a_completed_request_is_not_billed",
    ),
    Mutant(
        "law 3: a cancelled request pays for its in-flight segments",
        SETTLE,
        "OR r.status <> 'completed' AND",
        "OR FALSE AND",
        "batch/test_settle.py::test_a_cancelled_request_pays_for_stragglers_and_not_for_what_was_pending",
    ),
    Mutant(
        "law 3: an abandoned request is billed nothing",
        SETTLE,
        "r.status <> 'abandoned',",
        "TRUE,",
        "batch/test_settle.py::test_an_abandoned_request_is_metered_with_its_cost_and_billed_nothing",
    ),
    # Law 4: metered exactly once, never lost.
    Mutant(
        "law 4: the segments are locked before they are counted",
        SETTLE,
        "WHERE  request_id = %s\nFOR UPDATE SKIP LOCKED\n",
        "WHERE  request_id = %s\n",
        "batch/test_settle.py::test_a_write_back_between_the_count_and_the_delete_waits_and_finds_nothing",
    ),
    Mutant(
        "law 4: a request is not settled unless all its segments are locked",
        SETTLE,
        'if segments["locked"] < request["segments"]:',
        "if False:",
        "batch/test_settle.py::test_a_frozen_client_on_one_segment_puts_off_that_request_and_nothing_else",
    ),
    Mutant(
        "law 4: a cancelled request waits for its live leases",
        SETTLE,
        'if request["waits_for_leases"] and',
        "if False and",
        "batch/test_settle.py::test_a_cancelled_request_waits_for_live_leases_and_not_for_dead_ones",
    ),
    Mutant(
        "law 4: but not after its deadline + retention",
        SETTLE,
        "status = 'cancelled' AND deadline >= NOW(6) - INTERVAL %s MICROSECOND",
        "status = 'cancelled' AND (deadline >= NOW(6) - INTERVAL %s MICROSECOND OR TRUE)",
        "batch/test_settle.py::test_a_cancelled_request_waits_for_leases_no_longer_than_deadline_and_keep",
    ),
    # Law 5: nothing starts too late.
    Mutant(
        "law 5: nothing is claimed in a closed request",
        LEASE,
        "SELECT r.status = 'active' AND r.deadline > NOW(6)",
        "SELECT r.deadline > NOW(6)",
        "worker/test_claim.py::test_nothing_is_claimed_in_a_closed_request",
    ),
    Mutant(
        "law 5: nothing is claimed past the deadline",
        LEASE,
        "SELECT r.status = 'active' AND r.deadline > NOW(6)",
        "SELECT r.status = 'active'",
        "worker/test_claim.py::test_nothing_is_claimed_past_the_deadline",
    ),
    # Law 6: nothing lives for ever.
    Mutant(
        "law 6: attempts are counted at the claim",
        LEASE,
        ",\n       attempts = attempts + 1",
        "",
        "worker/test_claim.py::test_a_segment_that_kills_its_worker_is_counted_at_the_claim_and_given_up",
    ),
    Mutant(
        "law 6: giving back does not count the attempt",
        LEASE,
        ",\n       attempts = attempts - 1",
        "",
        "worker/test_claim.py::test_a_segment_given_back_is_claimable_at_once_and_its_attempt_not_counted",
    ),
    Mutant(
        "law 6: a request whose node died is closed after the grace",
        "batch/reaper.py",
        "deadline < NOW(6) - INTERVAL %s MICROSECOND",
        "deadline < NOW(6) - INTERVAL %s MICROSECOND - INTERVAL 1 DAY",
        "system/test_crash.py::test_a_request_whose_node_died_is_abandoned_and_billed_nothing",
    ),
    # Law 7: any node can finish any request, and settled ids never come back to life.
    Mutant(
        "law 7: the meter is read for a settled id",
        "app/requests/fanout.py",
        "if metered is not None:",
        "if False:",
        "app/test_put.py::test_a_settled_id_is_not_stored_by_one_who_had_looked_before_it_was_settled",
    ),
    Mutant(
        "law 7: another body under the same id is refused",
        "app/requests/service.py",
        "if request is not None and request.body_hash != new.body_hash:",
        "if False:",
        "app/test_put.py::test_another_body_under_the_same_id_is_refused_and_changes_nothing",
    ),
    # Law 9: one clock.
    Mutant(
        "law 9: every database session uses UTC (T1)",
        "store/database.py",
        "time_zone = '+00:00',",
        "autocommit = 1,",
        "store/test_store.py::test_every_connection_is_the_same_reconnects_and_changed_servers_included",
    ),
    # Law 10: nobody who answers waits for a lock.
    Mutant(
        "law 10: READ COMMITTED, so the close locks no segment",
        "store/database.py",
        "ISOLATION LEVEL READ COMMITTED",
        "ISOLATION LEVEL REPEATABLE READ",
        "store/test_close.py::test_a_claim_that_is_frozen_in_mid_transaction_delays_no_close",
    ),
    Mutant(
        "law 10: a cancel reads before it closes",
        "app/requests/service.py",
        'if request is None or request.status != "active":',
        "if request is None:",
        "app/test_put.py::test_a_put_does_not_wait_for_settlement_to_hear_that_it_is_settled",
    ),
    # Pitfalls.
    Mutant(
        "L2: the claim does not join the request",
        LEASE,
        "FROM   segments s\n"
        "WHERE  s.request_id = %s\n  AND  s.index_no >= %s\n  AND  (s.status = 'pending'",
        "FROM   segments s JOIN requests q ON q.id = s.request_id\n"
        "WHERE  s.request_id = %s\n  AND  s.index_no >= %s\n  AND  (s.status = 'pending'",
        "worker/test_claim.py::test_open_claims_do_not_hide_work_however_many_requests_there_are",
    ),
    Mutant(
        "L7: 1020 is a conflict like 1213",
        "store/database.py",
        "{1213, 1205, 1020, 3101}",
        "{1213, 1205, 3101}",
        "store/test_store.py::test_what_changed_since_the_snapshot_is_run_again_whole",
    ),
    Mutant(
        "L8: a lock wait undoes the whole transaction",
        "store/database.py",
        "await connection.rollback()",
        "await connection.commit()",
        "store/test_store.py::test_after_a_lock_wait_no_half_of_the_transaction_is_kept",
    ),
    Mutant(
        "L6: a single statement is committed by itself",
        "store/database.py",
        '"autocommit": True,',
        '"autocommit": False,',
        "store/test_close.py::test_only_the_first_close_counts",
    ),
    Mutant(
        "X7: an outcome is never cut",
        "store/database.py",
        ",\n            group_concat_max_len = 1048576",
        "",
        "store/test_close.py::test_the_outcome_of_many_segments_is_whole",
    ),
    Mutant(
        "F3: rows found, not rows changed",
        "store/database.py",
        '"client_flag": CLIENT.FOUND_ROWS,',
        "",
        "worker/test_fence.py::test_an_identical_renewal_is_no_lost_lease",
    ),
    Mutant(
        "C11: after a lost reply, a write-back is found by its token",
        LEASE,
        "ours = await find_index_numbers(cursor, WRITTEN, request_id, token, part)",
        "ours: set[int] = set()",
        "store/test_lost_commit.py::"
        "test_a_write_back_whose_commit_was_cut_keeps_the_result_and_loses_no_lease",
    ),
    Mutant(
        "C11: after a lost reply, a claim is found by its token",
        LEASE,
        "if previous_error is not None:\n",
        "if False:\n",
        "store/test_lost_commit.py::test_a_claim_whose_commit_was_cut_claims_nothing_twice",
    ),
    Mutant(
        "one locked row delays no other write-back",
        LEASE,
        "skips = skip_locked or error_number(previous_error) == LOCK_WAIT",
        "skips = skip_locked",
        "worker/test_fence.py::test_a_row_that_a_frozen_client_holds_stops_no_other_write_back",
    ),
    Mutant(
        "one locked row delays no other renewal",
        LEASE,
        "if error_number(previous_error) == LOCK_WAIT:",
        "if False:",
        "worker/test_fence.py::test_a_row_that_a_frozen_client_holds_stops_no_other_renewal",
    ),
    Mutant(
        "F4: a handler is stopped before its lease ends without renewal",
        "worker/slots.py",
        "if ends_at < last:",
        "if False:",
        "system/test_crash.py::"
        "test_a_worker_cut_off_for_longer_than_its_lease_stops_its_handlers_and_resumes",
    ),
    Mutant(
        "W4: running segments are given back at the end",
        "worker/slots.py",
        "is_given_back = await give_back(self._db, lease)\n",
        "is_given_back = True\n",
        "worker/test_worker.py::test_what_runs_beyond_the_grace_is_given_back_and_its_attempt_not_counted",
    ),
    Mutant(
        "F1: a lost lease stops its handler",
        "worker/slots.py",
        'log.warning("lease lost, handler stopped", extra=self._attempt_fields(lease))\n'
        "                self._running[lease].cancel()",
        'log.warning("lease lost, handler stopped", extra=self._attempt_fields(lease))',
        "worker/test_worker.py::test_a_lost_lease_stops_the_handler_and_frees_its_slot",
    ),
    Mutant(
        "the policy: a segment that cannot be finished is not started",
        "worker/choice.py",
        "if ends_at > earliest_deadline and",
        "if",
        "worker/test_choice.py::test_what_cannot_be_finished_in_time_is_left_to_expire",
    ),
    Mutant(
        "the policy: a worker backs off from a request that gave nothing",
        "worker/choice.py",
        "and self._backed_off.get(id_, now) <= now",
        "",
        "worker/test_choice.py::test_an_empty_request_is_asked_once_and_again_when_its_time_aside_is_over",
    ),
    Mutant(
        "the policy: a large request is asked again from its start",
        "worker/choice.py",
        "elif self._next_blocks.pop(active.id, None) is None:",
        "else:",
        "worker/test_choice.py::test_what_comes_back_far_behind_is_found_before_a_large_request_is_set_aside",
    ),
    Mutant(
        "the policy: each tenant gets its turn",
        "worker/choice.py",
        "tenants.pop(random.randrange(len(tenants)))",
        "tenants.pop()",
        "worker/test_choice.py::test_a_tenant_with_many_requests_leaves_its_share_to_another",
    ),
    Mutant(
        "H1: a POST whose caller leaves is closed",
        "app/requests/fanin.py",
        "if not is_due and not has_left():",
        "if not is_due:",
        "app/test_disconnect.py::test_a_post_whose_caller_leaves_is_abandoned_and_its_rest_never_runs",
    ),
    Mutant(
        "a caller that only attached ends nothing when it leaves",
        "app/requests/service.py",
        'created and new.on_disconnect == "cancel")',
        'new.on_disconnect == "cancel")',
        "app/test_disconnect.py::test_a_joiner_who_leaves_ends_nothing",
    ),
    Mutant(
        "S8: no handler gets a blank segment",
        "app/requests/fanout.py",
        "if source.strip(BLANK)",
        "if True",
        "app/test_answer.py::test_blank_segments_are_done_at_once_and_never_claimed",
    ),
    # A tenant's own.
    Mutant(
        "a request is found only with its tenant",
        "app/requests/answer.py",
        "WHERE  tenant = %s\n  AND  public_id = %s\n",
        "WHERE  (tenant = %s OR TRUE)\n  AND  public_id = %s\n",
        "app/test_access.py::"
        "test_anothers_request_is_answered_like_an_id_that_never_was_at_the_same_cost",
    ),
    Mutant(
        "a revoked key is refused at once",
        ACCESS,
        'WHERE  hash = %s\n  AND  revoked_at IS NULL\n"""\n\nFIND_SESSION',
        'WHERE  hash = %s\n"""\n\nFIND_SESSION',
        "app/test_access.py::test_a_key_that_is_revoked_ends_at_once_on_every_node",
    ),
    Mutant(
        "a session ends with its key",
        ACCESS,
        "  AND  k.revoked_at IS NULL\n",
        "",
        "app/test_access.py::test_a_session_ends",
    ),
    Mutant(
        "a scope is required",
        ACCESS,
        "if found.scopes.isdisjoint(scopes):",
        "if False:",
        "app/test_access.py::test_a_key_of_operators_does_not_send_documents",
    ),
    Mutant(
        "a page of another site starts nothing",
        "app/api/guard.py",
        'if origin is not None and origin not in (f"{scheme}://{host}", f"https://{host}"):',
        "if False:",
        "app/test_guard.py::test_a_page_of_another_origin_starts_nothing_and_reads_nothing",
    ),
    Mutant(
        "a foreign name for this machine gives access to nothing",
        "app/api/guard.py",
        "if name is None or name[1].lower() not in names:",
        "if name is None:",
        "app/test_guard.py::test_a_foreign_name_for_this_machine_reads_nothing_and_starts_nothing",
    ),
    Mutant(
        "all nodes together allow no more than one node",
        "app/requests/allowance.py",
        "  AND  full_at <= NOW(6) + INTERVAL %s MICROSECOND\n",
        "",
        "app/test_limits.py::test_of_many_at_once_exactly_as_many_come_in_as_fit",
    ),
    # The looks.
    Mutant(
        "law 10: a node that was paused beyond the deadline reads before it closes",
        "app/requests/fanin.py",
        "if progress is not NOT_POLLED or await is_active(db, request.id):",
        "if True:",
        "system/test_interleavings.py::test_two_sessions_keep_the_laws_in_every_order[mysql-settle x close]",
    ),
    Mutant(
        "two hundred waiting calls share a poll",
        "app/requests/watch.py",
        "        if waiting is None:\n",
        "        if True:\n",
        "app/test_watch.py::test_two_hundred_calls_that_wait_for_one_request_look_at_it_once_each_time",
    ),
    Mutant(
        "idle workers share their polls",
        "worker/fleet.py",
        "max(self._workers / POLLS_PER_SECOND, LEAST_WAIT_SECONDS)",
        "LEAST_WAIT_SECONDS",
        "worker/test_fleet.py::test_the_looks_of_a_fleet_are_shared_by_those_who_are_there",
    ),
    Mutant(
        "law 4: a worker that cannot give back its segments ends anyway",
        "worker/slots.py",
        "                break\n            if not is_given_back:",
        "                raise\n            if not is_given_back:",
        "system/test_crash.py::test_a_worker_that_is_told_to_stop_while_its_database_is_away_ends_in_order",
    ),
)


def killed(mutant: Mutant, tree: Path) -> bool | None:
    """Whether the named test fails on the mutant; None when the line is not there to take out."""
    text = (ROOT / mutant.path).read_text(encoding="utf-8")
    if text.count(mutant.line) != 1:
        return None
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            unread = shutil.ignore_patterns("__pycache__", "screens")
            # partway/ is made of links to the folders beside it, and must stay so.
            shutil.copytree(source, tree / name, symlinks=True, ignore=unread)
        else:
            shutil.copy(source, tree / name)
    (tree / mutant.path).write_text(text.replace(mutant.line, mutant.instead), encoding="utf-8")
    command = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")
    # The test must be there and fail: 1 is a failed test, 4 and 5 are tests that were not found.
    try:
        ran = subprocess.run(
            (*command, f"tests/{mutant.test}"),
            cwd=tree,
            # A sample may miss what the whole sweep catches.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "WHOLE_SWEEPS": "1"},
            capture_output=True,
            text=True,
            timeout=TEST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return True
    if ran.returncode not in (0, 1):
        raise SystemExit(f"{mutant.guards}: the test did not run:\n{ran.stdout}{ran.stderr}")
    return ran.returncode == 1


def main() -> int:
    """The exit status: 0 when every mutant is caught by its test, 1 when one is not."""

    def run(mutant: Mutant) -> tuple[Mutant, bool | None, float]:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as tree:
            return mutant, killed(mutant, Path(tree)), time.monotonic() - began

    caught = 0
    chosen = [m for m in MUTANTS if not sys.argv[1:] or any(w in m.guards for w in sys.argv[1:])]
    with ThreadPoolExecutor(AT_ONCE) as workers:
        for mutant, fell, seconds in workers.map(run, chosen):
            word = {True: "caught", False: "SURVIVED", None: "NOT FOUND"}[fell]
            caught += fell is True
            print(f"{word:9} {seconds:5.1f} s  {mutant.guards}  ({mutant.test})", flush=True)
    print(f"{caught} of {len(chosen)} mutants caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
