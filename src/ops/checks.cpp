#include "ops/checks.h"

#include <utility>

namespace mlxcel::ops {

void mismatch(
    const char* op, const char* what, std::string why, const char* fix) {
  throw ShapeError(cat(op, ": ", what), std::move(why), fix);
}

std::string shape_of(const Tensor& tensor) {
  return cat("[", tensor.rows(), ", ", tensor.cols(), "]");
}

void check_step(const char* op, const Step& step, const KvCache* cache) {
  int row = 0, prompt_rows = 0;
  bool generated = false;
  for (const Segment& segment : step.segments) {
    if (segment.first_row != row || segment.num_rows <= 0 ||
        segment.position < 0 || (segment.prompt && generated)) {
      mismatch(
          op,
          "the step's segments do not follow each other",
          cat("a segment of ",
              segment.num_rows,
              " rows starts at row ",
              segment.first_row,
              ", position ",
              segment.position,
              "; expected row ",
              row),
          "segments cover the rows in order, prompt segments first");
    }
    row += segment.num_rows;
    generated |= !segment.prompt;
    prompt_rows += segment.prompt ? segment.num_rows : 0;
    if (!cache) {
      continue;
    }
    int64_t end = segment.position + segment.num_rows;
    if (int64_t(segment.blocks.size()) * kKvBlockSize < end) {
      mismatch(
          op,
          "the sequence has too few cache blocks",
          cat(segment.blocks.size(),
              " blocks of ",
              kKvBlockSize,
              " positions for ",
              end,
              " positions"),
          "assign blocks to the sequence before the step");
    }
    int64_t needed = (end + kKvBlockSize - 1) / kKvBlockSize;
    for (int64_t i = 0; i < needed; ++i) {
      int32_t block = segment.blocks[size_t(i)];
      if (block < 0 || block >= cache->num_blocks()) {
        mismatch(
            op,
            "a cache block does not exist",
            cat("block ", block, " of ", cache->num_blocks()),
            "reserve the blocks in the cache before the step");
      }
    }
  }
  if (row != step.num_rows() || prompt_rows != step.num_prompt_rows) {
    mismatch(
        op,
        "the step's segments do not cover its rows",
        cat("segments hold ",
            row,
            " rows, ",
            prompt_rows,
            " of them prompt rows; the step has ",
            step.num_rows(),
            " and ",
            step.num_prompt_rows),
        "every row belongs to one segment");
  }
}

void check_rows(const char* op, const Step& step, const Tensor& x) {
  if (x.rows() != step.num_rows()) {
    mismatch(
        op,
        "the input does not fit the step",
        cat("input ", shape_of(x), ", step of ", step.num_rows(), " rows"),
        "pass the tensor that this step's ops returned");
  }
}

void check_norm(
    const char* op, const char* role, const Norm* norm, int64_t size) {
  if (norm && norm->size() != size) {
    mismatch(
        op,
        cat(role, " does not fit").c_str(),
        cat("norm [", norm->size(), "], features [", size, "]"),
        kCheckConfig);
  }
}

}  // namespace mlxcel::ops
