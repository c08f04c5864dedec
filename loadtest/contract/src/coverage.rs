//! Which rows show which sentence of the contract. An item is a section and what it says; every text in backticks must be compared with by
//! one of the item's rows. A gate checks that each named row exists, that each row is named, and that each text is compared with.

/// The sentences of sections 1.0 to 1.6, 2.1, 2.2, 2.4, 3, 5 and 12 that one node can show, each with the rows that show it.
pub const COVERAGE: &[(&str, &[&str])] = &[
    // 1.0 Conventions
    (
        "1.0 JSON bodies are strict: unknown member, wrong type, no JSON: `invalid json: `",
        &[
            "an_unknown_member_is_refused",
            "a_member_of_the_wrong_type_is_refused",
            "a_body_that_is_not_json_is_refused",
            "a_patch_of_the_visibility_timeout_is_an_unknown_member",
            "an_attach_with_an_unknown_member_or_a_second_value_is_refused",
            "a_batch_that_is_not_the_json_it_should_be_is_refused",
            "a_batch_ack_that_is_not_the_json_it_should_be_is_refused",
        ],
    ),
    (
        "1.0 a second JSON value: `invalid json: multiple JSON values`",
        &["a_second_value_after_the_body_is_refused", "a_patch_with_a_second_value_is_refused"],
    ),
    (
        "1.0 oversize: 413 `request body too large` where the body is read first, 400 on attach",
        &[
            "a_create_over_1_mib_is_refused",
            "a_patch_over_1_mib_is_refused",
            "a_message_over_1_mib_is_refused",
            "an_attach_over_1_mib_is_a_bad_request",
        ],
    ),
    ("1.0 plain text: `404 page not found`", &["an_unknown_path_is_answered_in_plain_text", "a_head_of_an_unknown_path_has_no_body"]),
    (
        "1.0 plain text: 405 with Allow",
        &["a_known_path_with_another_method_says_what_it_allows", "a_head_of_a_path_that_only_takes_posts_is_not_allowed"],
    ),
    ("1.0 headers over 64 KiB: 431", &["headers_over_64_kib_are_refused", "many_header_lines_within_64_kib_are_taken"]),
    (
        "1.0 HEAD wherever GET; a HEAD on consume takes a lease",
        &["a_head_of_a_topic_is_its_description_without_a_body", "a_probe_may_be_a_head", "a_head_consume_takes_a_lease"],
    ),
    ("1.0 the guard is asked before the method", &["the_guard_is_asked_before_the_method"]),
    (
        "1.0 HTTP/1.1 on one connection",
        &[
            "a_connection_serves_one_request_after_another",
            "an_announced_body_is_asked_for",
            "a_refused_body_does_not_become_the_next_request",
            "bytes_that_are_not_http_are_refused",
            "a_chunked_body_is_a_message",
        ],
    ),
    (
        "0.1 #1 the cross-site guard: 415 without a sign of a program, a setting",
        &[
            "the_guard_refuses_in_json_and_without_effect",
            "the_guard_looks_at_post_put_and_patch_only",
            "each_sign_of_a_program_satisfies_the_guard_on_produce",
            "with_the_guard_off_a_bare_ack_is_taken",
        ],
    ),
    // 1.1 Topics
    (
        "1.1 create 201: every field and its default",
        &[
            "a_created_topic_is_answered_with_every_default",
            "a_created_topic_without_parent_omits_what_it_does_not_have",
            "zero_means_the_default_for_partitions_visibility_and_caps",
            "visibility_and_caps_are_taken_as_given",
            "created_at_is_in_seconds",
        ],
    ),
    (
        "1.1 create name: characters, length, dots",
        &[
            "a_name_is_required",
            "a_name_of_dots_alone_is_refused",
            "a_name_with_other_characters_is_refused",
            "a_name_of_letters_digits_dot_underscore_and_dash_is_taken",
            "a_name_of_200_bytes_is_taken",
        ],
    ),
    (
        "1.1 create partitions: 1 to 108",
        &[
            "one_partition_is_allowed",
            "a_topic_may_have_108_partitions",
            "more_partitions_than_the_maximum_are_refused",
            "negative_partitions_are_refused",
        ],
    ),
    (
        "1.1 create retention_ms: 0 or at least an hour",
        &["retention_zero_at_creation_keeps_for_ever", "the_shortest_finite_retention_is_an_hour", "negative_retention_is_refused"],
    ),
    (
        "1.1 create schema: object or true, version 1",
        &[
            "a_schema_at_creation_becomes_version_1",
            "a_schema_may_be_true",
            "a_schema_that_is_neither_object_nor_true_is_refused",
            "a_document_that_is_not_a_json_schema_is_refused",
        ],
    ),
    (
        "1.1 create parent: create and attach in one step",
        &[
            "a_topic_created_with_a_parent_is_its_child",
            "a_topic_created_with_a_parent_may_have_its_own_partition_count",
            "a_topic_created_with_a_parent_and_a_delay_carries_it",
        ],
    ),
    (
        "1.1 create fanout_delay_ms: needs parent, up to a year",
        &["a_delay_without_a_parent_is_refused", "a_delay_of_a_year_is_taken_and_a_longer_or_negative_one_refused"],
    ),
    ("1.1 create owner: accepted and ignored", &["an_owner_in_the_body_is_accepted_and_ignored"]),
    ("1.1 create 404 `topic not found` (parent missing)", &["an_unknown_parent_is_not_found_and_nothing_is_created"]),
    ("1.1 create 409 `topic already exists`", &["a_taken_name_is_refused"]),
    ("1.1 create 409: a failed attach rolls the create back: `fan-out role conflict`", &["a_failed_attach_rolls_the_create_back"]),
    ("1.1 create 409: `child schema incompatible with parent`", &["a_create_with_a_schema_under_a_parent_without_one_is_refused"]),
    ("1.1 create 409: `parent has reached the maximum number of children`", &["a_parent_takes_108_children_and_not_one_more"]),
    ("1.1 create 409: byte budget of schemas", &["a_history_over_4_mib_is_refused"]),
    ("1.1 create 415", &["a_create_without_content_type_is_refused"]),
    (
        "0.1 #14 `delay exceeds what the parent's retention can buffer`: create, patch, attach",
        &[
            "a_create_whose_delay_outlasts_the_parents_retention_is_refused",
            "a_retention_below_what_a_delayed_child_needs_is_refused",
            "an_attach_whose_delay_outlasts_the_parents_retention_is_refused",
        ],
    ),
    (
        "1.1 list: limit default 100, clamped to 1000, name order, token",
        &[
            "a_listing_has_topics_and_a_page_token",
            "a_listing_goes_on_after_the_token_in_bytewise_order",
            "a_token_of_a_deleted_topic_goes_on_after_where_it_was",
            "the_last_page_has_an_empty_token",
            "a_listed_topic_is_the_topic_object",
            "a_limit_over_1000_is_taken_as_1000",
            "a_parent_takes_108_children_and_not_one_more",
        ],
    ),
    ("1.1 list 400 `limit must be a positive integer`", &["a_limit_must_be_a_positive_integer"]),
    (
        "1.1 describe 200: Topic, schema_version, schema, partition_stats, partial",
        &[
            "a_description_has_the_topics_fields_and_one_entry_per_partition",
            "an_entry_of_an_empty_partition_has_every_number",
            "an_entry_shows_what_was_committed",
            "a_description_may_ask_for_one_partition",
        ],
    ),
    ("1.1 describe 400 `invalid partition`", &["a_description_of_a_partition_that_is_not_there_is_refused"]),
    (
        "1.1 describe 404 `topic not found`",
        &[
            "an_unknown_topic_is_not_described",
            "a_refusal_has_its_text_and_its_machine_readable_members",
            "a_topic_name_in_a_path_that_cannot_exist_is_not_found_or_refused",
        ],
    ),
    (
        "1.1 patch: fields, 0 is the default for caps",
        &[
            "a_patch_answers_the_changed_topic",
            "a_cap_of_zero_is_the_servers_default",
            "a_patched_retention_of_zero_keeps_for_ever",
            "a_patch_keeps_the_id_and_what_it_does_not_name",
            "a_partition_added_by_a_patch_takes_messages",
        ],
    ),
    (
        "1.1 patch 400: no field, partitions, retention, null schema, base version alone",
        &[
            "a_patch_without_a_field_is_refused",
            "partitions_only_grow_up_to_the_maximum",
            "a_patched_retention_below_an_hour_is_refused",
            "a_null_schema_is_refused",
            "a_schema_base_version_without_a_schema_is_refused",
        ],
    ),
    ("1.1 patch 404", &["an_unknown_topic_is_not_patched"]),
    ("1.1 patch 415", &["a_patch_without_content_type_is_refused"]),
    (
        "1.1 patch: applied in the order retention, caps, partitions, schema; earlier groups stay",
        &[
            "retention_stays_when_partitions_are_refused",
            "caps_stay_when_partitions_are_refused",
            "partitions_stay_when_the_schema_is_refused",
            "nothing_after_a_refused_retention_is_applied",
        ],
    ),
    (
        "1.1 patch: the same schema, or one that differs in annotations, makes no new version",
        &["the_same_schema_again_makes_no_new_version", "a_schema_that_differs_only_in_annotations_makes_no_new_version"],
    ),
    (
        "1.1 patch 409: schema_base_version: `topic changed since it was read`",
        &["another_schema_base_version_is_a_conflict", "a_matching_schema_base_version_is_taken"],
    ),
    (
        "1.1 delete 204 and 404",
        &[
            "a_deleted_topic_is_gone_at_once",
            "an_unknown_topic_is_not_deleted",
            "force_changes_nothing_for_a_topic_without_remote_children",
        ],
    ),
    (
        "1.1 schema route: versions oldest first, version 0 and none",
        &[
            "a_topic_without_schema_has_version_0_and_no_history",
            "the_history_of_a_schema_is_served_oldest_first",
            "an_unknown_topic_has_no_schema_history",
            "a_first_schema_may_come_by_patch",
        ],
    ),
    // 1.2 Children
    (
        "1.2 attach 200: the parent",
        &["an_attach_answers_the_parent", "children_are_listed_in_the_order_of_attachment", "an_attached_delay_is_shown_by_the_child"],
    ),
    ("1.2 attach 400 `child is required`", &["an_attach_without_a_child_is_refused"]),
    (
        "1.2 attach 400: itself, delay",
        &["a_topic_is_not_attached_to_itself", "an_attach_with_a_negative_delay_or_one_over_a_year_is_refused"],
    ),
    ("1.2 attach 404", &["an_attach_of_or_to_an_unknown_topic_is_not_found"]),
    ("1.2 attach 415", &["an_attach_without_content_type_is_refused"]),
    (
        "1.2 list: parent, parent_id, name, delay_ms, lag_messages, lag_complete",
        &[
            "a_listing_of_children_names_parent_delay_and_lag",
            "a_topic_without_children_lists_none",
            "the_lag_of_a_delayed_child_counts_what_is_held_back",
            "the_lag_of_a_child_returns_to_zero",
            "an_unknown_topic_lists_no_children",
        ],
    ),
    (
        "1.2 detach 204, 404 when not linked",
        &[
            "a_detached_child_is_standalone_and_keeps_its_messages",
            "a_pair_that_is_not_linked_is_not_found",
            "force_changes_nothing_for_a_local_child",
        ],
    ),
    // 1.3 Produce
    ("1.3 produce 202: empty, Content-Length `0`", &["a_produce_is_answered_202_without_a_body"]),
    ("1.3 produce: 1 B to 1 MiB", &["a_message_of_1_byte_is_taken", "a_message_of_1_mib_is_taken_and_served_whole"]),
    ("1.3 produce 400 `message required`", &["an_empty_message_is_refused"]),
    ("1.3 produce 400 `duplicate key query parameter`", &["a_repeated_key_is_refused"]),
    ("1.3 produce 400 `duplicate partition query parameter`", &["a_repeated_partition_is_refused"]),
    ("1.3 produce 400 `invalid partition: `", &["a_partition_that_is_not_there_is_refused", "odd_characters_in_a_refusal_stay_json"]),
    ("1.3 produce 400: bad percent-escape", &["a_bad_percent_escape_in_a_produce_is_refused"]),
    ("1.3 produce: unknown parameters are ignored", &["an_unknown_query_parameter_of_a_produce_is_ignored"]),
    ("1.3 produce: a partition wins over a key", &["a_partition_wins_over_a_key"]),
    ("1.3 produce 404", &["an_unknown_topic_takes_no_message"]),
    (
        "1.3 produce 409 `direct produce to a delayed child topic is not allowed`",
        &["a_delayed_child_takes_no_direct_produce", "an_immediate_child_takes_a_direct_produce"],
    ),
    ("1.3 produce 415", &["a_produce_that_a_web_page_could_send_is_refused"]),
    ("1.3 produce 400: schema", &["a_payload_that_matches_the_schema_is_taken", "a_payload_that_breaks_the_schema_is_refused"]),
    (
        "1.3 produce 429 `too many in-flight produce requests for this identity (limit 1 per node)`",
        &["too_many_produces_of_one_identity_are_refused"],
    ),
    (
        "1.3 keys: any bytes, base64 when not UTF-8, none when keyless",
        &[
            "a_key_is_served_with_its_message",
            "a_message_without_a_key_has_none",
            "an_empty_key_is_no_key",
            "a_key_may_hold_a_zero_byte",
            "a_key_may_hold_line_ends",
            "a_key_may_hold_quotes_and_backslashes",
            "a_key_may_hold_any_utf8",
            "a_plus_in_a_key_is_a_space",
            "a_key_that_is_not_utf8_is_served_as_base64",
        ],
    ),
    // 1.3 Batch produce
    ("1.3 batch 202 `{\"accepted\":2}`", &["a_batch_is_answered_202_with_the_count"]),
    (
        "1.3 batch bounds: 1 to 1000 messages, 16 MiB, 1 MiB each",
        &[
            "a_batch_of_1_is_taken",
            "a_batch_of_1000_is_taken",
            "a_batch_over_1_mib_is_taken",
            "a_payload_of_exactly_1_mib_is_taken_in_a_batch",
            "a_batch_body_over_16_mib_is_refused",
        ],
    ),
    ("1.3 batch 400 `key is set per message in a batch produce, not as a query parameter`", &["a_key_in_a_batchs_query_is_refused"]),
    (
        "1.3 batch 400 `partition is set per message in a batch produce, not as a query parameter`",
        &["a_partition_in_a_batchs_query_is_refused"],
    ),
    ("1.3 batch 400 `messages required`", &["an_empty_batch_is_refused"]),
    ("1.3 batch 400 `too many messages: more than 1000 (max 1000)`", &["a_batch_of_1001_is_refused"]),
    (
        "1.3 batch entry: payload as written, base64, key, key_encoding, partition",
        &[
            "a_batch_payload_is_stored_as_it_was_written",
            "a_batch_payload_string_keeps_its_quotes",
            "a_batch_payload_may_be_null",
            "a_base64_payload_is_stored_decoded",
            "a_base64_payload_may_be_any_bytes",
            "a_batch_entry_may_have_a_key",
            "a_batch_key_may_be_base64",
            "a_base64_key_that_is_text_is_served_as_text",
            "an_empty_batch_key_is_no_key",
            "a_batch_entry_may_name_its_partition",
            "a_batch_key_chooses_the_partition_as_a_single_one_does",
        ],
    ),
    (
        "1.3 batch: all or none, `message 1: ` names the first failure",
        &[
            "a_bad_partition_refuses_the_batch_and_names_the_message",
            "a_negative_partition_refuses_the_batch",
            "an_empty_payload_refuses_the_batch_and_names_the_message",
            "a_missing_payload_refuses_the_batch_and_names_the_message",
            "a_bad_base64_payload_refuses_the_batch",
            "an_unknown_payload_encoding_refuses_the_batch",
            "a_bad_base64_key_refuses_the_batch",
            "a_key_over_32_kib_refuses_the_batch",
            "a_schema_refusal_in_a_batch_names_the_message",
        ],
    ),
    ("1.3 batch 413 `message 1: message too large`", &["a_payload_over_1_mib_refuses_the_batch_and_names_the_message"]),
    (
        "1.3 batch: Content-Encoding zstd and gzip",
        &[
            "a_gzip_batch_is_taken",
            "a_zstd_batch_is_taken",
            "a_batch_that_does_not_decode_is_refused",
            "a_batch_that_decodes_to_over_16_mib_is_refused",
        ],
    ),
    ("1.3 batch 415 `unsupported Content-Encoding: want zstd, gzip or none`", &["another_encoding_of_a_batch_is_refused"]),
    ("1.3 batch 415", &["a_batch_without_content_type_is_refused"]),
    ("1.3 batch 404", &["an_unknown_topic_takes_no_batch"]),
    (
        "1.3 batch 503 `batch produce bodies in flight on this node are at their limit; retry`",
        &["a_batch_body_over_the_nodes_budget_is_refused_for_now"],
    ),
    // 1.3 Consume
    ("1.3 consume wait: Go durations, negative is 0", &["go_durations_are_understood", "a_negative_wait_is_none"]),
    ("1.3 consume 400 `invalid wait: `", &["a_wait_that_is_no_duration_is_refused"]),
    (
        "1.3 consume wait: clamped to `10s`, X-Narad-Wait-Clamped",
        &["a_wait_over_the_ceiling_is_clamped_and_said_so", "a_wait_within_the_ceiling_is_not_clamped"],
    ),
    ("1.3 consume partition: pinned", &["a_consume_may_be_pinned_to_a_partition"]),
    ("1.3 consume 400 `invalid partition: `", &["a_consume_of_a_partition_that_is_not_there_is_refused"]),
    ("1.3 consume 400 `invalid offset: must be >= 0`", &["a_negative_offset_is_refused", "an_offset_that_is_no_number_is_refused"]),
    ("1.3 consume 400 `partition required for replay-mode consume`", &["a_replay_needs_a_partition"]),
    ("1.3 consume 400: replay of a partition that is not there", &["a_replay_of_a_partition_that_is_not_there_is_refused"]),
    (
        "1.3 consume max: 1 to 100, the list shape, never waits to fill, at most 8 MiB",
        &[
            "a_batch_consume_answers_what_is_there_in_a_list",
            "a_batch_consume_takes_no_more_than_it_asked_for",
            "a_max_that_is_not_1_to_100_is_refused",
            "a_max_with_an_offset_is_refused",
            "a_batch_consume_answers_at_most_8_mib_and_returns_the_rest",
        ],
    ),
    ("1.3 consume 400 `batch consume requires an X-Narad-Client header`", &["a_batch_consume_without_the_client_header_is_refused"]),
    ("1.3 consume local_only", &["a_peers_probe_parameter_is_harmless"]),
    ("1.3 consume 204", &["an_empty_topic_answers_204"]),
    (
        "1.3 replay: no lease, no handle, 204 at the high watermark",
        &["a_replay_reads_without_a_lease", "a_replay_reads_what_was_acked", "a_replay_at_or_after_the_high_watermark_answers_204"],
    ),
    ("1.3 consume 404", &["an_unknown_topic_is_not_consumed", "an_unknown_topic_is_not_replayed"]),
    (
        "1.3 consume 429 `too many in-flight consume requests for this identity (limit 2 per node)`",
        &["too_many_consumers_of_one_identity_are_refused"],
    ),
    (
        "1.3 Message: members and their order",
        &["a_consumed_message_has_its_members_in_order", "a_consumed_message_with_encodings_has_its_members_in_order"],
    ),
    (
        "1.3 Message payload: JSON verbatim, else a string, else base64",
        &[
            "a_json_payload_is_served_as_it_was_sent",
            "a_number_too_large_for_a_float_is_served_as_it_was_sent",
            "an_escaped_json_string_is_served_as_it_was_sent",
            "json_null_is_served_as_null",
            "json_false_is_served_as_false",
            "deep_json_is_served_as_it_was_sent",
            "words_are_served_as_a_json_string",
            "two_json_texts_are_served_as_a_string",
            "broken_json_is_served_as_a_string",
            "control_characters_are_served_as_a_string",
            "text_that_looks_like_base64_is_served_as_a_string",
            "bytes_that_are_not_utf8_are_served_as_base64",
        ],
    ),
    // 1.3 Ack
    (
        "1.3 ack 204, a spent handle 410 `receipt handle no longer matches an active reservation`",
        &["an_acked_message_is_gone_and_its_handle_spent", "a_handle_never_handed_out_is_stale"],
    ),
    (
        "1.3 ack extend: absent, empty and false ack; true and 1 extend; 0 nacks",
        &[
            "an_empty_extend_is_an_ack",
            "an_extend_of_false_is_an_ack",
            "an_extend_of_true_keeps_the_handle",
            "an_extend_of_1_keeps_the_handle",
            "an_extended_lease_runs_anew_from_the_extend",
            "an_extended_lease_still_ends",
            "a_nacked_message_is_redeliverable_at_once_under_a_fresh_handle",
        ],
    ),
    ("1.3 ack 400 `invalid extend: want \"true\" (renew lease) or \"0\" (release for redelivery)`", &["another_extend_is_refused"]),
    (
        "1.3 ack order: unescape `invalid receipt_handle: `, missing, extend, syntax, topic",
        &[
            "a_handle_with_a_bad_escape_is_refused_first",
            "a_bad_extend_is_answered_before_a_malformed_handle",
            "a_malformed_handle_on_an_unknown_topic_is_malformed",
        ],
    ),
    ("1.3 ack 400 `receipt_handle required`", &["an_ack_without_a_handle_is_refused"]),
    ("1.3 ack 400 `receipt handle is malformed`", &["anything_but_three_decimals_is_a_malformed_handle"]),
    (
        "1.3 ack: first occurrence wins, unknown parameters ignored, escapes",
        &["the_first_of_two_handles_counts", "an_unknown_parameter_of_an_ack_is_ignored", "a_handle_may_be_percent_escaped"],
    ),
    ("1.3 ack 404 `topic not found`", &["a_well_formed_handle_on_an_unknown_topic_is_not_found"]),
    ("1.3 ack 415", &["an_ack_without_any_sign_of_a_program_is_refused", "an_ack_with_a_content_type_and_no_body_is_taken"]),
    (
        "1.3 batch ack 200: results in request order",
        &[
            "a_batch_ack_answers_each_handle_in_order",
            "a_handle_twice_in_a_batch_ack_is_spent_once",
            "a_batch_nack_releases_every_handle",
            "a_batch_extend_keeps_every_handle",
            "a_batch_ack_with_another_extend_is_refused",
            "a_batch_ack_of_an_unknown_topic_is_not_found",
        ],
    ),
    ("1.3 batch ack 400 `receipt_handles required`", &["a_batch_ack_without_handles_is_refused"]),
    ("1.3 batch ack 400 `too many receipt_handles: more than 100`", &["a_batch_ack_of_100_is_taken_and_of_101_refused"]),
    ("1.3 batch ack 413", &["a_batch_ack_over_64_kib_is_refused"]),
    // 1.4 Health and metrics
    ("1.4 healthz 200 `{\"status\":\"ok\"}`", &["a_living_node_says_ok"]),
    ("1.4 healthz 503 `{\"status\":\"shutting down\"}` and readyz 503 after SIGTERM", &["a_stopping_node_says_so"]),
    ("1.4 readyz 200 `ready`", &["a_ready_node_says_ready"]),
    ("1.4 metrics: Prometheus text", &["metrics_are_prometheus_text_under_our_prefix", "metrics_name_no_raw_path"]),
    // 1.6 Cluster
    ("1.6 members", &["a_node_alone_is_the_only_member"]),
    ("1.6 members in detail: node_status and the rest", &["a_member_in_detail_says_how_it_is", "what_was_set_aside_is_told_one_by_one"]),
    ("1.6 moves", &["on_a_node_alone_nothing_moves"]),
    ("1.6 decommission, dry run, cancel, forget: 404, 400", &["a_member_that_is_none_is_neither_taken_out_nor_forgotten"]),
    ("1.6 abort: 404", &["a_move_that_is_none_is_not_aborted"]),
    // 1.0 and who may what, with security on
    (
        "1.0 401 `authentication required`, WWW-Authenticate `Basic realm=\"narad\"`",
        &["a_request_without_credentials_is_asked_for_them", "wrong_credentials_are_answered_like_none"],
    ),
    ("1.0 exempt: healthz, readyz; 0.1 #11 metrics need credentials", &["probes_are_for_everybody_and_counters_for_users"]),
    ("1.0 401 before 415 before 405", &["credentials_are_asked_for_before_the_guard_and_the_guard_before_the_method"]),
    ("1.0 throttle: 429 `too many failed authentication attempts`", &["too_many_wrong_passwords_of_a_user_are_throttled"]),
    ("0 a tenant's users are user@tenant", &["the_default_tenant_needs_no_suffix_and_another_is_unknown"]),
    (
        "1.1 create needs `create`, the caller becomes the owner: `create not allowed on this topic`",
        &["to_create_a_topic_takes_the_grant_and_makes_its_owner"],
    ),
    ("1.1 list filtered by rights", &["a_list_is_filtered_to_what_the_caller_has_a_grant_on_or_owns"]),
    ("1.1 describe needs any grant: `no grant on this topic`", &["any_grant_shows_a_topic_and_no_grant_hides_it"]),
    (
        "1.1 patch and delete need manage: `only the topic owner or an admin may modify this topic`",
        &["only_the_owner_and_admins_change_a_topic"],
    ),
    ("1.2 attach needs both topics, detach either", &["an_attach_takes_both_topics_and_a_detach_either"]),
    ("1.3 produce needs `produce not allowed on this topic`", &["a_produce_takes_the_grant_before_anything_else_is_judged"]),
    ("1.3 consume and ack need `consume not allowed on this topic`", &["a_consume_and_an_ack_take_the_same_grant"]),
    ("1.6 cluster needs admin: `admin privileges required`", &["the_cluster_is_the_admins"]),
    // 1.5 Users
    (
        "1.5 user JSON, never the hash; root",
        &[
            "a_user_is_created_and_shown_without_a_word_of_the_password",
            "the_root_admin_says_so",
            "a_user_without_grants_shows_none",
            "users_are_listed_as_a_bare_array_in_name_order",
        ],
    ),
    ("1.5 create 409 `already exists`", &["a_users_name_is_taken_once"]),
    (
        "1.5 username, password, patterns: 400",
        &[
            "a_user_has_a_name_of_1_to_64_plain_characters",
            "a_password_has_1_to_72_bytes",
            "a_grant_has_patterns_unless_it_is_admin",
            "a_body_of_the_users_routes_is_strict_and_over_1_mib_a_bad_request",
        ],
    ),
    ("1.5 need admin: `admin privileges required`", &["users_are_the_admins"]),
    ("1.5 403 `cannot grant permissions you do not hold`", &["only_root_confers_admin"]),
    (
        "1.5 grants: replaces all, own and root's immutable",
        &["grants_are_replaced_whole_and_count_at_once", "nobody_changes_their_own_grants_nor_roots"],
    ),
    (
        "1.5 delete 204, 404, 403 `the root admin cannot be deleted`, `cannot delete your own account`",
        &["a_deleted_user_is_gone_and_root_and_oneself_stay"],
    ),
    (
        "1.5 password: 204, 403 `current password is incorrect`, root's only by root",
        &["a_user_changes_their_password_with_the_one_they_have", "an_admin_sets_passwords_but_roots_is_roots_own"],
    ),
    // 2 Errors
    (
        "2.2 `schema incompatible with previous version`",
        &["a_schema_that_refuses_what_was_valid_is_incompatible", "a_schema_may_gain_optional_properties_and_types"],
    ),
    ("2.4 409 `differs only in letter case`", &["a_name_that_differs_only_in_letter_case_is_refused"]),
    ("2.4 409 `topic changed since it was read`", &["another_schema_base_version_is_a_conflict"]),
    ("2.4 409 `delayed child topic is not allowed`", &["a_delayed_child_takes_no_direct_produce"]),
    ("2.4 400 `payload nests deeper than 256 levels`", &["a_payload_over_256_levels_is_refused_under_a_schema"]),
    ("2.4 400 `topic name is 201 bytes; new topic names are limited to 200 bytes`", &["a_name_of_201_bytes_is_refused_with_its_length"]),
    ("2.4 429 `too many in-flight consume requests for this identity`", &["too_many_consumers_of_one_identity_are_refused"]),
    // 3 Message semantics
    (
        "3 partition choice: FNV-1a; keyless in rotation",
        &["a_key_chooses_the_partition_by_fnv_1a", "messages_without_key_go_round_the_partitions"],
    ),
    (
        "3 lease: lowest unresolved offset, caps",
        &[
            "offsets_of_a_partition_are_dense_from_0",
            "a_leased_message_is_not_handed_out_again",
            "the_cap_on_leases_holds_deliveries_until_an_ack",
            "the_cap_on_acks_ahead_holds_deliveries_and_no_acks",
            "an_ack_out_of_order_is_taken",
        ],
    ),
    ("3 expiry: a fresh nonce", &["an_expired_lease_is_handed_out_again_under_a_fresh_handle"]),
    (
        "3 receipt handle: carries no topic",
        &[
            "a_handle_of_another_topic_is_stale",
            "a_handle_of_a_partition_the_topic_lacks_is_stale",
            "a_handle_does_not_outlive_its_topics_incarnation",
        ],
    ),
    (
        "3 long poll: woken by commit, nack, deletion",
        &[
            "a_waiting_consumer_is_woken_by_a_produce",
            "a_waiting_pinned_consumer_is_woken_by_its_partition",
            "a_waiting_consumer_is_woken_by_a_nack",
            "a_waiting_consumer_is_woken_by_the_deletion_of_its_topic",
        ],
    ),
    (
        "3 schema: one JSON text, exponent, equal keys, size and depth of documents",
        &[
            "a_payload_that_is_not_one_json_text_is_refused_under_a_schema",
            "a_payload_with_an_exponent_over_1000_is_refused_under_a_schema",
            "the_last_of_two_equal_keys_is_validated",
            "a_schema_over_256_kib_is_refused",
            "a_schema_over_64_levels_is_refused",
        ],
    ),
    // 5 Fan-out
    (
        "5.1 roles are exclusive: `fan-out role conflict`",
        &["a_child_is_not_attached_twice", "a_child_takes_no_children", "a_parent_becomes_no_child"],
    ),
    (
        "5.1 schemas of parent and child: `child schema incompatible with parent`",
        &[
            "a_child_with_a_schema_its_parent_does_not_have_is_refused",
            "a_child_with_another_schema_than_its_parent_is_refused",
            "a_child_with_its_parents_schema_is_attached",
        ],
    ),
    ("5.1 `schema is parent-managed while attached to a fan-out parent`", &["an_attached_childs_schema_is_its_parents_matter"]),
    (
        "5.2 what a link copies",
        &[
            "a_link_copies_key_payload_and_id",
            "a_link_copies_nothing_from_before_the_attach",
            "the_attach_point_is_the_high_watermark_of_each_parent_partition",
            "a_keyed_message_is_hashed_onto_the_childs_partitions",
        ],
    ),
    ("5.3 delay", &["a_delayed_child_gets_the_message_in_the_end"]),
    (
        "5.5 epochs and incarnations",
        &[
            "a_link_attached_again_has_a_new_epoch_and_copies_nothing_from_between",
            "a_detached_child_may_be_deleted_and_attached_elsewhere",
            "a_recreated_topic_has_a_new_id_and_none_of_the_old_messages",
            "deleting_a_parent_makes_its_children_standalone",
            "deleting_a_child_unlinks_it_from_its_parent",
        ],
    ),
    // 12 Additions
    (
        "12 wait_for: wal, commit, else 400",
        &[
            "a_produce_that_waits_for_the_commit_is_told_where_it_is",
            "a_produce_that_waits_for_the_wal_is_answered_as_usual",
            "another_wait_for_is_refused",
            "a_batch_that_waits_for_the_commit_has_one_result_per_message",
            "a_batch_that_waits_for_the_commit_is_checked_whole_first",
            "a_produce_that_waits_for_the_commit_is_refused_as_any_other",
        ],
    ),
    (
        "12 Veena-Header and headers: names, values, bounds, traceparent",
        &[
            "a_messages_headers_are_served_in_lower_case",
            "a_message_without_headers_has_none",
            "a_trace_context_is_stored_with_the_message",
            "a_batch_entry_may_have_headers",
            "a_header_name_of_64_bytes_is_taken_and_a_longer_or_odd_one_refused",
            "a_repeated_header_is_refused",
            "a_header_value_that_is_not_printable_ascii_is_refused",
            "thirty_two_headers_are_taken_and_one_more_refused",
            "headers_over_8_kib_in_all_are_refused",
        ],
    ),
    (
        "12 dedup_window_ms",
        &[
            "a_dedup_window_is_at_most_an_hour",
            "a_topics_additional_settings_have_defaults",
            "an_idempotency_key_ends_with_its_window",
            "a_topic_whose_window_is_0_takes_idempotency_keys_and_remembers_none",
        ],
    ),
    (
        "12 Idempotency-Key and idempotency_key, Veena-Replayed, idempotency_key_reused",
        &[
            "a_produce_under_an_idempotency_key_is_answered_as_usual_and_is_visible_by_then",
            "a_repeat_under_an_idempotency_key_is_stored_once_and_gets_the_first_answer",
            "an_idempotency_key_of_another_message_is_refused",
            "a_message_that_was_refused_leaves_no_idempotency_key",
            "an_idempotency_key_is_no_ones_in_a_topic_that_was_created_again",
            "an_idempotency_key_has_1_to_255_printable_characters",
            "the_idempotency_key_chooses_the_partition_when_the_message_has_no_key",
            "a_repeated_batch_of_idempotency_keys_is_stored_once",
            "each_message_of_a_batch_that_waits_has_the_outcome_of_its_idempotency_key",
            "a_batch_is_refused_for_an_idempotency_key_only_if_nothing_of_it_was_stored",
            "the_idempotency_keys_of_a_batch_are_in_its_entries",
        ],
    ),
    ("12 retention_bytes", &["a_retention_by_size_is_at_least_64_mib"]),
    ("12 reroute", &["reroute_is_auto_or_never"]),
    ("12 id", &["a_message_keeps_its_id_from_delivery_to_delivery", "two_messages_have_two_ids", "a_link_copies_key_payload_and_id"]),
    ("12 delivery_count", &["deliveries_are_counted_from_1", "a_replay_counts_no_delivery"]),
    (
        "12 code, effect, retryable, retry_after_ms, instance; headers where the answer is plain text",
        &[
            "a_refusal_has_its_text_and_its_machine_readable_members",
            "a_refusal_that_a_repeat_may_lift_says_when",
            "two_refusals_have_two_instances",
            "an_unknown_path_is_answered_in_plain_text",
        ],
    ),
    ("12 key length: 32 KiB", &["a_key_of_32_kib_is_taken_and_a_longer_one_refused", "a_key_over_32_kib_refuses_the_batch"]),
    ("12 X-Veena-Client", &["either_client_header_satisfies_the_guard"]),
];

