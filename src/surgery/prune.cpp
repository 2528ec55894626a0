// prune: zeros in place of a structure. Shapes stay. Only tensors that the
// pattern hits change; a packed tensor's codes stay and its scales and biases
// become zero.
#include "core/error.h"
#include "core/log.h"
#include "surgery/planner.h"

#include <algorithm>
#include <set>

namespace mlxcel {

namespace {

using Span = std::pair<int64_t, int64_t>;

// [id * width, (id + 1) * width) from `first` on, neighbours joined.
std::vector<Span> spans_of(
    const std::vector<int64_t>& ids, int64_t width, int64_t first) {
  std::vector<Span> out;
  for (int64_t id : ids) {
    int64_t begin = first + id * width;
    if (!out.empty() && out.back().second == begin) {
      out.back().second = begin + width;
    } else {
      out.emplace_back(begin, begin + width);
    }
  }
  return out;
}

void check_range(
    const Planner& planner,
    int64_t count,
    const std::string& what,
    const std::string& where = "") {
  int64_t last = planner.operation().ids.back();
  if (last >= count) {
    planner.fail(
        cat(what, " ", last, where, " does not exist: there are ", count),
        cat("ids run from 0 to ", count - 1));
  }
}

// Zeros whole rows of the matched tensors of a stem: weight and bias alike, and
// for a packed weight its scales and biases.
void zero_rows(
    Planner& planner, const std::string& key, const std::vector<Span>& rows) {
  auto [stem, suffix] = split_key(key);
  if (suffix != "weight" || !planner.packed(stem)) {
    planner.add(key, zero_edit({rows, {}}));
    return;
  }
  if (!planner.has(stem, ".biases")) {
    planner.add(key, zero_edit({rows, {}}));  // code 0 is the value 0
    return;
  }
  planner.add(cat(stem, ".scales"), zero_edit({rows, {}}));
  planner.add(cat(stem, ".biases"), zero_edit({rows, {}}));
}

// Zeros columns; of a packed tensor only whole groups.
void zero_columns(
    Planner& planner,
    const std::string& key,
    const std::vector<Span>& columns,
    int64_t in) {
  auto [stem, suffix] = split_key(key);
  if (suffix == "bias") {
    return;  // an output's bias belongs to no input column
  }
  bool metadata = suffix == "scales" || suffix == "biases";
  planner.require_columns(std::string(stem), in);
  if (!planner.packed(stem)) {
    planner.add(key, zero_edit({{}, columns}));
    return;
  }
  int64_t groups = planner.weights().at(cat(stem, ".scales")).shape.back();
  int64_t group_size = in / groups;
  std::vector<Span> group_spans;
  for (const auto& [begin, end] : columns) {
    if (begin % group_size != 0 || end % group_size != 0) {
      planner.fail(
          cat("tensor ",
              stem,
              ".weight is packed in groups of ",
              group_size,
              " columns, and columns ",
              begin,
              " to ",
              end - 1,
              " are no whole groups"),
          "prune heads that fill whole groups together, or use a float "
          "checkpoint");
    }
    group_spans.emplace_back(begin / group_size, end / group_size);
  }
  if (metadata) {
    planner.add(key, zero_edit({{}, group_spans}));
    return;
  }
  if (!planner.has(stem, ".biases")) {
    int64_t words = planner.weights().at(key).shape.back();
    std::vector<Span> word_spans;
    for (const auto& [begin, end] : group_spans) {
      word_spans.emplace_back(begin * words / groups, end * words / groups);
    }
    planner.add(key, zero_edit({{}, word_spans}));
    return;
  }
  planner.add(cat(stem, ".scales"), zero_edit({{}, group_spans}));
  planner.add(cat(stem, ".biases"), zero_edit({{}, group_spans}));
}

void prune_layers(Planner& planner) {
  const Operation& operation = planner.operation();
  check_range(planner, int64_t(planner.base().spec.blocks.size()), "layer");
  std::set<int64_t> hit;
  for (const std::string& key : planner.matched()) {
    if (planner.edited_with_weight(key)) {
      continue;
    }
    auto [stem, suffix] = split_key(key);
    std::vector<RolePart> parts = planner.base().names.parts_of(stem);
    if (parts.empty() || !std::binary_search(
                             operation.ids.begin(),
                             operation.ids.end(),
                             int64_t(parts.front().role.layer))) {
      continue;
    }
    hit.insert(parts.front().role.layer);
    if (suffix == "weight" && planner.packed(stem) &&
        planner.has(stem, ".biases")) {
      planner.add(cat(stem, ".scales"), zero_all_edit());
      planner.add(cat(stem, ".biases"), zero_all_edit());
    } else {
      planner.add(key, zero_all_edit());
    }
  }
  // A pattern may leave out layers that are listed, but not all of them.
  std::string missed;
  for (int64_t id : operation.ids) {
    if (!hit.contains(id)) {
      missed += cat(missed.empty() ? "" : ", ", id);
    }
  }
  if (missed.empty()) {
    return;
  }
  std::string what =
      cat("pattern ",
          operation.pattern.text(),
          " matches no tensor of layer ",
          missed);
  if (hit.empty()) {
    planner.fail(what, "pattern and layer_ids must both match");
  }
  log_warning(cat(operation.place, ": ", what, "; it stays as it is"));
}

void prune_heads(Planner& planner) {
  const Operation& operation = planner.operation();
  bool any = false;
  for (const std::string& key : planner.matched()) {
    if (planner.edited_with_weight(key)) {
      continue;
    }
    auto [stem, suffix] = split_key(key);
    for (const RolePart& part : planner.base().names.parts_of(stem)) {
      bool query = part.role.kind == "attention.q";
      if (!query && part.role.kind != "attention.o") {
        continue;
      }
      const HeadCounts& heads =
          planner.base().spec.blocks[size_t(part.role.layer)].attention.heads;
      if (heads.query == 0) {
        planner.fail(
            cat("layer ",
                part.role.layer,
                " keeps no keys and values a head, so none can be pruned"),
            "narrow the pattern to layers of plain attention");
      }
      check_range(
          planner,
          heads.query,
          "attention head",
          cat(" of layer ", part.role.layer));
      any = true;
      if (query) {
        zero_rows(planner, key, spans_of(operation.ids, heads.dim, part.first));
      } else {
        zero_columns(
            planner,
            key,
            spans_of(operation.ids, heads.dim, 0),
            int64_t(heads.query) * heads.dim);
      }
    }
  }
  if (!any) {
    planner.fail(
        cat("pattern ",
            operation.pattern.text(),
            " matches no query or output projection"),
        "heads are pruned there; K and V are shared by several heads");
  }
}

void prune_channels(Planner& planner) {
  const Operation& operation = planner.operation();
  bool any = false;
  for (const std::string& key : planner.matched()) {
    auto [stem, suffix] = split_key(key);
    for (const RolePart& part : planner.base().names.parts_of(stem)) {
      bool down = part.role.kind == "mlp.down";
      if (!down && part.role.kind != "mlp.gate" && part.role.kind != "mlp.up") {
        continue;
      }
      int64_t channels = planner.base().names.rows(
          parse_role(cat("layers.", part.role.layer, ".mlp.up")));
      check_range(
          planner, channels, "MLP channel", cat(" of layer ", part.role.layer));
      any = true;
      if (down && planner.packed(stem)) {
        planner.fail(
            cat("tensor ",
                stem,
                ".weight is packed, and one channel of it is "
                "narrower than a packed column"),
            "prune gate and up alone, or use a float checkpoint");
      }
      if (planner.edited_with_weight(key)) {
        continue;
      }
      if (down) {
        zero_columns(planner, key, spans_of(operation.ids, 1, 0), channels);
      } else {
        zero_rows(planner, key, spans_of(operation.ids, 1, part.first));
      }
    }
  }
  if (!any) {
    planner.fail(
        cat("pattern ",
            operation.pattern.text(),
            " matches no up, gate or down projection"),
        "channels are pruned there");
  }
}

}  // namespace

void plan_prune(Planner& planner) {
  switch (planner.operation().granularity) {
    case Granularity::layer:
      prune_layers(planner);
      return;
    case Granularity::attention_head:
      prune_heads(planner);
      return;
    case Granularity::mlp_channel:
      prune_channels(planner);
      return;
  }
}

}  // namespace mlxcel
