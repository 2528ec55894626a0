// What all layers of a step share: positions, cache slots, the way rows attend
// together, and the adapter scales of the rows. Built once a step.
#pragma once

#include "ops/graph/context.h"

#include <map>
#include <optional>
#include <vector>

namespace mlxcel::graph {

// Segments that attend in one call: `batch` of them, each of `rows` rows, with
// their keys padded to a common length.
struct AttentionGroup {
  int first_row = 0;
  int batch = 1;
  int rows = 1;
  int keys = 0;
  // The keys' slots: `keys` in a row from first_slot, or slots [batch * keys].
  int first_slot = 0;
  std::optional<mx::array> slots;
  // Which keys a row sees, bool [batch, 1, rows, keys]; null: all of them, or
  // with `causal` those up to the row itself.
  std::optional<mx::array> mask;
  bool causal = false;

  std::vector<int32_t> first_keys;  // a segment's first key's position
  std::vector<int32_t> positions;   // of the rows

  mx::array explicit_mask() const;  // also for `causal`
  // A key's position less the row's, f32 [batch, 1, rows, keys].
  mx::array distances() const;
  // Which keys are in sight of each head, bool [batch, heads, rows, keys].
  mx::array in_sight(const SparseBlocks& sparse, int heads) const;
};

class Plan {
 public:
  explicit Plan(const Step& step);
  bool describes(const Step& step) const;

  struct RowSegment {
    int first_row, num_rows;
    int64_t position, rope_length;
    std::vector<int32_t> blocks;
    std::vector<float> adapter_scales;

    explicit RowSegment(const Segment& segment);
    bool operator==(const RowSegment&) const = default;
    int64_t end() const {
      return position + num_rows;
    }
    int32_t slot(int64_t at) const;
  };

  // i32 [rows]: where the rows' keys and values go. Throws when a segment's
  // blocks do not cover it or lie outside the cache.
  const mx::array& slots(int num_blocks);
  // Whether every row is a segment of its own, in order.
  bool single_rows() const;
  // For single rows, i32 [1 + rows * (2 + W)]: W, then for each row its
  // position, its slot and the blocks of its sequence, W of them.
  const mx::array& table(int num_blocks);
  // f32 [rows, 1, 1]: QueryScaling::at each row's position.
  mx::array query_factors(const QueryScaling& scaling) const;
  const std::vector<AttentionGroup>& groups(const Window& window);

  // Run-time scales for the columns of a low-rank product, one adapter id a
  // column; null when they are zero in all rows.
  struct RowScales {
    mx::array scales;                 // f32 [rows, columns]
    std::optional<mx::array> active;  // bool [rows, 1]; null: every row
  };
  const RowScales* row_scales(const std::vector<int>& adapters);

  std::vector<RowSegment> segments;
  mx::array positions;  // i32 [rows]

 private:
  int num_rows_;
  int32_t last_block_ = -1;
  std::optional<mx::array> slots_, table_;
  std::map<Window, std::vector<AttentionGroup>> groups_;
  std::map<std::vector<int>, std::optional<RowScales>> scales_;
};

}  // namespace mlxcel::graph
