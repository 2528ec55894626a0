#include "loading/compose.h"

#include "adapters/fuse.h"
#include "adapters/live.h"
#include "adapters/resolve.h"
#include "core/error.h"
#include "core/log.h"
#include "surgery/surgery.h"

#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

namespace mlxcel {

std::filesystem::path recipe_path(const LoadOptions& options) {
  const char* named = std::getenv("MLXCEL_SURGERY");
  if (options.surgery) {
    return *options.surgery;
  }
  return named != nullptr ? named : "";
}

Composition::Composition(const LoadOptions& options) : options_(options) {
  if (std::filesystem::path path = recipe_path(options); !path.empty()) {
    recipe_ = read_recipe(path);
    log_info(cat("surgery: ", recipe_->file.string(), " loaded"));
  }
  for (const AdapterRequest& request : options.adapters) {
    if (request.read) {
      adapters_.push_back(request.read);
    } else if (request.folder.empty()) {
      adapters_.push_back(nullptr);
      continue;
    } else {
      adapters_.push_back(
          std::make_shared<Adapter>(read_adapter(request.folder)));
    }
    double factor = adapters_.back()->config.factor();
    if (!std::isfinite(float(factor * request.scale))) {
      throw AdapterError(
          cat("adapter ", request.folder.string(), " cannot be scaled"),
          cat("scale ",
              request.scale,
              " times its own factor ",
              factor,
              " is beyond the range of f32"),
          "give a smaller scale");
    }
  }
}

ThreadPool& Composition::pool() {
  if (!pool_) {
    pool_.emplace(options_.threads);
  }
  return *pool_;
}

void Composition::plan_surgery(const NameMap& names, const WeightMap& weights) {
  if (recipe_) {
    plan_ = mlxcel::plan_surgery(*recipe_, {names.spec(), names}, weights);
  }
}

void Composition::apply_surgery(WeightMap& weights) {
  if (plan_.empty()) {
    return;
  }
  mlxcel::apply_surgery(plan_, weights, pool(), [&](double done) {
    if (options_.progress) {
      options_.progress("surgery", done);
    }
  });
  if (!adapters_.empty()) {
    log_info("adapters come on top of the weights that surgery has changed");
  }
}

void Composition::apply_adapters(
    const Family& family, const NameMap& names, WeightMap& weights) {
  if (adapters_.empty()) {
    return;
  }
  AdapterBase base{family, names.spec(), names, weights};
  std::vector<ResolvedAdapter> resolved;
  for (const auto& adapter : adapters_) {
    resolved.push_back(
        adapter ? resolve_adapter(*adapter, base) : ResolvedAdapter());
  }
  std::vector<ScaledAdapter> fused;
  std::vector<LiveAdapter> live;
  for (size_t i = 0; i < resolved.size(); ++i) {
    if (!adapters_[i]) {
      continue;
    }
    if (options_.adapters[i].fuse) {
      fused.push_back({&resolved[i], options_.adapters[i].scale});
    } else {
      live.push_back({int(i), &resolved[i]});
    }
  }
  if (!fused.empty()) {
    fuse_adapters(fused, base, weights, pool(), [&](double done) {
      if (options_.progress) {
        options_.progress("fuse adapters", done);
      }
    });
  }
  terms_ = live_terms(live, names.spec());
}

LiveTerms Composition::take_terms() {
  return std::exchange(terms_, {});
}

std::vector<LoadedAdapter> Composition::loaded() const {
  std::vector<LoadedAdapter> out;
  for (size_t i = 0; i < adapters_.size(); ++i) {
    const AdapterRequest& request = options_.adapters[i];
    if (!adapters_[i]) {
      out.emplace_back();
      continue;
    }
    out.push_back(
        {request.folder.string(),
         adapters_[i]->task_name(),
         adapters_[i]->digest,
         request.scale,
         request.fuse});
  }
  return out;
}

}  // namespace mlxcel
