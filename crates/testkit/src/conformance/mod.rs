//! The laws that every store must keep, in one table. A law is a plain async function that receives an empty
//! store and the clock of that store, and fails by panicking. Laws compare whole records where possible, so
//! that every field is covered. They use only the public calls of a store and know nothing about its
//! implementation.
//!
//! Names: `i17_…` tests invariant 17, `trap6_…` guards against a bug that another queue had, and the others
//! test a rule of the product.

mod kit;

mod acts;
mod audit;
mod breaker;
mod changes;
mod death;
mod dlqs;
mod edit;
mod enqueue;
mod group_triage;
mod groups;
mod hand_over;
mod import;
mod kv;
mod lease;
mod letters;
mod messages;
mod operations;
mod order;
mod poison;
mod queues;
mod reap;
mod record;
mod redrives;
mod reply;
mod requests;
mod settle;
mod short_ids;
mod stats;
mod table;
mod verify;
mod workers;

use crate::clock::TestClock;
use redrive_core::store::{Store, VerifyRequest};
use std::pin::Pin;
use std::sync::Arc;

/// What a law receives.
#[derive(Clone, Copy)]
pub struct LawContext<'a> {
    /// An empty store.
    pub store: &'a dyn Store,
    /// The clock that the store uses.
    pub clock: &'a TestClock,
}

/// The function of a law.
pub type Run = for<'a> fn(&'a LawContext<'a>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// One law.
#[derive(Clone, Copy)]
pub struct Law {
    /// The module and the function name of the law.
    pub name: &'static str,
    /// The function of the law.
    pub run: Run,
}

