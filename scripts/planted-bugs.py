#!/usr/bin/env python3
"""Plants each bug of simulation/planted in turn and shows that a test finds it.

All bugs are in one build of target/planted; MILLPOND_PLANTED_BUG selects one. The first of its
tests that fails with the expected invariant, and not just with any failure, catches the bug. Before
that, the tests run without a bug: all tests of the workspace, or the tests of the bugs that are
named. Exits with 1 if a bug survives, if a test fails without one, or if a bug has no test here.

    scripts/planted-bugs.py [BUG…]
    scripts/planted-bugs.py --plant-only    # only brings target/planted up to date
"""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from planting import PATCHES, ROOT, TREE, names, plant

# A test that takes longer has not caught the bug. `make test` runs them at the lowest priority, so
# this is ten times the slowest.
TIMEOUT_S = 600


class Program(NamedTuple):
    """A program of tests, and the folder of its crate, in which cargo would run it."""

    executable: str
    folder: Path

    def run(self, *arguments, bug="", **options):
        return subprocess.run(
            [self.executable, *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "MILLPOND_PLANTED_BUG": bug,
                "RUST_BACKTRACE": "0",
                # Intended failures must not be remembered.
                "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            **options,
        )


class Catcher(NamedTuple):
    """A test, and a pattern for its failure."""

    source: str
    test: str
    says: str

    def program(self):
        """The test program's main file, and the test's name in it."""
        source = Path(self.source)
        main = source.with_name("main.rs")
        if "tests" in source.parts and (ROOT / main).exists():
            return str(main), f"{source.stem}::{self.test}"
        return self.source, self.test

    def __str__(self):
        return f"{self.source}: {self.test}"


def model(test, *invariants):
    """A search of the model that violates one of these invariants."""
    says = rf'violated: \[.*"(?:{"|".join(invariants)})[^"]*'
    return Catcher("simulation/tests/protocols.rs", test, says)


def guard(test, invariant):
    """A search of the guard against a second consumer of the same tables."""
    says = rf'violated: \[.*"{invariant}'
    return Catcher("simulation/tests/admission.rs", test, says)


def shared(test, invariant):
    """A search of producers that commit each other's records."""
    says = rf'violated: \[.*"{invariant}'
    return Catcher("simulation/tests/shared_commits.rs", test, says)


def scripted(says):
    """A script that Rust and Go both run."""
    return Catcher("producer/tests/all/scripts.rs", "the_scripts_lead_to_what_they_say", says)


PRODUCERS = "two_producers_and_gc"
TOLD = "a success implies the record is in the log"
UNKNOWN = "2: an outcome is unknown only to a producer that was forgotten"
OWNERS = "two_owners_of_a_cursor"
RULES = "two_owners_with_different_rules"
GIVEN_BACK_AHEAD = "owners_that_plan_ahead_and_give_the_cursor_back"
RELEASED_AHEAD = "owners_after_a_clean_release_with_plans_ahead"
REFUSING = "a_sink_that_refuses_a_row"
SKIPPED_REFUSAL = "a_segment_of_a_refused_chunk_that_is_left_out"
STOOD_STILL = "a_machine_that_stood_still_begins_no_request_before_its_lease_is_renewed"
FENCED_RULES = "a_fenced_owner_that_outlives_a_change_of_the_rule"


ANY_PRODUCER = "a_repetition_to_another_producer_learns_the_outcome_of_the_first_request"


def numbered(test, says):
    """Clients that number their requests."""
    return Catcher("producer/tests/all/clients.rs", test, says)


ANY_BRIDGE = "every_offset_is_in_the_log_once_whoever_reads_it_and_whoever_dies"
REFUSED_OFFSETS = (
    "records_that_another_bridge_has_committed_are_refused_and_the_rest_of_the_segment_stays"
)


def sourced(test, says):
    """Bridges that append the offsets of a source."""
    return Catcher("producer/tests/all/sources.rs", test, says)


def gc(test, says):
    return Catcher("consumer/tests/all/gc.rs", test, says)


def swapping(test, says):
    """Rounds that lose a swap."""
    return Catcher("consumer/tests/all/gc_swaps.rs", test, says)


def consuming(test, says):
    return Catcher("consumer/tests/all/consumer.rs", test, says)


def unique(test, says):
    return Catcher("consumer/tests/all/unique.rs", test, says)


def standstill(says):
    test = "unique::restore::tests::a_standstill_is_the_stores_only_while_it_owes_an_answer"
    return Catcher("consumer/src/lib.rs", test, says)


def keeping(test, says):
    """The keys of silent streams, while the store does not answer."""
    return Catcher("consumer/tests/all/keeping.rs", test, says)


def deduplicating(test, says):
    """What a cursor says about repeated events."""
    return Catcher("manifest/tests/all/unique.rs", test, says)


def growing(test, says):
    return Catcher("consumer/tests/all/growth.rs", test, says)


def moving(test, says):
    return Catcher("producer/tests/all/growth.rs", test, says)


def at_home(test, says):
    return Catcher("producer/tests/all/homes.rs", test, says)


def dividing_rows(test, says):
    """Gateways that send rows to the shard of their key."""
    return Catcher("gateway/tests/all/routing.rs", test, says)


def routed(test, says):
    """Consumers of several shards that drop repeated events."""
    return Catcher("consumer/tests/all/routes.rs", test, says)


def grown(test, says):
    return Catcher("operate/src/lib.rs", f"growth::tests::{test}", says)


def paged(test, says):
    return Catcher("consumer/tests/all/pages.rs", test, says)


def claimed(test, says):
    return Catcher("manifest/tests/all/claims.rs", test, says)


def dividing(test, says):
    return Catcher("consumer/tests/all/division.rs", test, says)


def known(test, says):
    return Catcher("consumer/tests/all/identity.rs", test, says)


def leased(test, says):
    return Catcher("consumer/tests/all/lease.rs", test, says)


def in_flight(test, says):
    return Catcher("consumer/tests/all/in_flight.rs", test, says)


def refusing(test, says):
    return Catcher("consumer/tests/all/dead_letters.rs", test, says)


def rested(test, says):
    """Shards that cannot go on beside others that can."""
    return Catcher("consumer/tests/all/resting.rs", test, says)


def accepting(test, says):
    return Catcher("gateway/tests/all/events.rs", test, says)


def from_kafka(test, says):
    return Catcher("gateway/tests/all/kafka.rs", test, says)


def crossing(says):
    """Bridges whose position Kafka does not have."""
    test = "places::tests::a_partition_goes_back_only_to_an_offset_that_its_operator_names"
    return Catcher("bridge/src/lib.rs", test, says)


def inserting_events(says):
    test = "a_row_that_does_not_fit_leaves_the_others_alone"
    return Catcher("sinks/clickhouse/tests/server/events.rs", test, says)


def transforming(test, says):
    return Catcher("sinks/clickhouse/tests/server/transforms.rs", test, says)


def simulated(says):
    """Some of the seeds that every test run covers."""
    test = "every_promise_holds_for_every_seed"
    return Catcher("simulation/tests/simulator.rs", test, rf"seed \d+ violates {says}")


def keys(test, says):
    """The rules of deduplication, without a consumer around them."""
    return Catcher("consumer/src/lib.rs", f"unique::state::tests::{test}", says)


def key_limit(test, says):
    """The number of keys in memory."""
    return Catcher("consumer/src/lib.rs", f"unique::limit::tests::{test}", says)


def between_producers(says):
    """Random faults of the requests between producers, and of the store."""
    test = "no_record_is_lost_or_twice_whatever_happens_to_requests"
    return Catcher("producer/tests/all/leader.rs", test, says)


def watching(test, says):
    """A consumer whose leader sends whatever it likes."""
    return Catcher("consumer/tests/all/watch.rs", test, says)


TWO_CLOCKS = "two_consumers_whose_clocks_differ_and_that_crash"
TWO_TABLES = "no two consumers write to a table"

CATCHERS = {
    "claim-taken-at-once": [
        guard(TWO_CLOCKS, TWO_TABLES),
        Catcher(
            "consumer/tests/all/sharing.rs",
            "a_claim_that_another_has_ignored_gives_no_table",
            r"Ok\(\(\)\)|never: ",
        ),
    ],
    "look-before-claim": [guard("two_consumers_that_start_at_once", TWO_TABLES)],
    "firm-claim-expires": [guard(TWO_CLOCKS, TWO_TABLES)],
    "share-forgotten": [
        Catcher(
            "consumer/tests/all/sharing.rs",
            "a_consumer_that_shares_does_so_for_good",
            "tables.shared",
        )
    ],
    "standby-not-asked-again": [
        guard(
            "a_consumer_that_is_removed_and_starts_again",
            f"(?:{TWO_TABLES}|a cursor names every table)",
        ),
        Catcher(
            "consumer/tests/all/sharing.rs",
            "a_standby_of_a_removed_consumer_does_not_write_to_tables_of_another",
            r"never: it ends",
        ),
    ],
    "gained-identity-unclaimed": [
        Catcher(
            "consumer/tests/all/sharing.rs",
            "a_known_table_that_leads_to_a_table_of_another_is_noticed",
            r"never: it ends",
        ),
    ],
    "shared-identity-refused": [
        Catcher(
            "consumer/tests/all/sharing.rs",
            "a_shared_table_may_gain_an_identity",
            r"never: the new identity is known",
        ),
    ],
    "standby-ended-by-its-settings": [
        Catcher(
            "consumer/tests/all/sharing.rs",
            "a_standby_with_other_settings_waits_for_the_owner",
            r"assertion failed: !standby\.task\.is_finished\(\)",
        ),
    ],
    "earlier-tables-given-away": [
        guard("a_consumer_that_adds_a_table", "a cursor names every table"),
    ],
    "forwarded-group-changed": [shared("a_follower_that_also_commits_by_itself", TOLD)],
    "forwarded-sent-again": [
        shared("producers_that_crash_and_are_forgotten", "no record is in the log twice")
    ],
    "answered-from-another-row": [shared("a_leader_with_two_followers", TOLD)],
    "old-answer-counts": [shared("messages_that_are_repeated", TOLD)],
    "settled-attempt-kept": [
        shared("a_follower_that_also_commits_by_itself", "no bookkeeping is wrong")
    ],
    "older-state-after-answer": [
        shared(
            "a_follower_that_also_commits_by_itself",
            "an outcome is unknown only to a producer that was forgotten",
        )
    ],
    "stale-state-judges": [scripted(r"left: .*is of a producer that the manifest does not know")],
    "repeated-offer-joins": [scripted(r"right: .*refused: the same claim")],
    "guest-outlives-claim": [between_producers(r'left: \{"[^}]*": [2-9]')],
    "refused-before-spent": [
        shared(
            "numbered_requests_through_a_leader",
            "a request that was refused never enters the log",
        )
    ],
    "spent-is-committed": [shared("numbered_requests_through_a_leader", TOLD)],
    "forwarded-number-grows": [between_producers(r'left: \{"[^}]*": 0')],
    "answered-before-commit": [
        Catcher(
            "producer/tests/all/leader.rs",
            "a_follower_hears_of_a_commit_and_not_earlier",
            r"answered before the commit",
        )
    ],
    "watch-shows-uncommitted": [
        Catcher(
            "producer/tests/all/watch.rs",
            "a_commit_is_shown_when_the_store_has_confirmed_it",
            "shown before its swap was answered",
        )
    ],
    "stale-news-accepted": [
        Catcher(
            "consumer/src/lib.rs",
            "discovery::tests::a_newer_state_is_taken_over_and_an_older_one_never",
            r"left: Ok\(\(2, Some\(",
        )
    ],
    "repeated-news-accepted": [
        watching("whatever_an_answer_is_the_rows_are_exact_and_come_soon", "failed: Repeated")
    ],
    "consumer-may-commit": [
        Catcher(
            "peer/tests/all/watch.rs",
            "only_the_owner_of_a_cursor_may_watch_and_only_as_its_consumer",
            r"`Result::unwrap_err\(\)` on an `Ok` value",
        )
    ],
    "producer-may-watch": [
        Catcher(
            "peer/tests/all/watch.rs",
            "only_the_owner_of_a_cursor_may_watch_and_only_as_its_consumer",
            r"Ok\(Manifest .* instead of 403",
        )
    ],
    "any-certificate-asks": [
        Catcher(
            "peer/tests/all/peer.rs",
            "a_stranger_gets_nothing",
            r"`Result::unwrap_err\(\)` on an `Ok` value",
        )
    ],
    "busy-leader-replaced": [
        Catcher(
            "producer/src/lib.rs",
            "election::tests::a_leader_that_serves_others_keeps_the_lead",
            r"left: Take\(",
        )
    ],
    "source-unchecked": [
        sourced(REFUSED_OFFSETS, "left|right"),
        sourced(ANY_BRIDGE, "is in the log once"),
    ],
    "source-not-entered": [
        sourced("records_and_position_are_committed_together", r"left: Some\(3\)|Position"),
        sourced(ANY_BRIDGE, "is in the log once"),
    ],
    "source-handed-over": [
        Catcher(
            "producer/tests/all/crowds.rs",
            "a_group_with_offsets_of_a_source_is_not_handed_over",
            "offsets of a source were handed over",
        )
    ],
    "offsets-sorted": [
        sourced("offsets_that_lie_before_others_in_a_segment_are_judged_before_them", "left")
    ],
    "incarnation-unchecked": [
        Catcher(
            "manifest/tests/all/sources.rs",
            "a_claim_from_before_the_position_was_set_is_void_even_if_it_begins_there",
            "unwrap_err|left",
        ),
        sourced("old_records_do_not_enter_after_the_position_was_set_anew", "left"),
    ],
    "source-forgotten": [
        Catcher("manifest/tests/all/sources.rs", "no_transition_forgets_a_position", "left"),
        sourced(ANY_BRIDGE, "a position is never forgotten"),
    ],
    "stale-position": [
        sourced("a_position_that_an_old_manifest_lacks_is_no_answer", r"Position \{ next: None")
    ],
    "older-program-reads-sources": [
        Catcher(
            "manifest/tests/all/sources.rs",
            "older_programs_refuse_a_manifest_with_positions",
            "they would erase the positions",
        )
    ],
    "client-unchecked": [numbered(ANY_PRODUCER, "is_repeated|is in the log twice|left")],
    "client-not-entered": [numbered(ANY_PRODUCER, "left|Unknown")],
    "repeated-records-stay": [
        numbered("only_the_repeated_records_leave_a_segment_that_others_share", "left")
    ],
    "stale-gap": [numbered("what_an_old_manifest_lacks_is_no_answer", "is_ok_and")],
    "copy-in-a-commit": [
        Catcher(
            "manifest/tests/all/clients.rs",
            "a_commit_has_each_number_once_and_names_every_claim_that_it_cannot_have",
            r"\(1, Repeated",
        )
    ],
    "gap-after-a-commit": [
        Catcher(
            "manifest/tests/all/clients.rs",
            "a_commit_has_each_number_once_and_names_every_claim_that_it_cannot_have",
            r"\(4, Gap \{ last: 1",
        )
    ],
    "settling-group-grows": [
        numbered("repetitions_that_keep_coming_do_not_keep_others_out_of_the_log", r"\[200, ")
    ],
    "lost-ticket-not-committed": [
        Catcher(
            "producer/src/lib.rs",
            "clients::tests::a_ticket_that_is_lost_with_its_task_leaves_the_outcome_open",
            r"NotCommitted",
        )
    ],
    "forgotten-leader-counts": [
        Catcher(
            "producer/tests/all/leader.rs",
            "a_leader_that_the_table_has_forgotten_is_replaced",
            r"10\.0\.0\.9:4319",
        )
    ],
    "rebuilt-segment-goes-last": [
        Catcher(
            "producer/tests/all/leader.rs",
            "a_guest_that_spoils_a_segment_does_not_change_the_order_of_the_others",
            r"\d+ is after \d+",
        )
    ],
    "refused-request-counts": [
        Catcher(
            "producer/tests/all/leader.rs",
            "a_refused_request_leaves_no_stream_behind",
            r"stream events.test holds otlp messages",
        )
    ],
    "floor-takes-the-next": [
        Catcher(
            "producer/tests/all/leader.rs",
            "a_request_whose_segments_are_below_the_floor_takes_no_other_with_it",
            r"NotCommitted\(.*orphan floor",
        )
    ],
    "slow-leader-followed": [
        Catcher(
            "producer/tests/all/leader.rs",
            "a_leader_with_a_longer_linger_does_not_slow_its_followers_down",
            r"\d+: 1\d\.",
        )
    ],
    "unresolved-handed-over": [
        Catcher(
            "producer/tests/all/crowds.rs",
            "a_group_that_may_have_landed_is_not_handed_over",
            "an unresolved group was handed over",
        )
    ],
    "clients-not-sent": [
        Catcher(
            "peer/tests/all/peer.rs",
            "a_leader_of_an_older_version_gets_no_numbered_request",
            r"left: Ok\(Committed",
        )
    ],
    "refused-client-told-at-once": [
        Catcher(
            "producer/tests/all/numbered.rs",
            "a_follower_hears_of_a_refused_client_after_the_leaders_swap",
            "the follower was told too early",
        )
    ],
    "refused-group-handed-over": [
        Catcher(
            "producer/tests/all/numbered.rs",
            "a_refused_group_is_not_handed_over_after_a_lost_race",
            "the group was handed over again",
        )
    ],
    "cursor-waits-for-memory": [
        Catcher(
            "peer/tests/all/watch.rs",
            "a_cursor_is_read_only_if_its_memory_is_free",
            "others wait for the memory of a cursor",
        )
    ],
    "unnumbered-leader-stays": [
        Catcher(
            "producer/tests/all/numbered.rs",
            "a_leader_that_does_not_know_clients_is_replaced_by_a_producer_that_has_some",
            "it goes on leading",
        )
    ],
    "unnumbered-leader-asked-again": [
        Catcher(
            "producer/tests/all/numbered.rs",
            "a_leader_that_does_not_know_clients_is_asked_for_other_records_only",
            "it was asked again",
        )
    ],
    "refused-client-is-a-failure": [
        Catcher(
            "producer/tests/all/numbered.rs",
            "a_refused_request_leaves_with_its_answer_and_the_rest_goes_on",
            "the leader is avoided",
        )
    ],
    "refused-beside-others": [
        Catcher(
            "producer/tests/all/numbered.rs",
            "a_request_is_not_refused_for_one_of_another_producer_that_leaves",
            "Fenced",
        )
    ],
    "refused-by-the-manifest-handed-over": [
        Catcher(
            "producer/tests/all/numbered.rs",
            "a_group_is_handed_over_without_what_the_manifest_refuses",
            "left",
        )
    ],
    "known-refusal-sent": [
        Catcher(
            "producer/tests/all/numbered.rs",
            "a_request_that_the_log_refuses_for_good_is_not_sent",
            "a repetition was sent to the leader",
        )
    ],
    "spent-number-takes-a-turn": [
        Catcher(
            "producer/src/lib.rs",
            "turns::tests::a_spent_number_is_no_commit",
            "its own",
        )
    ],
    "guests-copy-first": [
        Catcher(
            "producer/src/lib.rs",
            "claims::tests::kafkas_requests_keep_the_order_of_the_segments_and_the_own_copy_comes_first",
            "left",
        )
    ],
    "client-in-the-first-segment": [
        Catcher(
            "producer/tests/all/numbered.rs",
            "a_row_names_the_segment_that_another_producer_uploaded",
            "left",
        )
    ],
    "clients-of-requests-unchecked": [
        Catcher(
            "producer/tests/all/numbered.rs",
            "a_leader_checks_the_clients_of_a_request",
            "in none of its segments",
        )
    ],
    "leader-takes-turns": [
        Catcher(
            "producer/tests/all/crowds.rs",
            "a_leader_leaves_nobody_a_turn",
            r"before the next swap",
        )
    ],
    "leaders-interval-ignored": [
        Catcher(
            "producer/src/lib.rs",
            "election::tests::a_leader_with_a_longer_linger_has_the_time_for_two_of_its_segments",
            r"left: Take",
        )
    ],
    "dead-leader-has-its-interval": [
        Catcher(
            "producer/src/lib.rs",
            "election::tests::a_dead_leader_is_replaced_however_long_its_linger_was",
            r"left: Keep",
        )
    ],
    "refused-version-swapped-at-once": [
        Catcher(
            "producer/tests/all/crowds.rs",
            "a_leader_whose_store_stays_behind_pauses_and_refuses_its_followers",
            r"\d+s|swaps without a pause",
        )
    ],
    "new-leader-unnoticed": [
        Catcher(
            "simulation/tests/fleets.rs",
            "followers_of_a_dead_leader_wait_for_no_turn_once_another_leads",
            r"p99 \d",
        )
    ],
    "lost-race-is-silence": [
        Catcher(
            "producer/tests/all/crowds.rs",
            "a_leader_that_loses_races_does_not_refuse_its_followers",
            "the leader refused",
        )
    ],
    "handed-over-still-waits": [
        Catcher(
            "producer/tests/all/crowds.rs",
            "a_producer_is_ready_when_the_leader_has_committed_its_group",
            "it still waits",
        )
    ],
    "lost-race-repeated": [
        Catcher(
            "producer/tests/all/crowds.rs",
            "a_group_that_lost_a_race_is_handed_over",
            "left: 0",
        )
    ],
    "elements-unpaid": [
        Catcher(
            "peer/tests/all/peer.rs",
            "a_member_pays_for_what_its_request_takes_in_memory",
            r"left: Err\(.*400 Bad Request",
        )
    ],
    "turn-outlives-its-group": [
        Catcher(
            "producer/src/lib.rs",
            "turns::tests::a_turn_ends_with_its_group",
            r"left: Some\(",
        )
    ],
    "landed-takes-a-turn": [
        Catcher(
            "producer/src/lib.rs",
            "turns::tests::a_commit_that_landed_and_was_reported_as_refused_waits_for_nobody",
            r"left: Some\(",
        )
    ],
    "producer-claimed-twice": [
        claimed("a_producer_cannot_occur_twice", r"`Result::unwrap_err\(\)` on an `Ok` value")
    ],
    "place-of-whole-commit": [
        claimed("every_producer_has_the_place_of_its_own_records", r"left: \(1, 1, 1\)")
    ],
    "producer-table-ignored": [
        Catcher(
            "producer/tests/all/exactly_once.rs",
            "a_commit_that_landed_but_was_not_reported_yields_its_records_once",
            r'"message 1", 2',
        ),
    ],
    "resolved-too-early": [model(PRODUCERS, UNKNOWN)],
    "succeeded-owner-ends": [
        Catcher(
            "consumer/tests/all/pages.rs",
            "an_owner_that_was_succeeded_before_the_log_was_trimmed_stands_by",
            "slow: false",
        )
    ],
    "slow-last-words-end": [
        Catcher(
            "consumer/tests/all/pages.rs",
            "an_owner_that_was_succeeded_before_the_log_was_trimmed_stands_by",
            "slow: true",
        )
    ],
    "removed-passes-for-trimmed": [
        Catcher(
            "consumer/tests/all/pages.rs",
            "an_owner_of_a_removed_cursor_says_so_when_the_log_was_trimmed",
            "Trimmed",
        )
    ],
    "cursor-ahead-trims": [
        Catcher(
            "consumer/tests/all/gc.rs",
            "a_cursor_that_is_ahead_of_its_log_keeps_all_of_it",
            r"left: \(3",
        )
    ],
    "wrong-log-collected": [
        Catcher(
            "consumer/tests/all/gc.rs",
            "a_cursor_that_is_ahead_of_its_log_keeps_all_of_it",
            "left",
        )
    ],
    "unlisted-consumer-loses": [
        Catcher(
            "consumer/tests/all/gc.rs",
            "what_is_committed_after_the_consumers_were_listed_stays",
            r"left: \(10",
        )
    ],
    "cursor-judged-by-an-older-log": [
        Catcher(
            "consumer/tests/all/gc.rs",
            "a_cursor_that_has_moved_on_with_its_log_does_not_keep_it",
            "somebody restored the manifest",
        )
    ],
    "other-log-collected": [
        Catcher(
            "consumer/tests/all/gc.rs",
            "a_log_with_another_segment_than_a_consumer_has_seen_keeps_all_of_it",
            r"left: \(8",
        )
    ],
    "other-log-taken": [
        Catcher(
            "consumer/tests/all/recognition.rs",
            "records_of_a_restored_log_are_not_passed_over",
            r"it never ends",
        )
    ],
    "contradicted-log-taken": [
        Catcher(
            "consumer/tests/all/watch.rs",
            "a_restored_log_that_contradicts_the_leader_is_not_taken",
            r"it never ends",
        )
    ],
    "missed-tail-trusted": [
        Catcher(
            "consumer/tests/all/recognition.rs",
            "an_owner_recognizes_the_log_again_after_it_has_missed_a_whole_tail",
            r"it never ends",
        )
    ],
    "repair-of-any-log": [
        Catcher(
            "consumer/tests/all/repair.rs",
            "a_repair_compares_with_no_other_log",
            r"called `Result::unwrap_err\(\)` on an `Ok`",
        )
    ],
    "lost-page-keeps-all": [
        Catcher(
            "consumer/tests/all/gc.rs",
            "a_lost_page_with_what_a_consumer_has_seen_stops_no_retention",
            r"called `Result::unwrap\(\)` on an `Err`",
        )
    ],
    "one-shard-ends-all": [
        Catcher(
            "consumer/tests/all/resting.rs",
            "a_damaged_shard_stops_no_other_and_goes_on_when_it_is_restored",
            r"never: shard 0001: shards/0001/manifest",
        )
    ],
    "leaders-word-forgotten": [
        Catcher(
            "consumer/tests/all/watch.rs",
            "a_restored_log_that_contradicts_the_leader_is_not_taken",
            r"assertion|it never ends",
        )
    ],
    "seen-left-behind": [
        watching(
            "an_owner_that_ends_leaves_what_it_has_seen_to_the_next_one", "it never ends|assertion"
        )
    ],
    "rest-forgets-cursor": [
        rested("a_consumer_that_is_removed_from_a_resting_shard_stays_removed", "it goes on")
    ],
    "rest-takes-over": [
        rested("a_process_does_not_take_a_shard_over_again_after_it_has_rested", r"left: Some")
    ],
    "look-postponed": [rested("new_shards_are_found_while_others_rest", r'left: .* 3"')],
    "page-ahead-ends-term": [
        paged("all_that_lies_before_a_damaged_page_is_delivered_first", r"left: \d+")
    ],
    "page-ends-other-streams": [
        paged("streams_with_other_pages_go_on_beside_damaged_ones", r"left: \d+")
    ],
    "replay-beside-repair": [
        refusing(
            "a_letter_is_not_replayed_beside_a_repair_that_may_send_its_row",
            r"`Result::unwrap_err\(\)` on an `Ok` value",
        )
    ],
    "left-while-recognizing": [
        Catcher(
            "consumer/tests/all/recognition.rs",
            "an_owner_that_stops_while_it_recognizes_the_log_acknowledges_first",
            r"left: 5",
        )
    ],
    "hidden-news-taken": [
        Catcher(
            "consumer/src/lib.rs",
            "discovery::tests::a_state_that_does_not_show_what_is_known_is_left_to_the_store",
            r"left: Ok",
        )
    ],
    "closure-believed": [
        Catcher(
            "sinks/clickhouse/src/lib.rs",
            "transform::tests::an_argument_that_a_closure_may_have_changed_is_refused",
            r"the zone is that of the machine",
        )
    ],
    "any-event-parsed": [
        Catcher(
            "sinks/clickhouse/src/lib.rs",
            "transform::tests::a_large_event_is_not_parsed",
            r"Row\(",
        )
    ],
    "replayed-event-elsewhere": [
        Catcher(
            "consumer/tests/all/dead_letters.rs",
            "a_replayed_event_has_the_identity_of_its_row",
            r"\"row-5\": 2",
        )
    ],
    "replay-without-program": [
        Catcher(
            "consumer/tests/all/dead_letters.rs",
            "a_letter_of_a_stream_with_a_program_is_not_replayed_without_one",
            r"on an `Ok` value: 1",
        )
    ],
    "program-not-compared": [
        Catcher(
            "consumer/tests/all/repair.rs",
            "a_repair_with_other_programs_than_the_consumers_is_refused",
            r"on an `Ok` value: \[2, 1, 0, 1\]",
        )
    ],
    "programs-not-entered": [
        Catcher(
            "consumer/tests/all/programs.rs",
            "an_owner_enters_its_programs_at_its_opening",
            r"left: None",
        )
    ],
    "no-programs-are-unknown": [
        Catcher(
            "manifest/tests/all/cursor.rs",
            "no_programs_are_told_from_unknown_ones",
            r"programs: None",
        )
    ],
    "short-log-taken": [
        Catcher(
            "consumer/tests/all/recognition.rs",
            "nothing_is_sent_while_the_log_ends_before_the_newest_segment_that_was_seen",
            r"it never ends",
        )
    ],
    "seen-forgotten": [
        Catcher(
            "consumer/tests/all/recognition.rs",
            "records_of_a_restored_log_are_not_passed_over",
            r"it never ends",
        )
    ],
    "missing-log-unnoticed": [
        Catcher(
            "consumer/tests/all/earlier.rs",
            "a_consumer_that_has_read_a_log_waits_for_one",
            r"\[\]",
        )
    ],
    "absent-is-unchanged": [
        Catcher(
            "consumer/tests/all/earlier.rs",
            "a_manifest_that_is_gone_ends_the_consumer_after_a_minute",
            r"\[\]",
        )
    ],
    "earlier-log-taken": [
        Catcher(
            "consumer/tests/all/earlier.rs",
            "a_restored_manifest_ends_the_consumer_after_a_minute",
            r"Elapsed",
        )
    ],
    "batch-sent-in-part": [
        Catcher(
            "consumer/tests/all/earlier.rs",
            "a_planned_batch_waits_for_a_log_that_has_all_of_it",
            r'left: \{.*"row-2": 1, "row-3": 1\}',
        )
    ],
    "earlier-position-taken": [
        Catcher(
            "bridge/src/lib.rs",
            "position::tests::no_position_comes_from_an_earlier_manifest",
            r"Ok\(5\)",
        )
    ],
    "cut-off-log-read-again": [crossing("the landing of 15 by Oldest")],
    "gap-of-another-position": [crossing("the landing of 26 by Offset")],
    "past-is-taken": [
        Catcher(
            "producer/tests/all/scripts.rs",
            "the_scripts_lead_to_what_they_say",
            "which is earlier and not taken",
        )
    ],
    "restored-number-kept": [
        Catcher(
            "producer/tests/all/scripts.rs",
            "the_scripts_lead_to_what_they_say",
            "the store shows earlier states of the manifest for good",
        )
    ],
    "dropped-attempt-kept": [
        Catcher(
            "producer/tests/all/scripts.rs",
            "the_scripts_lead_to_what_they_say",
            "the group must not change",
        )
    ],
    "refused-before-sealing": [
        Catcher(
            "producer/tests/all/scripts.rs",
            "a_refused_segment_is_found_behind_a_sealed_tail",
            "drop a@0",
        )
    ],
    "endless-tail": [
        Catcher(
            "manifest/tests/all/manifest.rs",
            "a_commit_makes_no_tail_that_readers_refuse",
            "readers accept 4096",
        )
    ],
    "unreadable-state-sent": [
        Catcher(
            "manifest/tests/all/manifest.rs",
            "a_state_that_readers_refuse_is_not_sent",
            "left: None",
        )
    ],
    "absent-stream-admitted": [
        Catcher(
            "producer/src/lib.rs",
            "streams::tests::streams_that_a_full_table_lacks_are_forgotten",
            "is_err",
        )
    ],
    "manifest-in-another-buffer": [
        Catcher(
            "producer/tests/all/crowds.rs",
            "a_producer_begins_no_manifest_in_another_buffer",
            "it began a manifest",
        )
    ],
    "repeated-write-condemns": [
        Catcher(
            "storage/tests/conformance/self_test.rs",
            "a_repeated_write_is_no_verdict",
            "RefusesAll",
        )
    ],
    "unresolved-group-changed": [model(PRODUCERS, UNKNOWN)],
    "group-grows-after-mismatch": [
        Catcher(
            "producer/tests/all/faults.rs",
            "a_refusal_that_our_own_commit_caused_acknowledges_nothing_but_that_commit",
            r'right: \(\[0, 1, 2\], \["a", "b", "c"\]\)',
        ),
        model(PRODUCERS, "2: a success"),
    ],
    "clock-empties-producer-table": [
        Catcher(
            "manifest/tests/all/manifest.rs",
            "the_clock_of_a_producer_that_registers_forgets_nobody",
            r"at \d+ ms",
        ),
        Catcher(
            "producer/tests/all/faults.rs",
            "a_registration_by_a_clock_a_day_ahead_leaves_outcomes_resolvable",
            "OutcomeUnknown",
        ),
    ],
    "forgotten-sent-again": [
        Catcher(
            "producer/tests/all/faults.rs",
            "a_forgotten_producer_whose_commit_may_have_landed_says_so_and_goes_on",
            "not committed: segment .* is in the log already",
        ),
    ],
    "orphan-floor-ignored": [model(PRODUCERS, "1: what the log refers to")],
    "page-reference-dropped": [model(PRODUCERS, "1: the log is whole")],
    "page-not-stored": [
        model(PRODUCERS, "1: what the log refers to"),
        Catcher(
            "producer/tests/all/pages.rs",
            "the_upload_of_a_page_and_the_swap_after_it_may_have_each_of_their_outcomes",
            "panicked at .*support/mod.rs:.*\nshards/0000/pages/",
        ),
    ],
    "checksum-ignored": [
        Catcher(
            "manifest/tests/all/pages.rs",
            "a_damaged_page_is_refused",
            r"assertion failed: Page::decode\(&bytes\).is_err\(\)",
        )
    ],
    "delete-before-trim": [
        gc("the_slowest_stream_of_the_slowest_consumer_is_what_counts", "live and missing")
    ],
    "fence-ignored": [model(OWNERS, "5")],
    "growth-before-cursors": [
        grown(
            "no_crash_leaves_a_shard_without_its_cursors",
            r"abandoned in shard 1",
        )
    ],
    "growth-not-completed": [
        grown("a_consumer_that_starts_during_a_growth_is_begun_too", "`None` value")
    ],
    "removed-kept-in-new-shards": [
        grown(
            "a_consumer_that_is_removed_during_a_growth_leaves_nothing_that_keeps_the_log",
            "is_removed",
        )
    ],
    "from-in-new-shards": [
        growing(
            "a_running_consumer_reads_a_new_shard_from_its_beginning",
            "never: every row of the new shard is there",
        )
    ],
    "tombstone-has-begun": [
        Catcher(
            "consumer/tests/all/gc_needs.rs",
            "a_consumer_that_begins_again_gets_what_came_after_its_first_cursor",
            r"left: \(3",
        )
    ],
    "cursor-of-another-buffer": [
        Catcher(
            "consumer/tests/all/gc_needs.rs",
            "a_cursor_of_another_buffer_trims_nothing",
            r"left: \(8",
        )
    ],
    "log-of-another-buffer": [
        Catcher(
            "consumer/tests/all/gc_needs.rs",
            "a_manifest_of_another_buffer_deletes_nothing",
            r"unwrap_err",
        )
    ],
    "misplaced-object-read": [
        Catcher(
            "consumer/tests/all/gc_needs.rs",
            "a_manifest_of_another_shard_deletes_nothing",
            r"unwrap_err",
        )
    ],
    "misplaced-cursor-read": [
        Catcher(
            "consumer/tests/all/gc_needs.rs",
            "a_cursor_at_the_key_of_another_trims_nothing",
            r"left: \(8",
        )
    ],
    "changed-cursor-kept": [
        swapping("a_cursor_that_has_changed_is_read_again", r"left: \(8"),
    ],
    "read-has-listed-version": [
        swapping("a_cursor_that_is_restored_after_its_read_is_read_again", r"left: \(8"),
    ],
    "cursors-read-each-attempt": [
        swapping("a_busy_shard_with_many_cursors_is_trimmed", r"Contended"),
    ],
    "large-cursor-unreadable": [swapping("a_large_cursor_counts", r"left: 0")],
    "unfound-cursor-is-removed": [
        swapping("a_listed_cursor_that_a_read_does_not_find_keeps_the_log", r"left: \(8, 0\)")
    ],
    "stale-list-accepted": [
        Catcher(
            "storage/tests/conformance/self_test.rs",
            "a_store_that_ignores_a_precondition_is_refused_and_told_which",
            r"a broken store: \(\)",
        )
    ],
    "plans-ahead-without-end": [
        Catcher(
            "consumer/tests/all/ahead.rs",
            "a_batch_that_hangs_does_not_fill_the_cursor_with_plans",
            "the cursor has",
        )
    ],
    "reset-passes-over-others": [
        unique("the_reset_that_is_advised_passes_over_no_other_stream", r"--shard 0 --to 2`")
    ],
    "failed-list-passes": [
        Catcher(
            "storage/tests/conformance/self_test.rs",
            "a_store_that_ignores_a_precondition_is_refused_and_told_which",
            r"a broken store: \(\)",
        )
    ],
    "damaged-cursors-read-again": [
        swapping("damaged_cursors_are_not_read_again", r"left: 6"),
    ],
    "files-list-versions": [
        Catcher(
            "storage/tests/conformance/contract.rs",
            "file::a_listing_shows_the_version_of_each_object",
            r"left: true",
        )
    ],
    "weak-tag-trusted": [
        Catcher(
            "storage/src/lib.rs",
            "store::tests::a_listing_shows_a_version_by_its_strong_tag",
            r"W/",
        )
    ],
    "denied-cursor-stops-all": [
        Catcher(
            "consumer/tests/all/gc_needs.rs",
            "a_denied_cursor_stops_no_retention",
            r"Denied|denied",
        )
    ],
    "missing-cursor-needs-nothing": [
        growing(
            "garbage_collection_keeps_a_new_shard_for_a_consumer_without_a_cursor_in_it",
            r"left: 3\s+right: 0",
        )
    ],
    "lease-ignored": [
        consuming(
            "an_owner_whose_lease_ran_out_begins_nothing_until_it_is_renewed",
            "the owner resent rows that another may have sent",
        )
    ],
    "plan-after-sink": [model(OWNERS, "3: nothing is in the sink twice")],
    "large-not-planned": [model(FENCED_RULES, "3: nothing is in the sink twice")],
    "acknowledge-over-hole": [model(OWNERS, "3: all below next")],
    "horizon-ignored": [
        paged("streams_at_different_positions_both_arrive", "never: every row is in the table"),
    ],
    "position-not-written": [
        gc(
            "a_stream_of_which_nothing_is_acknowledged_yet_keeps_what_it_has",
            r"left: 1\s+right: 0",
        )
    ],
    "policy-not-pinned": [model(RULES, "3: nothing is in the sink twice")],
    # An owner keeps to plans, and asks before it sends them, after a clean release too: no row is
    # wrong, but the owner claims too much.
    "released-in-doubt": [
        Catcher(
            "manifest/tests/all/cursor.rs",
            "plans_ahead_of_the_log_leave_no_batch_in_doubt_and_pin_what_decides_their_rows",
            "4 is in the log",
        )
    ],
    "ahead-not-pinned": [
        model(RELEASED_AHEAD, "3: batches planned ahead keep their batching policy"),
        Catcher(
            "manifest/tests/all/cursor.rs",
            "plans_ahead_of_the_log_leave_no_batch_in_doubt_and_pin_what_decides_their_rows",
            "!cursor.is_clean",
        ),
    ],
    "ahead-sent-as-new": [
        Catcher(
            "consumer/tests/all/ahead.rs",
            "an_owner_after_a_clean_release_keeps_to_the_plans_of_a_dead_one",
            "planned rows were sent without a question",
        )
    ],
    "withdrawn-in-doubt": [model(GIVEN_BACK_AHEAD, "3: nothing is in the sink twice")],
    "token-without-chunk": [simulated("cursor: .* is not in the table")],
    "retry-with-other-chunks": [simulated("exactly-once")],
    "retry-not-announced": [
        consuming(
            "an_answer_lost_by_the_sink_is_no_duplicate",
            r'left: \["millpond/2/.*\s+right: \[\]',
        )
    ],
    "success-trusted": [known("a_token_without_rows_loses_nothing", "poisoned tokens")],
    "sent-before-asked": [
        known("a_consumer_that_begins_again_after_a_removal_doubles_nothing", "deleted by hand"),
    ],
    "keys-not-loaded": [simulated("cursor: .* are repeated, and it counts")],
    "keys-not-read-again": [simulated("cursor: .* are repeated, and it counts")],
    "snapshot-past-position": [simulated("failure: .* is decided already")],
    "window-by-wall-clock": [simulated("cursor: .* are repeated, and it counts")],
    "log-of-keys-trimmed": [simulated("needed: .* still needs .* which was trimmed")],
    "named-keys-deleted": [simulated("needed: .* the cursor names it")],
    "silent-stream-keeps-log": [
        unique(
            "a_silent_stream_does_not_hold_back_the_log",
            "never: the log is not needed any more",
        )
    ],
    "late-stream-shares-batches": [
        gc("a_collection_cuts_no_batch_of_a_stream_that_comes_late", r"left: \{"),
    ],
    "rows-before-the-beginning-compared": [
        keys("rows_before_the_beginning_are_kept_and_not_remembered", "nothing is compared"),
    ],
    "beginning-moves-under-a-state": [
        unique(
            "a_stream_that_is_read_later_keeps_all_rows_from_before_its_setting_begins",
            "never: the batch is acknowledged",
        )
    ],
    "since-stays-behind": [
        unique(
            "a_setting_without_a_batch_needs_nothing_before_its_position",
            "never: the log is not needed any more",
        )
    ],
    "forgotten-snapshots-count": [
        keys("forgotten_snapshots_make_room_for_others", r"assertion failed: state\.may_snapshot"),
    ],
    "lost-keys-end-all-shards": [
        Catcher(
            "consumer/src/lib.rs",
            "resting::tests::lost_keys_are_of_one_shard_and_a_full_table_is_of_all",
            r"assertion failed: lost\.is_of_one_shard",
        )
    ],
    "places-are-known": [
        keys("chosen_keys_are_as_spread_as_others", r"\d+ 50000"),
    ],
    "full-list-stays": [
        keys(
            "a_long_list_of_snapshots_is_merged_in_small_steps",
            r"\d+ are named",
        )
    ],
    "merged-keys-lost": [
        keys(
            "the_decisions_are_those_of_the_rules_for_any_log_and_after_any_restart",
            r"seed \d+, part \d+",
        )
    ],
    "large-snapshots-merged": [
        keys(
            "snapshots_with_many_keys_are_merged_two_at_a_time",
            "left == right. failed: two of the smallest",
        )
    ],
    "waiting-keys-stay": [
        keys("keys_that_wait_for_a_snapshot_are_forgotten_with_the_others", r"\d+ wait of \d+")
    ],
    "restart-delays-snapshot": [
        unique("restarts_do_not_delay_a_snapshot", "never: the log is not needed any more"),
    ],
    "lost-keys-end-a-silent-stream": [
        unique(
            "a_silent_stream_without_its_log_does_not_end_the_owner",
            "never: the batch is acknowledged",
        ),
        unique(
            "a_silent_stream_with_a_damaged_snapshot_does_not_end_the_owner",
            "never: the batch is acknowledged",
        ),
    ],
    "parts-passed-over": [
        unique("a_part_that_came_after_the_last_snapshot_is_not_passed_over", r"left: \{"),
    ],
    "silent-keys-loaded": [
        unique(
            "a_successor_loads_the_keys_of_a_silent_stream_with_its_next_batch",
            "never: the log is not needed any more",
        ),
    ],
    "silent-keys-stay": [
        unique(
            "the_keys_of_a_stream_that_is_silent_for_a_window_leave_the_memory",
            "never: the keys leave the memory",
        ),
    ],
    "keys-leave-past-position": [
        unique(
            "the_keys_of_a_batch_that_waits_for_the_table_stay_in_memory",
            "never: the batch is acknowledged",
        ),
    ],
    "known-positions-lost": [
        Catcher(
            "consumer/tests/all/trimmed.rs",
            "what_a_swap_without_an_answer_acknowledged_is_not_reported_as_lost",
            "left: 1",
        ),
    ],
    "taken-and-left": [
        Catcher(
            "consumer/tests/all/lease.rs",
            "a_consumer_that_is_stopped_while_it_takes_the_cursor_gives_it_back",
            "never: the batch is acknowledged",
        ),
    ],
    "stopping-owner-plans": [
        Catcher(
            "consumer/tests/all/lease.rs",
            "a_consumer_that_is_stopped_while_it_takes_the_cursor_gives_it_back",
            "sent after the stop",
        ),
    ],
    "keep-without-patience": [
        keeping(
            "keys_that_the_store_does_not_answer_for_let_those_of_other_streams_through",
            r"\[0, 1, 2, 3\]",
        ),
    ],
    "due-by-name": [
        keeping(
            "keys_that_the_store_does_not_answer_for_let_those_of_other_streams_through",
            r"\[0, 1, 2, 3\]",
        ),
    ],
    "keep-waits-on": [
        keeping(
            "a_wait_for_the_store_ends_with_the_attempt_to_store_keys",
            "never: the attempt ends",
        ),
    ],
    "kept-keys-stay": [
        keeping("keys_that_are_loaded_to_be_stored_leave_the_memory_at_once", "left: 3"),
    ],
    "keeping-takes-all-keys": [
        key_limit("work_that_is_not_urgent_leaves_keys_to_the_batches", r"max: 32"),
    ],
    "spare-keys-count-for-batches": [
        key_limit("batches_have_all_keys_whatever_else_has_some", r"max: 32"),
        keeping(
            "keys_that_are_loaded_to_be_stored_keep_no_batch_from_its_keys",
            "never: the batch is acknowledged",
        ),
    ],
    "spare-keys-stay": [
        key_limit("batches_have_all_keys_whatever_else_has_some", "assertion failed: crowded"),
        keeping("keys_that_are_loaded_to_be_stored_keep_no_batch_from_its_keys", "left: 45"),
    ],
    "no-room-repeats": [
        Catcher(
            "consumer/src/lib.rs",
            "unique::times::tests::failed_loads_become_rare",
            r"left: \[300, 300, 300",
        ),
    ],
    "keep-not-overtaken": [
        keeping("a_batch_does_not_wait_for_an_attempt_to_store_keys", "left: 2"),
    ],
    "keep-with-backlog": [
        keeping("the_keys_of_a_stream_whose_batches_wait_are_not_stored", r"left: \["),
    ],
    "patience-for-all": [
        keeping("an_attempt_to_store_keys_goes_on_as_long_as_the_store_gives_something", "left: "),
    ],
    "queued-keep-goes-on": [
        keeping(
            "an_attempt_to_store_keys_that_waits_for_memory_lets_batches_through_after_a_while",
            "left: 1",
        ),
    ],
    "memory-wait-blames-store": [
        standstill("assertion failed: !blames_store"),
    ],
    "queue-moves-no-clock": [
        standstill("left: 80"),
    ],
    "each-ask-moves-clock": [
        standstill("left: 30"),
    ],
    "loads-without-place": [
        keeping("keys_are_loaded_to_be_stored_in_one_shard_at_a_time", r"\[true, true\]"),
    ],
    "unchanged-without-last": [
        unique(
            "a_successor_loads_the_keys_of_a_silent_stream_with_its_next_batch",
            "there is no room for the keys: Elapsed",
        ),
    ],
    "keys-of-an-older-snapshot": [
        unique(
            "the_keys_of_a_stream_that_is_silent_for_a_window_leave_the_memory",
            "never: the batch is acknowledged",
        ),
    ],
    "memory-before-the-keys-left": [
        unique(
            "a_batch_that_comes_while_the_keys_leave_the_memory_loads_them_again",
            "never: the batch is acknowledged",
        ),
    ],
    "first-snapshot-waits-anew": [
        unique(
            "owners_that_change_often_store_the_keys_of_a_silent_stream_too",
            "never: the log is not needed any more",
        ),
    ],
    "latest-time-counts": [
        keys(
            "one_wrong_clock_of_three_in_every_part_lets_no_repetition_pass",
            r"copies of rows in part \d+ pass",
        )
    ],
    "median-of-parts-counts": [
        keys(
            "a_gateway_that_is_a_year_ahead_lets_no_copy_of_the_others_pass",
            r"copies pass in part \d+",
        )
    ],
    "first-part-decides": [
        keys("the_first_parts_may_all_have_a_wrong_clock", r"left == right. failed: part \d+")
    ],
    "medians-from-the-start": [
        keys(
            "the_decisions_are_those_of_the_rules_for_any_log_and_after_any_restart",
            r"seed \d+, part \d+",
        )
    ],
    "medians-not-pinned": [
        deduplicating(
            "the_rules_for_clocks_change_only_where_nobody_sends_and_keep_the_keys",
            "the rules are pinned",
        )
    ],
    "medians-unversioned": [
        deduplicating(
            "a_cursor_has_another_version_from_its_first_setting_on", "it has the newest rules"
        )
    ],
    "replayed-keys-unpaid": [
        Catcher(
            "consumer/src/lib.rs",
            "unique::restore::tests::the_keys_of_tiny_rows_are_paid_for",
            r"\d+ bytes are reserved",
        )
    ],
    "lost-cursor-forgets-drops": [
        Catcher(
            "operate/src/lib.rs",
            "consumers::change::tests::a_cursor_that_cannot_be_read_becomes_a_tombstone",
            "nobody knows which rows",
        )
    ],
    "dropped-rows-repaired": [
        Catcher(
            "consumer/tests/all/repair.rs",
            "what_a_lost_cursor_may_have_dropped_is_not_repaired",
            "it inserts dropped rows",
        )
    ],
    "many-bytes-read-again": [
        unique(
            "a_successor_reads_few_bytes_again_though_few_keys_are_new",
            "never: the log is not needed any more",
        )
    ],
    "cut-batch-takes-copies": [
        unique(
            "a_batch_that_retention_cuts_in_flight_takes_no_later_copies_with_it",
            "the copies are dropped",
        )
    ],
    "cut-batches-not-counted": [
        unique(
            "cut_batches_that_wait_for_another_one_count_as_in_flight",
            "the first batch waits, and further ones are planned",
        )
    ],
    "keys-not-pinned": [simulated("cursor: .*another key or window came into force")],
    "reception-of-the-last": [
        keys(
            "a_repetition_within_the_window_is_dropped_and_one_after_it_is_kept", "a window older"
        ),
    ],
    "floor-falls": [
        keys("a_gateway_with_a_wrong_clock_makes_the_stage_forget_nothing", r"left: \["),
    ],
    "round-skipped": [simulated("exactly-once: .* for the second time")],
    "reset-forgets-sent": [
        known("a_consumer_that_begins_again_after_a_removal_doubles_nothing", "deleted by hand"),
    ],
    "generation-kept": [
        known("a_skip_loses_nothing_of_the_neighbours", "two row sets share the token")
    ],
    "reset-unsettled": [
        known(
            "requests_that_may_be_under_way_are_ended_before_other_chunks_are_sent",
            r"assertion failed: cursor\.unsettled",
        )
    ],
    "second-reset-forgets-lease": [
        Catcher(
            "manifest/tests/all/cursor.rs",
            "the_longest_lease_of_those_who_may_send_is_known",
            "left: 0",
        )
    ],
    "new-cursor-sent-nothing": [
        Catcher(
            "manifest/tests/all/cursor.rs",
            "a_new_cursor_takes_the_whole_log_for_sent",
            "an earlier cursor may have been deleted",
        )
    ],
    "skip-keeps-tokens": [
        known("a_skip_loses_nothing_of_the_neighbours", "two row sets share the token")
    ],
    "epoch-fences": [
        Catcher(
            "manifest/tests/all/cursor.rs",
            "an_opening_of_the_same_epoch_is_another_opening",
            "an owner takes another's cursor for its own",
        )
    ],
    "removal-ignored": [
        known("an_owner_whose_cursor_is_removed_ends", "the consumer continues without its cursor"),
        known(
            "an_owner_whose_cursor_is_deleted_ends_and_makes_no_other",
            "the consumer continues without its cursor",
        ),
    ],
    "skip-keeps-refusals": [model(SKIPPED_REFUSAL, "3: a letter")],
    "halves-before-refusal": [model(REFUSING, "3: nothing is in the sink twice", "3: a letter")],
    "refused-sent-again": [model(REFUSING, "3: nothing is in the sink twice", "3: a letter")],
    "letter-forgotten": [model(REFUSING, "3: all below next")],
    "unfit-events-count": [
        Catcher(
            "consumer/tests/all/dead_letters.rs",
            "events_that_do_not_fit_their_table_end_no_consumer_however_many",
            "never: the batch is acknowledged",
        )
    ],
    "wall-clock-ignored": [leased(STOOD_STILL, "paused: another owner may have the cursor")],
    "request-outlives-lease": [
        leased(
            "a_request_under_way_is_dropped_when_the_lease_runs_out",
            "never: the request is dropped",
        )
    ],
    "answer-outlives-lease": [
        Catcher(
            "consumer/src/lib.rs",
            "lease::tests::a_lease_that_ran_out_meanwhile_has_not_run_since",
            "it was renewed too late",
        )
    ],
    "longest-lease-forgotten": [
        Catcher(
            "manifest/tests/all/cursor.rs",
            "the_longest_lease_of_those_who_may_send_is_known",
            "the fenced owner does not know it yet",
        )
    ],
    "lease-not-outlived": [
        leased(
            "a_successor_waits_for_the_leases_of_earlier_owners_after_a_reset",
            "the first owner could still send",
        )
    ],
    "inherited-sent-as-new": [
        Catcher(
            "consumer/tests/all/ahead.rs",
            "an_owner_after_a_clean_release_keeps_to_the_plans_of_a_dead_one",
            "planned rows were sent without a question",
        )
    ],
    "replay-shares-name": [
        refusing(
            "a_replayed_message_is_not_taken_for_a_row_of_another_consumer",
            "each of two consumers has its row",
        )
    ],
    "repair-name-free": [
        Catcher(
            "consumer/tests/all/repair.rs",
            "ranges_that_cannot_be_repaired_are_refused",
            r"matches!\(made\.err\(\), Some\(ConsumeError::Name",
        )
    ],
    "uncertain-trusted": [
        known("nothing_is_sent_after_a_reset_where_a_replica_may_have_it", "a replica may have it")
    ],
    "later-round-forgotten": [
        known("a_successor_waits_for_a_later_round_in_flight", "two tokens brought the same rows")
    ],
    "later-round-unannounced": [
        known(
            "a_successor_waits_for_later_rounds",
            "a successor could send the rows under the first token",
        )
    ],
    "announced-too-early": [
        known(
            "a_late_swap_does_not_take_an_announcement_back",
            "a successor would not know of the later round",
        )
    ],
    "uncertain-later-round": [
        known("no_later_round_acts_on_an_answer_that_is_not_certain", "a replica may have the rows")
    ],
    "address-trusted": [
        Catcher(
            "sinks/clickhouse/tests/server/addresses.rs",
            "an_address_is_compared_again_each_time_it_takes_over",
            "another table took the rows",
        )
    ],
    "short-value-awaited": [
        Catcher(
            "sinks/clickhouse/tests/server/failures.rs",
            "rows_from_which_the_table_cannot_compute_a_column_are_refused",
            r"toUInt16\(LogAttributes\['absent'\]\): inserting",
        )
    ],
    "loss-forgotten": [
        known("a_loss_is_remembered_when_answers_stop_being_certain", "a row is missing")
    ],
    "later-round-unsettled": [
        known(
            "rows_that_are_seen_later_than_their_token_are_not_sent_again",
            "some rows were only not seen yet",
        )
    ],
    "batch-done-early": [
        in_flight("a_batch_is_done_when_its_last_chunk_is", r"left: 1"),
        simulated(""),
    ],
    "free-shard-left-for-ever": [
        dividing(
            "a_member_that_takes_nothing_keeps_no_shard_from_the_others", "the shards are divided"
        )
    ],
    "standby-begins-again": [
        dividing("a_standby_ends_with_its_removed_consumer", "c goes on without its consumer")
    ],
    "living-list-deleted": [
        dividing(
            "garbage_collection_deletes_the_lists_of_removed_consumers_alone",
            "assertion `left == right` failed",
        )
    ],
    "moved-before-handed-over": [
        moving(
            "a_request_that_is_being_handed_over_keeps_its_producer_open",
            "the move fails no request",
        )
    ],
    "growth-moves-between-old-shards": [
        Catcher(
            "producer/src/lib.rs",
            "producers::growth::tests::all_shards_are_equally_likely_and_nobody_moves_between_old_ones",
            r"\d+ to \d+",
        )
    ],
    "home-of-all-shards": [
        at_home(
            "growth_moves_no_client_and_a_moved_process_still_knows_it",
            "the home of a client has moved",
        )
    ],
    "growth-forgets-homes": [
        Catcher(
            "manifest/tests/all/buffer.rs",
            "a_buffer_only_grows_and_each_state_is_distinct",
            "left: ",
        )
    ],
    "stuck-home-accepts": [
        at_home("a_home_that_cannot_commit_harms_nobody_else", "0 of 60 were refused at once")
    ],
    "home-decides-readiness": [
        at_home("a_home_that_cannot_commit_harms_nobody_else", "shard 2: waiting")
    ],
    "each-request-waits": [
        at_home(
            "requests_wait_for_a_home_that_does_not_open_only_once",
            "one after another they waited",
        )
    ],
    "routed-by-another-hash": [
        dividing_rows(
            "rows_are_in_the_shard_of_their_key_and_others_in_that_of_the_gateway", '"id":'
        )
    ],
    "keyless-rows-routed": [
        dividing_rows(
            "a_repeated_number_repeats_only_rows_whose_key_is_in_the_log",
            "each row without a key is there once",
        )
    ],
    "number-before-keys": [
        dividing_rows(
            "the_number_and_the_rows_without_a_key_follow_the_others",
            "answered before the last commit|the rest came before the rows with keys",
        )
    ],
    "empty-rest-left-out": [
        dividing_rows(
            "a_repeated_number_repeats_only_rows_whose_key_is_in_the_log", r"client-\d+ [23]"
        )
    ],
    "route-follows-growth": [
        dividing_rows("growth_changes_no_row_s_shard", "both are where a consumer compares them")
    ],
    "rest-unchecked": [
        dividing_rows(
            "no_row_is_stored_while_the_shard_of_the_number_cannot_be_used",
            "rows of refused requests are stored",
        )
    ],
    "shards-one-by-one": [
        Catcher(
            "producer/tests/all/routing.rs",
            "a_shard_that_cannot_be_used_fails_the_messages_that_need_it_alone",
            "nothing of them is in shard 0",
        )
    ],
    "routed-by-any-key": [
        routed("several_shards_need_a_route_by_the_same_key", "the consumer goes on")
    ],
    "misrouted-rows-uncounted": [
        routed("several_shards_need_a_route_by_the_same_key", "unique_misrouted_total")
    ],
    "growth-forgets-routes": [
        Catcher(
            "manifest/tests/all/buffer.rs",
            "a_route_stays_as_it_is_also_when_the_buffer_grows",
            "left: ",
        )
    ],
    "growth-ends-a-consumer": [
        grown(
            "a_buffer_does_not_grow_past_a_consumer_that_compares_the_rows_of_one_shard",
            "unwrap_err",
        )
    ],
    "home-overtakes": [at_home("a_move_keeps_the_order_of_a_client", "it followed the second")],
    "growth-not-learnt": [
        dividing(
            "a_process_that_does_not_know_of_a_growth_learns_of_it_from_a_free_shard",
            "a shard had no owner for",
        )
    ],
    "newer-list-replaced": [
        dividing("the_list_of_a_newer_program_is_left_alone", "the newer list is gone")
    ],
    "doubt-forgotten": [
        dividing(
            "a_member_that_takes_nothing_keeps_no_shard_from_the_others",
            "never: the shards are divided",
        )
    ],
    "silent-member-trusted": [
        dividing(
            "the_others_take_the_shards_of_a_process_that_dies_within_a_lease",
            "they are taken after",
        )
    ],
    "chunks-beyond-memory": [
        Catcher(
            "consumer/tests/all/in_flight.rs",
            "no_more_chunks_are_in_flight_than_fit_into_the_memory",
            r"left: 3",
        )
    ],
    "halves-beside-chunks": [
        in_flight(
            "a_refused_chunk_is_taken_apart_when_no_other_is_in_flight",
            "neither its halves nor another chunk",
        )
    ],
    "later-round-ends-siblings": [
        in_flight(
            "a_later_round_ends_only_requests_of_its_own_chunk", "has requests of other chunks"
        )
    ],
    "whole-chunk-again": [
        known("a_chunk_of_which_one_partition_has_landed_is_completed", r'"row-\d+": 2')
    ],
    "settled-by-own-id": [
        Catcher(
            "sinks/clickhouse/tests/server/interface.rs",
            "requests_that_a_distributed_table_forwards_are_ended_too",
            "the request still runs at a shard",
        )
    ],
    "settled-at-one-address": [
        Catcher(
            "sinks/clickhouse/tests/server/addresses.rs",
            "requests_at_every_address_are_ended",
            "the request still runs at the other address",
        )
    ],
    "failover-within-attempt": [
        Catcher(
            "sinks/clickhouse/tests/server/addresses.rs",
            "an_attempt_of_unknown_outcome_is_asked_for_and_not_repeated_at_the_next_address",
            "the rows are there twice",
        )
    ],
    "second-absence-counts": [
        Catcher(
            "consumer/src/lib.rs",
            "hedge::tests::an_object_that_is_absent_for_the_second_request_alone_is_there",
            "the first answer has the bytes",
        )
    ],
    "stale-sequence-judges": [
        numbered(
            "a_row_that_is_far_behind_takes_no_new_sequence_number_for_an_old_one",
            "a new record passes for a repetition",
        )
    ],
    "shares-ignored": [
        Catcher(
            "manifest/tests/all/clients.rs",
            "a_group_with_many_clients_makes_the_table_forget_no_client_of_others",
            "a client of the small group is forgotten",
        )
    ],
    "keys-without-shares": [
        Catcher(
            "manifest/tests/all/clients.rs",
            "a_group_with_many_keys_leaves_room_for_others",
            "the first group has more than its share",
        )
    ],
    "lease-checked-once": [leased(STOOD_STILL, "another owner may have the cursor")],
    "refused-rows-appended": [
        accepting(
            "malformed_rows_are_rejected_one_by_one_or_all_rows_with_them",
            "the log has what was accepted",
        )
    ],
    "kafka-part-of-a-batch": [
        from_kafka(
            "a_batch_with_a_malformed_record_is_refused_whole_with_its_records_named",
            "a part of the batch is accepted",
        )
    ],
    "kafka-answered-early": [
        from_kafka("success_comes_only_after_the_commit", "answered before the commit")
    ],
    "kafka-stops-between": [
        from_kafka("a_stopping_gateway_finishes_a_request_that_waits_for_memory", "an answer")
    ],
    "long-requests-together": [
        from_kafka("long_requests_of_many_batches_take_turns", "an answer"),
    ],
    "kafka-damage-accepted": [
        from_kafka(
            "damaged_and_hostile_batches_get_an_error_and_take_no_memory",
            "a flipped bit",
        )
    ],
    "announced-elements": [
        Catcher(
            "kafka/tests/requests.rs",
            "the_smallest_elements_of_a_list_are_read_and_no_more_are_announced",
            "unfinished variable-length number",
        )
    ],
    "events-of-another-prefix": [
        accepting(
            "a_token_writes_to_streams_of_its_prefix_and_no_other_token_does",
            "another token wrote to /v1/streams/acme.signup",
        )
    ],
    "unfit-row-takes-no-number": [inserting_events("a row has the number of another")],
    "unfit-row-leaves-values": [inserting_events("the columns have different lengths")],
    "transform-moves-rows": [
        transforming(
            "events_without_rows_move_no_row_to_another_chunk", "a row is in another chunk"
        )
    ],
    "dropped-event-takes-no-number": [
        transforming(
            "rows_are_what_the_program_makes_and_the_others_are_dropped_or_dead_letters",
            "a row has the number of another",
        )
    ],
    "random-function-allowed": [
        Catcher(
            "sinks/clickhouse/src/lib.rs",
            "transform::functions::tests::a_refused_function_is_named_with_its_line_and_the_reason",
            "a refused function compiles",
        )
    ],
    "left-number-written-anew": [
        Catcher(
            "sinks/clickhouse/src/lib.rs",
            "transform::tests::a_member_that_the_program_leaves_keeps_its_text",
            "a number has other digits",
        )
    ],
    "sorted-rows-taken-by-place": [
        Catcher(
            "sinks/clickhouse/src/lib.rs",
            "chunks::tests::sorting::only_the_order_of_rows_follows_the_table",
            "a row has the place of another",
        )
    ],
    "part-of-an-object": [
        Catcher(
            "gateway/src/lib.rs",
            "rows::tests::no_line_of_a_broken_object_that_spans_lines_is_a_row",
            "a part is no row",
        )
    ],
}


# As in `make build`: with the same features, the compiled dependencies serve both. Not --locked:
# the copy has one more crate than Cargo.lock.
CARGO_TEST = ["cargo", "test", "--workspace"]
# No crate has tests in its documentation.
ALL_TESTS = ["--lib", "--bins", "--tests"]


def needed(bugs):
    """Cargo's arguments for the test programs that catch these bugs."""
    sources = {Path(catcher.program()[0]) for bug in bugs for catcher in CATCHERS[bug]}
    # A folder of tests is one program, named after the folder.
    programs = [source for source in sources if "tests" in source.parts]
    targets = sorted({s.parent.name if s.stem == "main" else s.stem for s in programs})
    libraries = ["--lib"] if len(programs) < len(sources) else []
    return libraries + [argument for target in targets for argument in ("--test", target)]


def build(targets):
    """The test programs with every bug compiled in, by source."""
    command = [*CARGO_TEST, *targets, "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, cwd=TREE, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode != 0:
        sys.exit("the tests cannot be built")
    messages = map(json.loads, built.stdout.splitlines())
    return {
        str(Path(message["target"]["src_path"]).relative_to(TREE)): Program(
            message["executable"], Path(message["manifest_path"]).parent
        )
        for message in messages
        if message["reason"] == "compiler-artifact"
        and message.get("executable")
        and message["profile"]["test"]
    }


def run(programs, catcher, bug):
    """Returns whether the test passed, its output, and its duration."""
    source, test = catcher.program()
    began = time.monotonic()
    try:
        done = programs[source].run("--exact", test, "--nocapture", bug=bug, timeout=TIMEOUT_S)
        passed, output = done.returncode == 0, done.stdout
        if passed and "1 passed" not in output:
            passed, output = False, "there is no such test"
    except subprocess.TimeoutExpired:
        passed, output = False, f"it was not done after {TIMEOUT_S} s"
    return passed, output, time.monotonic() - began


def all_pass(programs):
    """Whether every test of the workspace passes without a bug."""
    ok = True
    # Two at a time: many tests wait for something.
    with ThreadPoolExecutor(2) as pool:
        for source, done in pool.map(lambda item: (item[0], item[1].run()), programs.items()):
            ok &= done.returncode == 0
            print(f"{source}: {done.stdout}", flush=True)
    return ok


def catchers_pass(programs, bugs):
    """Whether the tests of these bugs pass without a bug."""
    ok = True
    catchers = sorted({catcher._replace(says="") for bug in bugs for catcher in CATCHERS[bug]})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sound = pool.map(lambda catcher: (catcher, *run(programs, catcher, "")), catchers)
        for catcher, passed, output, seconds in sound:
            ok &= passed
            verdict = "passes" if passed else f"fails: {output[-2000:]}"
            print(f"{seconds:6.1f} s  {'no bug':28} {catcher} {verdict}", flush=True)
    return ok


def catch(programs, bug):
    """The bug's line in the table, and whether it was caught."""
    missed = []
    for catcher in CATCHERS[bug]:
        passed, output, seconds = run(programs, catcher, bug)
        if not passed and (found := re.search(catcher.says, output)):
            return True, f"{seconds:6.1f} s  {bug:28} {catcher}: {' '.join(found[0].split())}"
        missed.append(
            f"{'':11}{catcher} {'passes' if passed else 'fails otherwise: ' + output[-600:]}"
        )
    return False, "\n".join([f"{'survives':>8}  {bug}", *missed])


def main():
    if different := set(names()) ^ set(CATCHERS):
        sys.exit(
            f"{PATCHES} and the table of this script differ in: {', '.join(sorted(different))}"
        )
    named = sys.argv[1:]
    if named == ["--plant-only"]:
        plant()
        return
    # Before the copy changes: another run may be building it.
    if unknown := set(named) - set(CATCHERS):
        sys.exit(f"{PATCHES} has no {', '.join(sorted(unknown))}")
    plant()
    programs = build(needed(named) if named else ALL_TESTS)
    ok = catchers_pass(programs, named) if named else all_pass(programs)
    # A test that misses what it waits for is idle until its patience ends.
    with ThreadPoolExecutor(4 * os.cpu_count()) as pool:
        for caught, line in pool.map(lambda bug: catch(programs, bug), named or CATCHERS):
            ok &= caught
            print(line, flush=True)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
