//! The laws every store keeps, in one table. A law is a plain async function that is given an empty store and
//! the clock that store was built with; it breaks by panicking. It compares whole records where it can, so
//! that a field nobody thought of is compared too. Laws know the verbs and nothing of what is behind them.
//!
//! Names: `i17_…` holds invariant 17, `trap6_…` a mistake that a peer made, the rest a rule of the product.

mod kit;

mod acts;
mod audit;
mod breaker;
mod death;
mod drawers;
mod edit;
mod enqueue;
mod groups;
mod hand_over;
mod import;
mod kv;
mod lease;
mod letters;
mod lives;
mod messages;
mod operations;
mod order;
mod poison;
mod queues;
mod reap;
mod redrives;
mod reply;
mod settle;
mod short_ids;
mod stats;
mod table;
mod verify;

use crate::clock::TestClock;
use redrive_core::store::{Store, VerifyRequest};
use std::pin::Pin;
use std::sync::Arc;

/// What a law is given.
#[derive(Clone, Copy)]
pub struct Stage<'a> {
    /// An empty store.
    pub store: &'a dyn Store,
    /// The clock that store asks.
    pub clock: &'a TestClock,
}

/// What a law does on a stage.
pub type Run = for<'a> fn(&'a Stage<'a>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// One law.
#[derive(Clone, Copy)]
pub struct Law {
    /// Its verb and name.
    pub name: &'static str,
    /// The law itself.
    pub run: Run,
}

