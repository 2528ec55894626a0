// The entries of a Kernels table, by the names the kernel files give them.
// clang-format off: it takes the entries for one long expression
.decode_arithmetic = decode_arithmetic,
.prefill_arithmetic = prefill_arithmetic,
.decode_row_bytes = decode_row_bytes, .decode_pack = decode_pack,
.decode = decode, .tile_rows = kTileRows, .panel_rows = kPanelRows,
.tile_bytes = tile_bytes, .tile_pack = tile_pack,
.panel_columns = panel_columns, .panel_bytes = panel_bytes,
.panel_pack = panel_pack, .panel_multiply = panel_multiply,
.activate = activate, .term_dot = term_dot, .term_axpy = term_axpy,
.read_row = read_row,
