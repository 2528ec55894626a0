// The loops over whole vocabularies, written so that the compiler vectorizes
// them without changing the order of any sum.
#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace mlxcel {

namespace {

constexpr size_t kLanes = 16;

}  // namespace

float max_value(std::span<const float> values) {
  float lanes[kLanes];
  std::fill(
      std::begin(lanes),
      std::end(lanes),
      -std::numeric_limits<float>::infinity());
  size_t whole = values.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
    }
  }
  for (size_t i = whole; i < values.size(); ++i) {
    lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
  }
  return *std::max_element(std::begin(lanes), std::end(lanes));
}

int32_t argmax(std::span<const float> values) {
  // Two passes: the maximum of each stretch, then a search in the best stretch.
  constexpr size_t kStretch = 1024;
  size_t best_begin = 0;
  float best = -std::numeric_limits<float>::infinity();
  for (size_t begin = 0; begin < values.size(); begin += kStretch) {
    float max = max_value(
        values.subspan(begin, std::min(kStretch, values.size() - begin)));
    if (max > best) {
      best = max;
      best_begin = begin;
    }
  }
  for (size_t i = best_begin; i < values.size(); ++i) {
    if (values[i] == best) {
      return int32_t(i);
    }
  }
  return 0;
}

void take_best(
    std::span<const float> logits, size_t k, std::vector<Candidate>& out) {
  out.clear();
  float threshold = -std::numeric_limits<float>::infinity();
  size_t room = std::max<size_t>(4 * k, 256);
  auto shrink = [&] {
    if (out.size() > k) {
      std::nth_element(
          out.begin(), out.begin() + ptrdiff_t(k) - 1, out.end(), is_better);
      out.resize(k);
      // Later tokens with the same logit lose the tie: only greater ones count.
      threshold = out[k - 1].logit;
    }
  };
  constexpr size_t kStretch = 256;
  for (size_t begin = 0; begin < logits.size(); begin += kStretch) {
    size_t end = std::min(begin + kStretch, logits.size());
    if (max_value(logits.subspan(begin, end - begin)) <= threshold) {
      continue;
    }
    for (size_t i = begin; i < end; ++i) {
      if (logits[i] > threshold) {
        out.push_back({logits[i], int32_t(i)});
      }
    }
    if (out.size() >= room) {
      shrink();
    }
  }
  shrink();
  std::sort(out.begin(), out.end(), is_better);
}

double exp_shifted(
    std::span<const float> x, float shift, float scale, float* out) {
  // exp(t) = 2^n exp(r), n = round(t / ln 2), |r| <= ln(2) / 2. Adding 1.5 *
  // 2^23 rounds to an integer that stands in the low bits. The polynomial is
  // the minimax one of Cephes' expf.
  constexpr float kRound = 12582912.f;
  constexpr float kLog2e = 1.44269504f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  for (size_t i = 0; i < x.size(); ++i) {
    float t = (x[i] - shift) * scale;
    t = t > -87.f ? t : -87.f;  // the least normal float
    float shifted = t * kLog2e + kRound;
    float n = shifted - kRound;
    float r = t - n * kLn2High - n * kLn2Low;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    uint32_t exponent = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
    out[i] = p * std::bit_cast<float>(exponent);
  }
  // Stretches summed in f32 lanes, stretches added in f64.
  double sum = 0;
  constexpr size_t kStretch = 1024;
  for (size_t begin = 0; begin < x.size(); begin += kStretch) {
    size_t end = std::min(begin + kStretch, x.size());
    float lanes[kLanes] = {};
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) {
        lanes[j] += out[i + j];
      }
    }
    for (; i < end; ++i) {
      lanes[0] += out[i];
    }
    for (float lane : lanes) {
      sum += double(lane);
    }
  }
  return sum;
}

}  // namespace mlxcel
