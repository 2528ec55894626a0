#include "adapters/resolve.h"

#include "core/error.h"

#include <map>
#include <tuple>
#include <vector>

namespace mlxcel {

namespace {

struct Fit {
  PairLayout layout;
  Shape a, b;  // rank left as -1
};

bool fits(const Shape& shape, const Shape& pattern, int64_t* rank) {
  for (size_t i = 0; i < 2; ++i) {
    if (pattern[i] < 0) {
      if (*rank >= 0 && *rank != shape[i]) {
        return false;
      }
      *rank = shape[i];
    } else if (pattern[i] != shape[i]) {
      return false;
    }
  }
  return true;
}

// The layouts in order of preference: where several fit, mlx-lm's is meant.
std::vector<Fit> layouts(const ResolvedPair& pair) {
  std::vector<Fit> out;
  if (pair.on_embedding) {
    out.push_back({PairLayout::embedding, {pair.rows, -1}, {-1, pair.in}});
  }
  out.push_back({PairLayout::linear_first, {pair.in, -1}, {-1, pair.rows}});
  out.push_back({PairLayout::rank_first, {-1, pair.in}, {pair.rows, -1}});
  return out;
}

void choose_layout(ResolvedPair& pair, const Adapter& adapter) {
  for (const Fit& fit : layouts(pair)) {
    int64_t rank = -1;
    if (fits(pair.a.shape, fit.a, &rank) && fits(pair.b.shape, fit.b, &rank)) {
      pair.layout = fit.layout;
      pair.rank = rank;
      return;
    }
  }
  throw AdapterError(
      cat("cannot apply adapter ", adapter.folder.string()),
      cat("the pair of ",
          pair.stem,
          " does not fit its base weight: lora_a ",
          to_string(pair.a.shape),
          ", lora_b ",
          to_string(pair.b.shape),
          ", base weight [",
          pair.rows,
          ", ",
          pair.in,
          "]"),
      pair.on_embedding
          ? "lora_a [vocab, rank] with lora_b [rank, hidden], lora_a [hidden, "
            "rank] with lora_b [rank, vocab], or both of these transposed; "
            "check that the adapter was trained on this model"
          : "lora_a [in, rank] with lora_b [rank, out], or both transposed; "
            "check that the adapter was trained on this model");
}

// Tables that are looked up, but for the embedding: no term is defined there.
bool is_other_table(const Role& role) {
  return role.kind == "positions" || role.kind == "per_layer.table";
}

void check_tables_and_head(
    const Role& role,
    const std::string& stem,
    const Adapter& adapter,
    const AdapterBase& base) {
  if (is_other_table(role)) {
    throw AdapterError(
        cat("cannot apply adapter ", adapter.folder.string()),
        cat("it has a pair on ",
            stem,
            ", and of the tables that are looked up only embed_tokens takes "
            "one"),
        "leave this tensor out of the adapter");
  }
  if (role.kind == "head" &&
      base.spec.extras.head.rows != HeadRows::as_stored) {
    throw AdapterError(
        cat("cannot apply adapter ", adapter.folder.string()),
        cat("it has a pair on ",
            stem,
            ", and ",
            base.family.name,
            " divides this head's rows or columns by their lengths, so that "
            "the head is no linear that a pair could be trained on"),
        "leave this tensor out of the adapter");
  }
  if (base.spec.head != HeadKind::tied) {
    return;
  }
  if (role.kind == "head") {
    throw AdapterError(
        cat("cannot apply adapter ", adapter.folder.string()),
        cat("it has a pair on ",
            stem,
            ", and this checkpoint's lm_head is tied to its embedding"),
        "train the pair on embed_tokens, or on an untied checkpoint");
  }
  if (role.kind == "embedding" &&
      base.family.embed_pairs == EmbedPairs::refused) {
    throw AdapterError(
        cat("cannot apply adapter ", adapter.folder.string()),
        cat("it has a pair on ",
            stem,
            ", and ",
            base.family.name,
            " with a tied head takes no embed_tokens pair"),
        "fuse it into the checkpoint with the tool that trained it");
  }
}

ResolvedPair resolve_pair(
    const AdapterPair& source,
    const Adapter& adapter,
    const AdapterBase& base) {
  ResolvedPair pair;
  pair.stem = source.stem;
  pair.a = source.a;
  pair.b = source.b;

  std::vector<RolePart> parts = base.names.parts_of(source.stem);
  pair.targets = base.names.resolve(source.stem, base.weights);
  if (parts.empty()) {
    std::string near = did_you_mean(source.stem, base.names.known_stems());
    throw AdapterError(
        cat("cannot apply adapter ", adapter.folder.string()),
        cat("its pair on ",
            source.stem.empty() ? "\"\"" : source.stem,
            " has no base weight in this ",
            base.family.name,
            " checkpoint"),
        near.empty() ? "check that the adapter was trained on this model"
                     : near);
  }
  const Role& role = parts.front().role;
  check_tables_and_head(role, source.stem, adapter, base);
  if (pair.targets.empty()) {
    throw AdapterError(
        cat("cannot apply adapter ", adapter.folder.string()),
        cat("its pair on ",
            source.stem,
            " has no base weight: the checkpoint does not hold that tensor"),
        "check that the adapter was trained on this model");
  }
  for (const Target& target : pair.targets) {
    const WeightTensor& weight = base.weights.at(target.rows.stem + ".weight");
    // One expert's matrix may be a part of a stack; its rows follow each other.
    bool of_stack =
        weight.ndim() == 3 && target.rows.stacked > 0 && parts.size() == 1;
    if (weight.ndim() != 2 && !of_stack) {
      throw AdapterError(
          cat("cannot apply adapter ", adapter.folder.string()),
          cat("its pair on ",
              source.stem,
              " (lora_a ",
              to_string(pair.a.shape),
              ", lora_b ",
              to_string(pair.b.shape),
              ") meets a base weight of shape ",
              to_string(weight.shape),
              ", and only matrices take a low-rank term"),
          "leave this tensor out of the adapter");
    }
    pair.rows += target.rows.count;
  }
  pair.in = base.names.cols(role);
  pair.on_embedding = role.kind == "embedding";
  choose_layout(pair, adapter);
  return pair;
}

}  // namespace

ResolvedAdapter resolve_adapter(
    const Adapter& adapter, const AdapterBase& base) {
  if (base.family.adapters == AdapterSupport::refused) {
    throw AdapterError(
        cat("cannot apply adapter ", adapter.folder.string()),
        base.family.adapter_refusal,
        "run the model without it");
  }
  ResolvedAdapter out;
  out.folder = adapter.folder.string();
  out.digest = adapter.digest;
  out.task_name = adapter.task_name();
  out.factor = adapter.config.factor();
  // A row of a tensor has one pair, by whichever of the tensor's names.
  struct Taken {
    int64_t first, end;
    std::string pair;
  };
  std::map<std::string, std::vector<Taken>> taken;
  for (const AdapterPair& pair : adapter.pairs) {
    out.pairs.push_back(resolve_pair(pair, adapter, base));
    for (const Target& target : out.pairs.back().targets) {
      const int64_t first = target.rows.first, end = first + target.rows.count;
      std::vector<Taken>& rows = taken[target.rows.stem];
      for (const Taken& other : rows) {
        if (other.pair != pair.stem && first < other.end && other.first < end) {
          throw AdapterError(
              cat("cannot apply adapter ", adapter.folder.string()),
              cat("its pairs on ",
                  other.pair,
                  " and ",
                  pair.stem,
                  " are two for one base weight"),
              "leave one of them out of the adapter");
        }
      }
      rows.push_back({first, end, pair.stem});
    }
  }
  return out;
}

}  // namespace mlxcel