impl std::fmt::Debug for Law {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Builds the table: every law once, named after its module and function. A law that is left out is dead
/// code, so the compiler reports it.
macro_rules! laws {
    ($($verb:ident { $($law:ident,)+ })+) => {
        &[$($(Law {
            name: concat!(stringify!($verb), "::", stringify!($law)),
            run: |ctx| Box::pin($verb::$law(ctx)),
        },)+)+]
    };
}

/// Every law.
#[rustfmt::skip]
pub const LAWS: &[Law] = laws! {
    enqueue {
        a_message_is_stored_as_sent,
        i33_payload_bytes_are_bit_exact,
        the_queue_policy_fills_in_defaults,
        an_unknown_queue_is_created_with_the_default_policy,
        i31_a_delayed_message_waits_as_scheduled,
        i41_same_key_same_body_is_one_message,
        i41_same_key_other_body_is_refused,
        i41_a_key_belongs_to_its_queue,
        i41_a_key_shows_where_its_message_is,
        i41_a_key_is_forgotten_after_its_window,
        i42_the_same_id_again_is_harmless,
        a_finished_message_leaves_nothing_behind,
        i41_concurrent_senders_make_one_message,
        a_full_queue_refuses_by_count,
        a_full_queue_refuses_by_bytes,
        i5_each_entry_has_its_own_result,
        i49_a_batch_that_is_too_large_is_refused_whole,
        i49_values_over_a_limit_are_refused_by_field,
        i38_a_dlq_cannot_be_enqueued_to,
        i38_no_queue_is_created_whose_dlq_is_a_queue,
    }
    lease {
        a_delivery_is_the_message_as_it_is_now,
        a_worker_may_choose_the_length_of_its_lease,
        invalid_lease_requests_are_refused_by_field,
        an_unknown_queue_refuses_the_whole_call,
        i31_nothing_is_delivered_early,
        first_in_is_first_out_inside_a_priority,
        several_queues_are_served_as_one,
        no_more_messages_are_leased_than_requested,
        i49_a_lease_returns_a_bounded_number_of_bytes,
        i29_each_priority_gets_its_share_of_31,
        i29_an_urgent_deadline_comes_first,
        trap18_an_aged_message_is_served,
        i16_a_leased_message_is_not_leased_again,
        i16_concurrent_workers_never_share,
        i17_i18_every_lease_has_a_new_secret_and_a_higher_number,
        i19_a_lost_lease_is_found_by_the_next_lease_call,
        i24_i25_i26_lost_leases_count_and_end_in_the_dlq,
        a_paused_queue_grants_nothing_and_is_still_reaped,
        an_expired_message_is_not_delivered,
        an_expired_message_is_dropped_if_the_policy_says_so,
        trap7_a_leased_message_does_not_time_out,
        i23_long_leases_do_not_hide_expired_ones,
        wait_reports_due_work,
    }
    order {
        i30_one_at_a_time_in_the_order_of_enqueues,
        i30_in_order_whatever_their_priority_or_delay,
        i30_the_order_is_kept_through_retry,
        i30_ordering_keys_of_different_queues_are_independent,
        i30_a_thousand_blocked_messages_hide_no_other_message,
        i30_cancel_and_purge_let_the_next_proceed,
        i30_after_a_death_the_next_proceeds,
        i30_a_held_key_waits_until_the_letter_is_closed,
        i30_a_held_key_lets_its_own_redrive_through,
        i30_two_letters_of_one_held_key_can_both_be_sent_back,
    }
    breaker {
        i28_an_open_breaker_holds_without_using_attempts,
        i28_k_probes_in_total_over_all_workers,
        i28_a_failed_probe_reopens_for_twice_as_long,
        i28_a_released_probe_can_be_repeated_and_a_lost_one_reopens,
        i28_failures_of_more_than_half_the_window_open_it,
        i28_old_results_do_not_count,
        i28_a_changed_breaker_policy_applies_at_once,
        a_breaker_key_can_be_a_header_or_a_payload_field,
        an_operator_opens_and_closes_a_breaker,
        changing_the_breaker_key_discards_the_old_breakers,
    }
    poison {
        ten_failures_in_a_row_are_poison_even_on_one_worker,
        five_failures_in_a_row_over_two_workers_are_poison,
        a_cause_shared_by_many_messages_is_not_poison,
        three_crashes_are_poison_and_messages_leased_alongside_are_not,
        a_suspect_is_leased_alone_to_an_idle_worker,
        a_busy_worker_is_drained_for_a_waiting_suspect,
        trap2_a_redrive_resets_the_crash_count,
        a_quarantine_can_end_in_the_queue,
    }
    settle {
        an_acknowledged_message_is_done,
        a_failed_message_waits_for_its_retry,
        i17_a_stale_token_changes_nothing,
        i20_i22_an_expired_lease_cannot_settle,
        i13_exactly_one_finaliser,
        i13_dead_is_as_final_as_done,
        i26_executions_never_exceed_max_attempts,
        a_message_may_set_its_own_attempt_limit,
        i27_every_delay_is_what_the_backoff_says,
        trap8_retry_after_is_bounded_and_counts,
        error_rules_and_overrides_decide_before_the_attempt_limit,
        a_retry_after_the_deadline_is_not_scheduled,
        trap9_release_and_snooze_give_the_attempt_back,
        i26_free_releases_are_limited,
        i20_extending_never_shortens_and_ends_after_twelve_hours,
        i5_each_settlement_has_its_own_result,
    }
    reply {
        a_reply_is_sent_with_the_ack,
        a_plain_ack_and_an_unrequested_reply_send_nothing,
        every_death_sends_one_error_reply_and_no_retry_does,
        messages_released_too_often_and_poison_send_error_replies,
        a_dropped_expired_message_sends_an_error_reply_with_its_own_status,
        cancel_and_purge_send_no_reply,
        a_redriven_message_sends_its_reply_or_another_error_reply,
        only_the_last_automatic_redrive_sends_an_error_reply,
        a_deferred_error_reply_is_sent_once_no_redrive_is_planned,
        a_full_queue_accepts_replies,
        i38_replies_cannot_go_to_a_dlq,
        a_reply_without_a_valid_queue_is_dropped_and_the_outcome_stands,
        i49_a_reply_that_is_too_large_changes_nothing,
        i5_each_reply_of_a_batch_goes_to_its_own_sender,
        progress_is_kept_through_retry_release_death_and_redrive,
    }
    death {
        i32_i33_a_death_makes_one_complete_letter,
        i33_i49_history_keeps_its_first_and_last_ten,
        a_letter_goes_to_the_dlq_of_its_route,
        trap2_trap3_a_retry_resets_attempts_and_keeps_the_history,
        a_retry_can_be_scheduled,
        success_after_a_retry_closes_the_letter,
        a_second_death_reopens_the_same_letter,
        the_timeline_says_where_a_letter_died_even_after_a_move,
        trap1_a_redrive_obeys_the_current_policy,
        a_redriven_message_runs_after_its_deadline,
        i35_a_dlq_never_refuses_a_letter_and_only_a_policy_drops_messages,
        i33_history_continues_over_generations,
    }
    reap {
        an_idle_store_has_nothing_to_reap,
        i23_a_pass_is_bounded_and_the_next_continues,
        i14_a_reaped_message_can_be_leased_again,
        quarantine_ends_in_review,
        i34_retention_counts_from_closing,
        i34_letters_past_retention_are_neither_listed_nor_counted,
        i48_retention_leaves_one_row_per_pass_and_exact_counts,
        tidy_does_what_is_due,
        reopening_stops_retention,
        open_letters_expire_only_by_the_open_ttl,
        keys_are_forgotten_after_their_window,
        i50_all_that_is_due_is_reaped_in_bounded_passes,
    }
    messages {
        messages_are_listed_in_the_order_of_ids,
        one_message_is_shown_with_its_failures,
        i49_pages_are_bounded_and_end,
        i49_paging_returns_every_item_exactly_once,
        a_cursor_belongs_to_its_list,
        waiting_messages_can_be_cancelled,
        a_redriven_message_cannot_be_cancelled,
    }
    queues {
        a_policy_is_stored_as_configured,
        an_invalid_policy_is_refused_by_field,
        i38_a_dlq_is_never_a_queue,
        unknown_queues_are_refused,
        a_new_policy_applies_to_the_next_failure,
        pause_stops_only_leasing,
        purge_removes_only_waiting_messages,
        i11_every_enqueued_message_is_counted_somewhere,
        i49_actor_names_are_bounded,
    }
    letters {
        i12_the_status_table_holds,
        an_act_changes_only_what_it_names,
        unknown_letters_are_refused,
        an_outdated_version_is_a_conflict,
        notes_can_be_added_in_every_status,
        i49_notes_are_bounded,
        i5_each_act_has_its_own_result,
        trap4_a_letter_is_redriven_once,
        letters_are_listed_latest_death_first,
        dlqs_count_their_letters_by_status,
        text_is_found_with_and_without_an_index,
    }
    acts {
        trap1_a_redrive_to_another_queue_follows_its_policy,
        success_in_another_queue_closes_the_letter_in_its_own,
        a_letter_that_succeeded_keeps_its_counters_and_can_die_again,
        a_retry_can_change_priority_and_attempts,
        trap2_trap3_a_retry_resets_counters_and_keeps_the_identity,
        i37_the_destination_must_be_a_queue_with_room,
        i28_a_redrive_to_another_queue_obeys_its_breaker,
        i30_a_held_key_is_freed_when_its_letter_dies_in_another_queue,
        i41_work_done_under_its_key_is_not_run_again,
        a_letter_redriven_too_often_goes_to_review,
        i37_a_redrive_can_be_pulled_back_until_it_is_leased,
        a_purged_letter_can_be_restored_for_a_day,
        trap11_a_purged_letter_is_removed_after_its_time,
        a_held_letter_never_expires,
        a_snoozed_letter_is_hidden_from_consumers,
        owners_and_labels_stay_with_the_letter,
        i38_a_letter_moves_only_to_dlqs,
        i48_an_audit_row_fingerprints_the_record_before_and_after,
    }
    dlqs {
        a_leased_letter_is_the_letter_as_it_is_now,
        i16_letters_are_leased_once_and_oldest_death_first,
        i49_a_letter_lease_returns_a_bounded_number_of_bytes,
        invalid_letter_lease_requests_are_refused_by_field,
        others_cannot_act_on_a_leased_letter,
        a_consumer_acts_by_its_token,
        a_refused_act_keeps_the_consumers_lease,
        a_letter_rests_for_an_hour_after_its_consumer_fails,
        a_released_letter_is_free_at_once,
        a_letter_snoozed_by_its_consumer_is_not_leased_until_then,
        i20_extending_a_letter_never_shortens,
        i17_i22_a_stale_or_late_consumer_changes_nothing,
        i22_a_late_consumer_is_refused_even_after_others_changed_the_letter,
        a_letter_token_cannot_settle_a_message,
        i5_each_letter_settlement_has_its_own_result,
    }
    edit {
        i39_an_edit_keeps_what_it_replaces,
        i39_an_edit_is_delivered_and_the_original_can_be_restored,
        i39_two_operators_edit_one_letter,
        content_can_be_edited_only_in_open_statuses,
        a_patch_keeps_every_other_byte,
        i49_edits_are_bounded,
        i41_i42_an_edit_does_not_change_deduplication,
        an_erased_letter_is_a_tombstone,
        a_bulk_patch_that_fails_on_one_letter_is_applied_to_the_rest,
        i33_an_imported_letter_keeps_its_revisions,
        only_the_consumer_can_edit_a_leased_letter,
        an_edited_message_uses_the_breaker_of_its_new_content,
    }
    groups {
        a_group_is_all_failures_of_one_cause,
        i15_counts_are_exact_after_every_act,
        i15_failures_count_whatever_becomes_of_the_message,
        outcomes_and_operators_set_the_category_of_a_group,
        groups_that_differ_in_one_word_merge_and_old_ids_still_work,
        groups_are_paged_in_their_order,
    }
    group_triage {
        the_group_status_table_holds,
        resolving_a_group_leaves_its_letters_alone,
        success_of_the_last_open_letter_resolves_a_group_until_the_next_death,
        an_ignored_group_returns_when_its_time_or_count_is_over,
        i48_acts_on_groups_are_in_the_audit_trail,
        i15_merged_groups_add_up_and_keep_their_notes,
        groups_are_found_by_status_queue_owner_age_and_text,
        group_detail_is_complete,
        i48_markers_are_listed_in_order,
    }
    operations {
        a_preview_says_what_would_be_touched,
        an_operation_freezes_then_runs_then_ends,
        i36_starting_twice_starts_once,
        i36_letters_that_die_after_the_preview_are_not_touched,
        trap4_a_letter_that_dies_again_is_not_redriven_twice,
        i36_trap10_letters_changed_since_the_freeze_are_skipped,
        i37_an_operation_can_be_paused_and_cancelled,
        invalid_and_unknown_operations_are_refused,
        an_operation_without_members_ends,
        every_bulk_act_works,
        i36_a_large_operation_runs_in_chunks,
        operations_are_listed_latest_first,
    }
    redrives {
        i36_an_outcome_is_written_when_the_message_settles,
        i36_only_a_redrive_waits_for_the_message,
        i37_a_failing_canary_pauses_the_operation,
        i37_an_open_breaker_pauses_the_operation,
        i37_rate_and_messages_in_flight_are_bounded,
        i37_an_operation_waits_for_a_full_queue,
        i37_redriven_messages_not_yet_leased_can_be_undone,
        a_bulk_close_can_be_undone,
        a_skipped_member_has_a_reason,
        i36_a_token_starts_only_what_was_previewed,
        a_preview_lists_warnings,
    }
    audit {
        i48_every_act_is_on_record_exactly_once,
        i48_ordinary_work_writes_no_audit_rows,
        i48_the_chain_verifies_and_recognises_its_heads,
        the_trail_is_paged_latest_first,
        i48_a_trimmed_trail_still_verifies,
        i48_recent_rows_are_not_trimmed_and_a_pass_is_bounded,
    }
    import {
        i33_an_exported_letter_is_imported_unchanged,
        import_does_not_overwrite_an_existing_letter,
        import_creates_the_queue_and_the_group,
        i38_a_letter_whose_queue_is_a_dlq_is_not_imported,
        an_export_is_oldest_first_and_omits_local_state,
        a_masked_letter_is_not_imported,
        an_imported_death_keeps_its_number_if_the_order_allows,
        an_imported_letter_stays_in_its_group,
        i48_disclosures_are_in_the_audit_trail,
        a_letter_in_flight_is_imported_as_pending,
        closed_letters_are_imported_closed,
    }
    hand_over {
        a_handed_over_letter_leaves_nothing_behind,
        letters_in_use_are_not_handed_over,
        a_handed_over_letter_can_be_imported_again,
        i41_the_key_of_a_handed_over_letter_stays_dead,
    }
    short_ids {
        i49_a_short_id_finds_every_id_that_ends_in_it,
    }
    kv {
        a_value_is_written_only_over_the_expected_version,
        namespaces_and_keys_are_separate,
        a_list_has_the_entries_of_a_prefix_in_the_order_of_keys,
        i49_a_list_returns_a_bounded_number_of_bytes,
        i49_values_are_bounded,
    }
    record {
        i48_an_act_beside_the_verbs_is_on_record,
        i48_an_act_and_its_values_are_one_change,
        i48_an_act_whose_values_have_changed_is_not_recorded,
        i49_a_recorded_act_is_bounded,
    }
    changes {
        every_change_is_named_once,
        operations_breakers_markers_and_values_are_named,
        what_is_refused_or_only_read_changes_nothing,
        a_position_of_another_process_means_everything,
    }
    workers {
        whoever_leases_is_listed_with_what_is_in_hand,
        a_worker_is_known_for_as_long_as_it_reports,
        consumers_of_letters_are_workers,
        i49_a_worker_lists_a_bounded_number_of_leases,
    }
    requests {
        i42_an_act_with_a_request_key_happens_once,
        i42_a_request_key_with_another_request_is_refused,
        i42_a_refused_call_can_be_repeated_with_its_key,
        i42_every_audited_call_takes_a_request_key,
        i42_a_request_key_is_forgotten_after_its_window,
        i49_request_keys_are_bounded,
    }
    stats {
        an_empty_store_has_counted_nothing,
        work_is_counted_by_outcome,
        letters_are_counted_from_death_to_close,
        messages_that_end_without_work_are_counted,
        i49_kinds_over_the_limit_are_counted_together,
        peaks_are_those_of_the_whole_store,
        i15_open_letters_are_counted_by_priority_kind_and_dlq,
        refusals_of_a_full_queue_are_counted,
    }
    verify {
        i11_i15_a_recount_reads_everything_and_finds_no_mismatch,
        an_empty_store_verifies,
        info_names_the_backend_and_the_time,
    }
    table {
        i12_every_verb_in_every_state,
    }
};

/// Runs one law on a store made for it alone, and then verifies the store: whatever the law did, every
/// counter, index and audit chain must be right afterwards.
pub async fn run_law<F>(law: &Law, make: impl FnOnce() -> F)
where
    F: Future<Output = (Arc<dyn Store>, Arc<TestClock>)>,
{
    let (store, clock) = make().await;
    (law.run)(&LawContext { store: &*store, clock: &clock }).await;
    let found = store.verify(VerifyRequest { deep: true, repair: false }).await.expect("verify succeeds");
    assert!(found.is_clean(), "{}: the store fails verification afterwards: {:#?}", law.name, found.findings);
}
