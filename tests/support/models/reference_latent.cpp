#include "support/models/reference_latent.h"

#include <cmath>

namespace mlxcel::testing::reference {

namespace {

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

void turn(
    Row& x,
    const LatentAttentionArgs& args,
    const Segment& segment,
    int64_t position) {
  if (args.rope != nullptr) {
    static_cast<const ReferenceRope*>(args.rope)->apply(
        x, 0, x.size(), args.rope_dim, segment, position);
  }
}

CacheEntry cached(
    const Row& kv,
    const LatentAttentionArgs& args,
    const Segment& segment,
    int64_t position) {
  auto middle = kv.begin() + args.latent_dim();
  CacheEntry out{Row(kv.begin(), middle), Row(middle, kv.end())};
  if (args.latent_norm != nullptr) {
    static_cast<const ReferenceNorm*>(args.latent_norm)
        ->apply(out.k, 0, out.k.size());
  }
  for (double& value : out.k) {
    value *= double(args.latent_scale);
  }
  turn(out.v, args, segment, position);
  return out;
}

// A head's matrix with its terms at the segment's scales.
Rows matrix_of(const HeadLinear& heads, int head, const Segment& segment) {
  const auto& own =
      *static_cast<const ReferenceHeads&>(heads).heads[size_t(head)];
  Rows matrix = own.matrix;
  for (const Term& term : own.terms) {
    double scale = adapter_scale(segment, term.adapter);
    for (size_t o = 0; o < term.matrix.size(); ++o) {
      for (size_t c = 0; c < term.matrix[o].size(); ++c) {
        matrix[size_t(term.row_begin) + o][c] += scale * term.matrix[o][c];
      }
    }
  }
  return matrix;
}

// One head of one row: `latents` and `keys` of all positions it sees.
Row attend(
    const Row& still,
    const Row& turned,
    const Rows& latents,
    const Rows& keys,
    const Rows& key_up,
    const Rows& value_up,
    double scale) {
  Row scores;
  double sum = 0;
  for (size_t p = 0; p < latents.size(); ++p) {
    Row key(still.size());  // key_up^T latent
    for (size_t o = 0; o < key_up.size(); ++o) {
      for (size_t c = 0; c < key.size(); ++c) {
        key[c] += key_up[o][c] * latents[p][o];
      }
    }
    scores.push_back(
        std::exp(scale * (dot(still, key) + dot(turned, keys[p]))));
    sum += scores.back();
  }
  Row out(value_up.size());
  for (size_t p = 0; p < latents.size(); ++p) {
    for (size_t c = 0; c < out.size(); ++c) {
      out[c] += scores[p] / sum * dot(value_up[c], latents[p]);
    }
  }
  return out;
}

}  // namespace

Tensor latent_attention(
    const Step& step,
    const Tensor& q,
    const Tensor& kv,
    const LatentAttentionArgs& args,
    const std::function<CacheEntry&(const Segment&, int64_t)>& entry) {
  auto plain = ptrdiff_t(args.key_up->in());
  Rows out;
  for (const Segment& segment : step.segments) {
    for (int i = 0; i < segment.num_rows; ++i) {
      auto row = size_t(segment.first_row + i);
      int64_t position = segment.position + i;
      entry(segment, position) =
          cached(rows_of(kv)[row], args, segment, position);
      Rows latents, keys;
      for (int64_t p = 0; p <= position; ++p) {
        latents.push_back(entry(segment, p).k);
        keys.push_back(entry(segment, p).v);
      }
      Row mixed;
      for (int head = 0; head < args.num_heads(); ++head) {
        auto begin = rows_of(q)[row].begin() + head * (plain + args.rope_dim);
        Row still(begin, begin + plain);
        Row turned(begin + plain, begin + plain + args.rope_dim);
        turn(turned, args, segment, position);
        Row one = attend(
            still,
            turned,
            latents,
            keys,
            matrix_of(*args.key_up, head, segment),
            matrix_of(*args.value_up, head, segment),
            double(args.scale));
        mixed.insert(mixed.end(), one.begin(), one.end());
      }
      out.push_back(std::move(mixed));
    }
  }
  return wrap(std::move(out), args.num_heads() * args.value_up->out());
}

}  // namespace mlxcel::testing::reference
