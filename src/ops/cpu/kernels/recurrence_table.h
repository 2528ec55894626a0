// The entries of a RecurrenceKernels, in order.
update_state<Rule::plain>, update_state<Rule::delta>, update_state<Rule::lerp>,
    channel_scan, gated_block, convolve, silu_row, gate_row,