/// What the sections say and this table does not show, and why: it takes a second node, a remote cluster, a fault, or hours.
pub const NOT_ON_ONE_NODE: &[(&str, &str)] = &[
    ("1.0 budget of failed checks of the whole node; caches and computations at once", "other rows would be throttled: see `veena-auth`"),
    ("1.0 500 authentication unavailable", "takes a stored hash that is damaged"),
    ("1.5 403 caller unknown to the leader, only the owner of topic", "takes a node that is behind its leader: see `metastore::state`"),
    ("1.0 proxied bodies keep their content type and carry X-Content-Type-Options", "no body is proxied: other nodes are asked over QUIC"),
    ("1.0 open connections 4096; read, write and idle timeouts", "takes thousands of connections or waits on the clock"),
    ("1.0 500 internal server panic", "takes a bug"),
    ("1.1 create and patch 503 without a leader; every live member is being decommissioned", "one node is its own leader and cannot drain"),
    ("1.1 a create on a forming cluster waits for members", "takes a cluster"),
    ("1.1 409 topic changed since it was read, on create and delete", "takes two writers and a delay between read and commit"),
    ("1.1 patch 409: 1000 schema versions", "takes a thousand commits; the bound by bytes is shown instead"),
    ("1.1 describe partial, owner_node of others, owner_unavailable, owner_liveness", "takes an owner that is down: see `veena::moves`"),
    ("1.1 describe 503 replica not caught up, 421", "takes a cluster"),
    ("1.1 delete force with remote children, 409", "takes a remote cluster"),
    ("1.1 patch of a remote child's stub, retention of the parent of remote children", "takes a remote cluster"),
    ("1.2 remote form of attach; paused, state and the like in the listing", "takes a remote cluster"),
    ("1.2 attach 503: owners cannot be asked; lag_complete false", "takes an owner that is down: see `broker::queue_anywhere`"),
    ("1.3 produce 409 remote child lives on a remote", "takes a remote cluster"),
    ("1.3 produce 500 produce failed", "takes a failed sync"),
    ("1.3 produce 503 draining; no schema-validation slot in 5 s", "takes a cluster: see `veena::moves`; or a core kept busy for seconds"),
    ("1.3 consume 410 below the oldest retained or unreadable", "takes an hour of retention, or damage on the disk"),
    ("1.3 consume 421, 500, 502, 503 owner is down", "takes an owner that moves, fails or is down: see `broker::queue_anywhere`"),
    ("1.3 consume payload null for an empty message", "no produce takes an empty message"),
    ("1.3 ack 409 remote stub, 421, 503 acked-ahead full (v2 only)", "takes a remote cluster, or a move; the last is not answered in v3"),
    ("1.3 batch ack: one request per owner, 2 s each", "takes a second owner: see `broker::queue_anywhere`"),
    (
        "1.4 readyz 503 metastore: node is not ready, and degraded",
        "takes a node without leader: see `veena::cluster`; or an expired certificate",
    ),
    ("1.4 metrics on http.metrics_addr; pprof", "a listener of its own, not the server of this table"),
    (
        "1.6 status_error, decommission_blocked, a move with worker and worker_error, 204, 202, 409, 503",
        "takes several nodes: see `veena::moves`, `api::cluster`",
    ),
    (
        "2.3 owner known dead; not applied; may have been applied; client went away",
        "takes a second node that owns the partition: see `api::problem`",
    ),
    ("2.4 503 being decommissioned and takes no new produce", "one node cannot drain: see `veena::moves`"),
    ("2.4 503 schema validation slot", "takes a core kept busy for seconds"),
    ("2.4 503 the change may still be applied", "takes a leader lost between proposal and commit: see `consensus::cluster::writes`"),
    ("5.4 replica placement", "takes a second node"),
    ("12 dedup_window_full: 64 MiB of keys", "takes 419,430 messages to one partition; `broker::keys` shows it with a lower bound"),
    ("12 batch with wait_for=commit: a result with an error", "takes an owner that is down: see `broker::owners`"),
];