impl std::fmt::Debug for Law {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Builds the table: every law once, under the name of its file and function. A law that is left out is dead
/// code, and the compiler says so.
macro_rules! laws {
    ($($verb:ident { $($law:ident,)+ })+) => {
        &[$($(Law {
            name: concat!(stringify!($verb), "::", stringify!($law)),
            run: |stage| Box::pin($verb::$law(stage)),
        },)+)+]
    };
}

/// Every law.
#[rustfmt::skip]
pub const LAWS: &[Law] = laws! {
    enqueue {
        a_message_is_kept_as_it_was_handed_in,
        i33_payload_bytes_are_bit_exact,
        the_queue_fills_in_what_is_not_said,
        an_unknown_queue_is_made_with_the_default_rules,
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
        i49_what_is_over_a_limit_is_refused_by_field,
        i38_a_drawer_cannot_be_enqueued_to,
        i38_no_queue_is_made_whose_drawer_is_a_queue,
    }
    lease {
        a_delivery_is_the_message_as_it_is_now,
        a_worker_may_say_for_how_long,
        absurd_requests_are_refused_by_field,
        an_unknown_queue_refuses_the_whole_call,
        i31_nothing_is_delivered_early,
        first_in_is_first_out_inside_a_priority,
        several_queues_are_served_as_one,
        no_more_than_asked_for,
        i49_no_more_bytes_than_can_be_sent,
        i29_each_priority_gets_its_share_of_31,
        i29_an_urgent_deadline_comes_first,
        trap18_an_aged_message_is_served,
        i16_a_leased_message_is_nobody_elses,
        i16_concurrent_workers_never_share,
        i17_i18_every_lease_has_a_new_secret_and_a_higher_number,
        i19_a_lost_lease_is_judged_by_whoever_leases_next,
        i24_i25_i26_lost_leases_count_and_end_in_the_drawer,
        a_paused_queue_grants_nothing_and_is_still_reaped,
        what_is_too_late_is_not_delivered,
        what_is_too_late_is_dropped_if_the_queue_says_so,
        trap7_a_leased_message_does_not_time_out,
        i23_long_leases_do_not_hide_expired_ones,
        wait_sees_due_work,
    }
    order {
        i30_one_at_a_time_in_the_order_of_enqueues,
        i30_whatever_their_priority_or_delay,
        i30_the_order_is_kept_through_retry,
        i30_keys_of_different_queues_are_strangers,
        i30_a_thousand_blocked_messages_hide_nobody,
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
        i28_a_released_probe_gives_its_place_back_and_a_lost_one_reopens,
        i28_more_than_half_of_the_window_opens_it,
        i28_old_results_do_not_count,
        i28_new_numbers_count_at_once,
        a_breaker_goes_by_header_or_payload,
        an_operator_opens_and_closes_a_breaker,
        a_new_key_starts_afresh,
    }
    poison {
        ten_in_a_row_are_poison_also_on_one_worker,
        five_in_a_row_over_two_workers_are_poison,
        a_cause_that_hits_many_is_not_their_poison,
        three_crashes_are_poison_and_the_neighbour_is_not,
        a_suspect_goes_to_an_idle_worker_and_nothing_beside_it,
        a_busy_worker_is_emptied_for_a_suspect_that_waits,
        trap2_a_redrive_forgets_the_crashes,
        a_quarantine_can_end_in_the_queue,
    }
    settle {
        an_acknowledged_message_is_done,
        a_failed_message_waits_for_its_retry,
        i17_a_stale_token_changes_nothing,
        i20_i22_too_late_is_too_late,
        i13_exactly_one_finaliser,
        i13_dead_is_as_final_as_done,
        i26_executions_never_exceed_max_attempts,
        a_message_may_have_a_limit_of_its_own,
        i27_every_delay_is_what_the_backoff_says,
        trap8_retry_after_is_bounded_and_counts,
        rules_and_words_decide_before_the_count,
        a_retry_that_would_come_too_late_is_not_made,
        trap9_release_and_snooze_give_the_attempt_back,
        i26_giving_back_has_an_end,
        i20_extending_never_shortens_and_ends_after_twelve_hours,
        i5_each_settlement_has_its_own_result,
    }
    reply {
        an_answer_goes_out_with_the_ack,
        a_bare_ack_and_an_answer_nobody_asked_for_send_nothing,
        every_death_sends_one_error_and_no_retry_does,
        who_was_given_back_too_often_and_poison_are_errors_too,
        what_is_dropped_too_late_is_an_error_with_its_own_status,
        who_takes_a_message_away_is_not_told_so,
        a_redriven_message_answers_after_all_or_dies_once_more,
        only_the_last_of_several_automatic_redrives_is_an_error,
        an_error_that_was_put_off_goes_out_once_nothing_is_planned,
        replies_are_not_turned_away_by_a_full_queue,
        i38_replies_cannot_go_to_a_drawer,
        a_reply_that_has_no_place_is_left_out_and_the_outcome_stands,
        i49_an_answer_that_is_too_large_changes_nothing,
        i5_each_answer_of_a_batch_finds_its_own_sender,
        progress_is_kept_through_retry_release_death_and_redrive,
    }
    death {
        i32_i33_a_death_is_one_whole_letter,
        i33_i49_history_keeps_its_first_and_last_ten,
        a_death_goes_to_the_drawer_of_its_route,
        trap2_trap3_a_retry_starts_again_and_forgets_nothing,
        a_retry_may_wait_for_its_time,
        success_after_a_retry_closes_the_letter,
        a_second_death_reopens_the_same_letter,
        the_timeline_says_where_a_letter_died_whoever_moved_it_since,
        trap1_a_redrive_obeys_the_rules_of_today,
        what_was_redriven_is_past_its_deadline_and_runs,
        i35_a_death_is_never_turned_away_and_only_a_rule_drops,
        i33_history_goes_on_over_generations,
    }
    reap {
        an_idle_store_has_nothing_to_reap,
        i23_a_pass_is_bounded_and_the_next_goes_on,
        i14_what_was_reaped_can_be_leased_again,
        quarantine_ends_in_review,
        i34_retention_counts_from_closing,
        i34_what_is_past_retention_is_neither_listed_nor_counted_before_it_is_removed,
        i48_retention_leaves_one_row_per_pass_and_exact_counts,
        a_process_that_comes_by_does_what_is_due,
        reopening_stops_retention,
        open_letters_expire_only_by_their_own_rule,
        keys_are_forgotten_after_their_window,
        i50_all_that_is_due_is_reaped_in_bounded_passes,
    }
    messages {
        messages_are_listed_as_they_are_in_the_order_of_ids,
        one_message_is_shown_with_its_failures,
        i49_pages_are_bounded_and_end,
        i49_a_walk_meets_everything_exactly_once,
        a_cursor_belongs_to_its_list,
        waiting_messages_can_be_taken_back,
        a_redriven_message_cannot_be_taken_back,
    }
    queues {
        rules_are_kept_as_they_were_set,
        rules_that_cannot_be_meant_are_refused_by_field,
        i38_a_drawer_is_never_a_queue,
        unknown_queues_are_said_to_be_unknown,
        new_rules_judge_the_next_failure,
        pause_halts_leasing_and_nothing_else,
        purge_removes_what_waits_and_nothing_else,
        i11_whatever_came_in_is_somewhere,
        i49_who_acts_is_named_within_bounds,
    }
    letters {
        i12_the_status_table_holds,
        an_act_changes_what_it_says_and_nothing_else,
        unknown_letters_are_said_to_be_unknown,
        a_version_that_moved_on_is_a_conflict,
        notes_can_be_left_in_every_status,
        i49_notes_are_bounded,
        i5_each_act_has_its_own_result,
        trap4_a_letter_is_sent_back_once,
        letters_are_listed_latest_death_first,
        drawers_count_their_letters_by_status,
        text_is_found_whether_it_is_in_an_index_or_not,
    }
    acts {
        trap1_another_queue_judges_by_its_own_rules,
        success_closes_the_letter_where_it_lies,
        a_letter_that_succeeded_keeps_its_numbers_and_can_die_again,
        a_retry_can_change_priority_and_attempts,
        trap2_trap3_a_retry_starts_afresh_and_stays_itself,
        i37_where_it_is_sent_must_be_a_queue_with_room,
        i28_the_breaker_of_the_other_queue_knows_it,
        i30_a_key_that_is_held_is_free_when_its_letter_dies_elsewhere,
        i41_what_is_done_under_its_key_is_not_run_again,
        a_letter_that_comes_back_too_often_is_for_a_person,
        i37_a_redrive_can_be_taken_back_until_it_is_leased,
        a_purged_letter_can_be_taken_back_for_a_day,
        trap11_what_is_purged_is_gone_after_its_time,
        a_held_letter_never_expires,
        a_snoozed_letter_is_hidden_from_consumers_until_then,
        owners_and_labels_stay_with_the_letter,
        i38_a_letter_moves_to_drawers_only,
        i48_a_row_tells_the_file_before_from_the_file_after,
    }
    drawers {
        a_leased_letter_is_the_letter_as_it_is_now,
        i16_the_oldest_death_first_and_each_once,
        i49_no_more_bytes_of_letters_than_can_be_sent,
        absurd_letter_requests_are_refused_by_field,
        a_letter_in_a_consumers_hands_is_nobody_elses,
        a_consumer_acts_by_its_token,
        a_refused_act_leaves_the_letter_in_the_consumers_hands,
        a_failing_consumer_lets_the_letter_rest_for_an_hour,
        a_released_letter_is_free_at_once,
        a_snoozed_letter_is_given_to_nobody_until_then,
        i20_extending_a_letter_never_shortens,
        i17_i22_a_stale_or_late_consumer_changes_nothing,
        i22_a_late_consumer_is_told_so_whoever_changed_the_letter,
        a_letters_token_is_no_messages_token,
        i5_each_return_has_its_own_result,
    }
    edit {
        i39_an_edit_keeps_what_it_replaces,
        i39_an_edit_is_delivered_and_the_original_can_be_had_back,
        i39_two_operators_edit_one_letter,
        content_changes_only_where_it_is_looked_at,
        a_patch_keeps_every_other_byte,
        i49_edits_are_bounded,
        i41_i42_an_edit_is_nothing_to_the_sender,
        an_erased_letter_is_a_tombstone,
        a_patch_that_fails_on_one_of_many_does_the_rest,
        i33_a_letter_comes_back_with_its_lineage,
        a_letter_in_a_consumers_hands_says_the_same,
        a_message_answers_to_the_breaker_of_what_it_says_now,
    }
    groups {
        a_group_is_all_failures_of_one_cause,
        i15_counts_are_exact_through_every_turn,
        i15_failures_count_whatever_becomes_of_the_message,
        outcomes_and_operators_teach_what_a_group_is,
        groups_that_vary_in_a_word_become_one_and_old_names_lead_to_it,
        groups_are_paged_in_their_order,
    }
    lives {
        the_table_of_a_groups_life,
        resolving_a_group_leaves_its_letters_alone,
        success_of_the_last_open_letter_resolves_and_the_next_death_brings_it_back,
        what_is_ignored_comes_back_when_its_time_or_count_is_over,
        i48_people_look_after_groups_and_the_trail_says_who,
        i15_groups_that_become_one_add_up_and_keep_what_was_said,
        groups_are_found_by_status_queue_owner_age_and_text,
        everything_about_one_group,
        i48_markers_are_moments_in_order,
    }
    operations {
        a_preview_says_what_would_be_touched,
        an_operation_freezes_then_runs_then_ends,
        i36_starting_twice_starts_once,
        i36_what_dies_after_the_preview_is_not_touched,
        trap4_what_dies_again_is_not_swept_in,
        i36_trap10_what_changed_since_the_freeze_is_skipped,
        i37_an_operation_can_be_halted_and_stopped,
        what_makes_no_sense_for_many_is_refused,
        an_operation_over_nothing_ends,
        every_act_for_many_works,
        i36_a_large_operation_goes_in_chunks,
        operations_are_listed_latest_first,
    }
    redrives {
        i36_an_outcome_is_written_when_the_message_settles,
        i36_only_a_redrive_waits_for_the_message,
        i37_a_canary_that_comes_back_halts_the_rest,
        i37_an_open_breaker_halts,
        i37_rate_and_what_is_under_way_are_bounded,
        i37_a_full_queue_is_waited_for,
        i37_what_has_not_begun_can_be_taken_back,
        what_was_closed_in_bulk_can_be_opened_again,
        a_member_says_why_it_was_left_alone,
        i36_a_token_starts_what_was_looked_at,
        a_preview_warns,
    }
    audit {
        i48_every_act_is_on_record_exactly_once,
        i48_work_leaves_no_rows,
        i48_the_chain_holds_and_knows_its_heads,
        the_trail_is_paged_latest_first,
        i48_a_trimmed_trail_is_still_proved,
        i48_what_is_young_is_not_trimmed_and_a_pass_is_bounded,
    }
    import {
        i33_a_letter_comes_back_as_it_left,
        a_letter_that_is_here_is_left_alone,
        a_letter_comes_to_a_store_that_knows_nothing_of_it,
        i38_a_letter_is_not_imported_into_a_drawer,
        an_export_is_oldest_first_and_without_what_is_only_this_stores,
        a_masked_letter_is_not_taken_for_the_letter,
        an_imported_death_keeps_its_number_where_that_keeps_the_order,
        an_imported_letter_stays_in_the_group_it_was_in,
        i48_who_is_shown_what_is_masked_is_on_record,
        what_was_in_flight_comes_back_pending,
        closed_letters_come_back_closed,
    }
    hand_over {
        a_letter_that_is_elsewhere_leaves_nothing_behind,
        what_belongs_here_stays,
        a_letter_that_left_can_come_back,
        i41_the_key_of_a_letter_that_left_says_dead,
    }
    short_ids {
        i49_a_short_id_finds_every_id_that_ends_in_it,
    }
    kv {
        a_value_is_written_only_over_what_was_read,
        namespaces_and_keys_are_apart,
        i49_values_are_bounded,
    }
    stats {
        an_empty_store_has_counted_nothing,
        work_is_counted_by_what_became_of_it,
        letters_are_counted_from_death_to_close,
        ends_without_work_are_counted_too,
        i49_too_many_kinds_are_counted_together,
        peaks_are_those_of_the_whole_store,
        i15_open_letters_are_counted_by_priority_kind_and_dlq,
        refusals_of_a_full_queue_are_counted,
    }
    verify {
        i11_i15_a_recount_walks_everything_and_finds_nothing,
        an_empty_store_is_whole,
        a_store_says_what_it_is_and_what_time_it_has,
    }
    table {
        i12_every_state_and_every_verb,
    }
};

/// Runs one law on a store made for it alone, and then recounts the store: whatever a law did, every counter,
/// index and chain must be right afterwards.
pub async fn run_law<F>(law: &Law, make: impl FnOnce() -> F)
where
    F: Future<Output = (Arc<dyn Store>, Arc<TestClock>)>,
{
    let (store, clock) = make().await;
    (law.run)(&Stage { store: &*store, clock: &clock }).await;
    let found = store.verify(VerifyRequest { deep: true, repair: false }).await.expect("verify answers");
    assert!(found.is_clean(), "{}: the store does not add up afterwards: {:#?}", law.name, found.findings);
}
