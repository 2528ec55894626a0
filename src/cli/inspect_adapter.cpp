#include "cli/inspect_adapter.h"

#include "adapters/resolve.h"
#include "cli/checkpoint_facts.h"
#include "cli/console.h"
#include "cli/model_store.h"
#include "core/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace mlxcel::cli {

namespace {

struct AdapterFacts {
  // Pairs by the last part of their stem: "q_proj", "lm_head".
  std::map<std::string, int64_t> sites;
  std::set<DType> dtypes;
  uint64_t bytes = 0;
  int64_t least_rank = 0, most_rank = 0;
};

// The dimension that the two halves share; the smaller where both do.
int64_t rank_of(const AdapterPair& pair) {
  int64_t a0 = pair.a.dim(0), a1 = pair.a.dim(1);
  int64_t b0 = pair.b.dim(0), b1 = pair.b.dim(1);
  int64_t rank = 0;
  if (a1 == b0) {
    rank = a1;
  }
  if (a0 == b1) {
    rank = rank == 0 ? a0 : std::min(rank, a0);
  }
  return rank;
}

AdapterFacts facts_of(const Adapter& adapter) {
  AdapterFacts facts;
  for (const AdapterPair& pair : adapter.pairs) {
    size_t dot = pair.stem.rfind('.');
    facts.sites
        [dot == std::string::npos ? pair.stem : pair.stem.substr(dot + 1)] += 1;
    int64_t rank = rank_of(pair);
    facts.least_rank =
        facts.least_rank == 0 ? rank : std::min(facts.least_rank, rank);
    facts.most_rank = std::max(facts.most_rank, rank);
    for (const WeightTensor* tensor : {&pair.a, &pair.b}) {
      facts.dtypes.insert(tensor->dtype);
      facts.bytes += tensor->bytes;
    }
  }
  return facts;
}

struct Fit {
  std::string model, family;
  std::string problem;        // empty: it fits
  std::string fix;            // of the problem
  std::string packed_weight;  // the first one that rules out fusing
};

Fit fit_of(const Adapter& adapter, const std::string& model) {
  CheckpointFacts facts = read_checkpoint_facts(find_model(model));
  Fit fit{facts.folder.string(), facts.family->name, {}, {}, {}};
  NameMap names(facts.family->names, facts.spec);
  try {
    ResolvedAdapter resolved = resolve_adapter(
        adapter, {*facts.family, facts.spec, names, facts.weights});
    for (const ResolvedPair& pair : resolved.pairs) {
      for (const Target& target : pair.targets) {
        std::string key = target.rows.stem + ".weight";
        if (fit.packed_weight.empty() &&
            !is_float(facts.weights.at(key).dtype)) {
          fit.packed_weight = key;
        }
      }
    }
  } catch (const AdapterError& error) {
    fit.problem = error.why();
    fit.fix = error.fix();
  }
  return fit;
}

void print_json(
    const Adapter& adapter,
    const AdapterFacts& facts,
    const std::optional<Fit>& fit) {
  nlohmann::ordered_json dtypes = nlohmann::ordered_json::array();
  for (DType dtype : facts.dtypes) {
    dtypes.push_back(name_of(dtype));
  }
  nlohmann::ordered_json sites;
  for (const auto& [name, pairs] : facts.sites) {
    sites[name] = pairs;
  }
  nlohmann::ordered_json out = {
      {"path", adapter.folder.string()},
      {"file", adapter.file.string()},
      {"task_name", adapter.task_name()},
      {"pairs", adapter.pairs.size()},
      {"rank", facts.most_rank},
      {"least_rank", facts.least_rank},
      {"config_rank", adapter.config.rank},
      {"scale", adapter.config.factor()},
      {"dtypes", dtypes},
      {"bytes", facts.bytes},
      {"sites", sites},
  };
  if (fit) {
    out["model"] = fit->model;
    out["family"] = fit->family;
    out["fits"] = fit->problem.empty();
    if (fit->problem.empty()) {
      out["can_fuse"] = fit->packed_weight.empty();
    } else {
      out["problem"] = fit->problem;
      out["fix"] = fit->fix;
    }
  }
  fmt::print("{}\n", out.dump(2));
}

}  // namespace

int inspect_adapter(
    const std::string& folder, const std::string& model, bool json) {
  Adapter adapter = read_adapter_headers(folder);
  AdapterFacts facts = facts_of(adapter);
  std::optional<Fit> fit;
  if (!model.empty()) {
    fit = fit_of(adapter, model);
  }
  int code = fit && !fit->problem.empty() ? kFailed : kOk;
  if (json) {
    print_json(adapter, facts, fit);
    return code;
  }

  auto line = [](std::string_view name, const std::string& value) {
    fmt::print("{:<18}{}\n", name, value);
  };
  line("Path", adapter.file.string());
  line("Task name", adapter.task_name());
  std::string dtypes;
  for (DType dtype : facts.dtypes) {
    dtypes += cat(dtypes.empty() ? "" : " and ", name_of(dtype));
  }
  line(
      "Pairs",
      cat(adapter.pairs.size(),
          ", ",
          dtypes,
          ", ",
          format_bytes(double(facts.bytes))));
  line(
      "Rank",
      facts.least_rank == facts.most_rank
          ? cat(facts.most_rank)
          : cat(facts.least_rank, " to ", facts.most_rank));
  line(
      "Scale",
      adapter.config.alpha ? cat(adapter.config.factor(),
                                 " (alpha ",
                                 *adapter.config.alpha,
                                 " / rank ",
                                 adapter.config.rank,
                                 ")")
                           : cat(adapter.config.factor()));
  for (const auto& [name, pairs] : facts.sites) {
    line(cat("  ", name), cat(pairs));
  }
  if (!fit) {
    return code;
  }
  line("Model", cat(fit->model, " (", fit->family, ")"));
  if (!fit->problem.empty()) {
    line("Fits", cat("no: ", fit->problem));
    if (!fit->fix.empty()) {
      line("", fit->fix);
    }
    return code;
  }
  line(
      "Fits",
      fit->packed_weight.empty()
          ? "yes: fused with --adapter, or live with --lora"
          : cat("yes, live with --lora; ",
                fit->packed_weight,
                " is quantized, so it cannot be fused"));
  return code;
}

}  // namespace mlxcel::cli
