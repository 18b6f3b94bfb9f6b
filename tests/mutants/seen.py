"""What the judge sees of wrong kernels, of those for which no known mistake has the name.

Read one by one when they were written down: each says what was changed in the kernel.
"""

# By cause the kernels that it is seen in, by their names the problems.
_BY_CAUSE = {
    "EDGE-NOT-MASKED": {
        "y_written_past_the_end": "p02",
        "k_read_past_the_end": "p03 p04",
        "out_written_past_the_end": "p03 p04 p05 p06 p07",
        "lse_written_past_the_end": "p03 p04 p05 p06 p07",
        "tiles_read_past_the_end": "p08",
        "gradient_written_past_the_end": "p08 p09",
    },
    "KEYS-COUNTED-TWICE": {
        "diagonal_tile_counted_twice": "p06",
        "full_tile_counted_twice": "p06",
        "window_not_begun_at_a_tile": "p06",
        "sinks_up_to_the_window_visited_twice": "p07",
        "chunks_without_an_end": "p09",
        "window_pairs_of_sinks_counted_twice": "p09",
    },
    "DELTA-SCALED": {"half_of_delta": "p08"},
    "HEADS-APART": {
        "dout_moved_by_the_strides_of_q": "p08",
        "dout_of_the_first_head_of_the_group": "p08",
        "dout_of_the_kv_head_for_dq": "p08",
        "lse_of_batch_0_for_dq": "p08",
    },
    "HEADS-NEVER-COMPUTED": {
        "one_head_of_each_group": "p05",
        "sections_left_out_of_the_grid": "p05",
    },
    "KEYS-AFTER-THE-QUERY": {
        "diagonal_tile_not_masked": "p04",
        "diagonal_begins_one_tile_late": "p06",
        "diagonal_forgotten": "p06",
        "diagonal_tiles_not_masked": "p06",
        "window_or_causal": "p06",
        "sinks_not_causal": "p07",
        "diagonal_not_masked_for_dk_and_dv": "p08",
        "diagonal_not_masked_for_dq": "p08",
        "full_queries_begin_one_tile_early": "p09",
        "next_key_visible_for_dk_and_dv": "p09",
    },
    "KEYS-BEFORE-THE-WINDOW": {
        "edge_tiles_not_masked": "p06",
        "full_tiles_begin_at_the_window_of_the_first_query": "p06",
        "full_tiles_begin_one_tile_early": "p06",
        "window_from_the_first_query_of_the_tile": "p06",
        "sink_tiles_not_masked": "p07",
        "full_queries_end_one_tile_late": "p09",
        "full_queries_of_the_last_key": "p09",
        "window_ignored": "p09",
        "window_one_larger_for_dk_and_dv": "p09",
    },
    "HALF-ACCUMULATED": {"sum_kept_in_16_bits": "p02"},
    "KEYS-NEVER-VISITED": {
        "walk_ends_one_key_early": "p04",
        "walk_ends_at_the_query_tile": "p04",
        "walk_ends_one_tile_early": "p04 p06 p07",
        "walk_begins_at_the_window_of_the_last_query": "p06",
        "walk_begins_one_tile_late": "p06",
        "one_tile_of_sinks_at_the_most": "p07",
        "positions_taken_for_keys": "p07",
        "window_begins_one_tile_late": "p07",
        "last_queries_dropped": "p08",
        "queries_begin_one_tile_late": "p08",
        "queries_up_to_the_keys": "p08",
        "chunks_from_the_first_query": "p09",
        "dq_from_the_window_on": "p09",
        "queries_end_one_tile_early": "p09",
        "queries_of_the_last_key_forgotten": "p09",
    },
    "K-AND-V-APART": {"positions_taken_for_the_keys_of_v": "p07"},
    "LAST-COLUMNS-NEVER-READ": {"columns_counted_in_tiles": "p02"},
    "LAST-ROWS-LEFT-OUT": {"grid_rounded_down": "p03 p04 p05 p06 p07"},
    "LOOP-OVER-SEQLEN-Q": {"keys_counted_by_queries": "p03"},
    "MASK-INVERTED": {"mask_inverted": "p04"},
    "MASK-INSIDE-THE-TILE": {
        "mask_by_position_in_the_tile": "p04",
        "queries_by_position_in_the_tile": "p04",
    },
    "MASK-TOO-WIDE": {
        "rows_not_masked_when_loaded": "p02",
        "x_read_past_the_end": "p02",
        "v_read_past_the_end": "p06",
    },
    "MASK-TRANSPOSED": {"mask_transposed": "p04", "mask_of_dk_and_dv_transposed": "p08"},
    "OTHER-PAIRS": {"mask_transposed": "p01"},
    "MASKED-SCORES-NOT-HIDDEN": {"hidden_scores_zero": "p04", "scores_times_the_mask": "p04"},
    "NAN-FROM-INF-MINUS-INF": {"no_safe_maximum": "p06 p07"},
    "MAXIMUM-IN-ANOTHER-UNIT": {"maximum_not_scaled": "p03"},
    "OPERANDS-ROUNDED": {
        "fp32_operands_cast_to_fp16": "p03 p04 p05 p06 p07",
        "dv_in_fp16": "p08",
        "dq_in_fp16": "p09",
    },
    "ROWS-SCALED": {"divided_by_the_sum_twice": "p05"},
    "OUTPUT-SCALED": {"2_percent_off": "p02", "dk_scaled_twice": "p08"},
    "FIRST-KEY-TILE-ONLY": {"k_and_v_not_advanced": "p03"},
    "POINTER-STANDS-STILL": {
        "columns_by_position_in_the_tile": "p02",
        "w_not_advanced": "p02",
        "k_not_advanced": "p03 p04 p05 p06",
        "v_not_advanced": "p03 p04 p05 p06",
        "k_and_v_not_advanced": "p04 p05 p06",
    },
    "POINTER-WITHOUT-STRIDE": {
        "k_advanced_without_its_stride": "p03 p04 p05 p06",
        "v_advanced_without_its_stride": "p03 p04 p05 p06",
    },
    "PRODUCT-DISCARDED": {
        "dk_overwritten": "p08",
        "dq_overwritten": "p08",
        "dv_overwritten": "p08",
        "dv_not_accumulated": "p09",
    },
    "READ-OUTSIDE": {"batch_stride_of_q_for_k": "p05"},
    "REDUCED-OVER-QUERIES": {"sum_along_the_wrong_axis": "p03 p04 p05 p06 p07"},
    "ROWS-APART": {"delta_of_out_of_the_first_tile": "p08", "delta_of_the_first_tile_of_dk": "p08"},
    "ROWS-NEVER-STORED": {"query_tiles_counted_from_one": "p04"},
    "ROWS-STORED-TWICE": {
        "wrong_axis_of_the_grid": "p02 p03 p04 p05 p06 p07",
        "section_ignored": "p04",
    },
    "STORED-ELSEWHERE": {
        "lse_of_whole_tiles": "p03 p04 p05 p06 p07",
        "strides_of_q_for_out": "p03 p04 p05 p06 p07",
        "lse_of_all_batches_in_one": "p05",
        "query_read_by_the_kv_head": "p05",
        "delta_stored_without_its_batch": "p08",
    },
    "SUM-OUT-OF-RANGE": {
        "maximum_begins_at_zero": "p03",
        "safe_maximum_kept_as_the_running_one": "p06",
    },
    "TILE-OUTSIDE": {"batch_and_head_exchanged": "p05", "batch_counted_in_kv_heads": "p05"},
    "TILE-NUMBER-AS-ROW": {"block_size_forgotten": "p02 p03 p04 p05 p06 p07"},
    "TILE-NOT-TRANSPOSED": {"k_not_transposed": "p03"},
    "VISIBLE-KEYS-MASKED": {
        "window_counted_as_a_string_of_sinks": "p07",
        "one_sink_fewer_for_dk_and_dv": "p09",
    },
    "WRONG-KV-HEAD": {"groups_for_k_alone": "p05"},
    "WRONG-OPERAND": {"dp_of_k": "p08"},
    "WRONG-PRODUCT": {"dq_of_v": "p08", "dv_of_q": "p08"},
    "WRONG-STRIDE": {
        "dout_of_one_number_taken_to_be_dense": "p09",
        "stride_of_w_ignored": "p02",
        "stride_of_the_columns_ignored": "p02",
        "strides_of_x_ignored": "p02",
        "rows_of_k_taken_to_be_dense": "p03 p04 p05 p06 p07",
        "strides_of_k_for_v": "p03 p04 p05 p06 p07",
        "v_advanced_by_the_stride_of_k": "p03 p04 p05",
        "strides_of_dout_ignored": "p08",
        "strides_of_out_for_dout_in_delta": "p08",
    },
}
# The cause that is named by what was seen, by the id of the wrong kernel.
SEEN = {
    f"{problem}-{name}": cause
    for cause, kernels in _BY_CAUSE.items()
    for name, problems in kernels.items()
    for problem in problems.split()
}
# What may be named where all checks are judged: cases that a known mistake leaves as they are show
# the same in the kernel, and what is seen has a line.
IN_ALL_CHECKS = {
    "p03-grid_rounded_down": {"ROWS-NEVER-STORED"},
    "p01-q_scaled_in_place": {"OTHER-SCALE"},
    "p05-batch_stride_of_q_for_k": {"TILE-OUTSIDE"},
    "p03-batch_divided_by_one_head": {"STORED-ELSEWHERE"},
    "p03-k_and_v_not_advanced": {"POINTER-STANDS-STILL"},
    "p03-padded_keys_not_masked": {"PADDING-COUNTED"},
    "p03-padded_scores_of_zero": {"PADDING-COUNTED"},
    "p06-window_one_smaller": {"VISIBLE-KEYS-MASKED"},
    "p07-one_sink_fewer": {"VISIBLE-KEYS-MASKED"},
    "p07-one_sink_more": {"KEYS-BEFORE-THE-WINDOW"},
    "p07-window_one_larger": {"KEYS-BEFORE-THE-WINDOW"},
    "p07-window_one_smaller": {"VISIBLE-KEYS-MASKED"},
    "p09-batch_ignored": {"STORED-ELSEWHERE"},
    "p09-own_key_hidden": {"VISIBLE-KEYS-MASKED"},
    "p09-window_ignored": {"WINDOW-IGNORED"},
}
# Two loops show one mistake in two ways, in different cases; both are told.
TWO_NAMES = {
    "p09-full_queries_end_one_tile_late": {"KEYS-COUNTED-TWICE", "KEYS-BEFORE-THE-WINDOW"},
    "p09-full_queries_of_the_last_key": {"KEYS-COUNTED-TWICE", "KEYS-BEFORE-THE-WINDOW"},
    "p09-window_one_larger_for_dk_and_dv": {"KEYS-COUNTED-TWICE", "KEYS-BEFORE-THE-WINDOW"},
}
