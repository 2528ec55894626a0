// The recurrences over the vectors of a simd_*.h. Included inside an anonymous
// namespace, after that and math_simd.h.

// Up to this many vectors of columns at a time: as many sums are in flight as
// hide the latency of an addition, and they fit the registers.
constexpr int kMaxVectors = 4;

// `columns` in runs of kVectors whole vectors, and the rest. Calls
// run<kVectors, kPart>(first column), where the last vector of a run has
// only `part` lanes if kPart.
template <typename Run>
inline void for_columns(int64_t columns, Run run) {
  int64_t at = 0;
  for (; at + kMaxVectors * kLanes <= columns; at += kMaxVectors * kLanes) {
    run.template operator()<kMaxVectors, false>(at, 0);
  }
  for (; at + kLanes <= columns; at += kLanes) {
    run.template operator()<1, false>(at, 0);
  }
  if (at < columns) {
    run.template operator()<1, true>(at, columns - at);
  }
}

template <bool kPart>
inline F load_lanes(const float* p, int64_t part) {
  if constexpr (kPart) {
    return f_load_part(p, part);
  } else {
    return f_load(p);
  }
}

template <bool kPart>
inline void store_lanes(float* p, F v, int64_t part) {
  if constexpr (kPart) {
    f_store_part(p, v, part);
  } else {
    f_store(p, v);
  }
}

enum class Rule { plain, delta, lerp };

template <Rule kRule, bool kByKey, int kVectors, bool kPart>
inline void update_columns(const StateUpdate& u, int64_t first, int64_t part) {
  for (int64_t row = 0; row < u.rows; ++row) {
    const float* decay = u.decay.at(row);
    const float* k = u.k.at(row);
    const float* q = u.q.at(row);
    const float* v = u.v.at(row) + first;
    const float* b = kRule == Rule::lerp ? u.b.at(row) : nullptr;
    F value[kVectors], read[kVectors], y[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      value[i] = load_lanes<kPart>(v + i * kLanes, part);
      read[i] = f_zero();
      y[i] = f_zero();
    }
    if constexpr (kRule != Rule::plain) {
      // What the state holds for the key, after the decay (delta) or before.
      const float* key = kRule == Rule::lerp ? u.a.at(row) : k;
      const float* state = u.state + first;
      for (int64_t n = 0; n < u.keys; ++n, state += u.pitch) {
        float factor = key[n];
        if constexpr (kRule == Rule::delta && kByKey) {
          factor *= decay[n];
        }
        F factors = f_set(factor);
        for (int i = 0; i < kVectors; ++i) {
          read[i] = f_fma(
              factors, load_lanes<kPart>(state + i * kLanes, part), read[i]);
        }
      }
    }
    if constexpr (kRule == Rule::delta) {
      F beta = f_set(*u.beta.at(row));
      F factor = f_set(kByKey ? 1.0f : *decay);
      for (int i = 0; i < kVectors; ++i) {
        value[i] = f_mul(beta, f_sub(value[i], f_mul(factor, read[i])));
      }
    }
    float* state = u.state + first;
    F factor = f_set(*decay);
    for (int64_t n = 0; n < u.keys; ++n, state += u.pitch) {
      if constexpr (kByKey) {
        factor = f_set(decay[n]);
      }
      F key = f_set(k[n]), query = f_set(q[n]);
      for (int i = 0; i < kVectors; ++i) {
        F s = f_mul(factor, load_lanes<kPart>(state + i * kLanes, part));
        s = f_fma(key, value[i], s);
        if constexpr (kRule == Rule::lerp) {
          s = f_fma(f_set(b[n]), read[i], s);
        }
        store_lanes<kPart>(state + i * kLanes, s, part);
        y[i] = f_fma(query, s, y[i]);
      }
    }
    float* out = u.y + row * u.y_stride + first;
    for (int i = 0; i < kVectors; ++i) {
      store_lanes<kPart>(out + i * kLanes, y[i], part);
    }
  }
}

template <Rule kRule>
void update_state(const StateUpdate& u) {
  for_columns(
      u.columns, [&]<int kVectors, bool kPart>(int64_t first, int64_t part) {
        if (u.decay_by_key) {
          update_columns<kRule, true, kVectors, kPart>(u, first, part);
        } else {
          update_columns<kRule, false, kVectors, kPart>(u, first, part);
        }
      });
}

// log(1 + e^x) = max(x, 0) + log1p(w), w = e^-|x|, and with s = w / (2 + w)
// log1p(w) = 2 (s + s^3 / 3 + s^5 / 5 + ...), s <= 1/3: nine terms leave 2^-28.
inline F f_softplus(F x) {
  F w = f_exp(f_sub(f_zero(), f_abs(x)));
  F s = f_div(w, f_add(f_set(2), w));
  F square = f_mul(s, s);
  F sum = f_set(1.0f / 17);
  for (int odd = 15; odd >= 1; odd -= 2) {
    sum = f_fma(sum, square, f_set(1.0f / float(odd)));
  }
  return f_fma(f_mul(f_set(2), s), sum, f_max(x, f_zero()));
}

inline F f_silu(F x) {
  return f_mul(x, f_sigmoid(x));
}

void channel_scan(const ChannelScan& scan) {
  for_columns(
      scan.columns, [&]<int kVectors, bool kPart>(int64_t first, int64_t part) {
        for (int64_t row = 0; row < scan.rows; ++row) {
          const float* b = scan.b.at(row);
          const float* c = scan.c.at(row);
          F dt[kVectors], input[kVectors], y[kVectors];
          for (int i = 0; i < kVectors; ++i) {
            int64_t at = first + i * kLanes;
            F x = load_lanes<kPart>(scan.x.at(row) + at, part);
            dt[i] = f_softplus(load_lanes<kPart>(scan.dt.at(row) + at, part));
            input[i] = f_mul(dt[i], x);
            y[i] = f_mul(load_lanes<kPart>(scan.d + at, part), x);
          }
          for (int64_t n = 0; n < scan.states; ++n) {
            float* state = scan.state + n * scan.pitch + first;
            const float* a = scan.a + n * scan.pitch + first;
            F in = f_set(b[n]), out = f_set(c[n]);
            for (int i = 0; i < kVectors; ++i) {
              F rate = load_lanes<kPart>(a + i * kLanes, part);
              F s = load_lanes<kPart>(state + i * kLanes, part);
              s = f_mul(f_exp(f_mul(dt[i], rate)), s);
              s = f_fma(in, input[i], s);
              store_lanes<kPart>(state + i * kLanes, s, part);
              y[i] = f_fma(out, s, y[i]);
            }
          }
          for (int i = 0; i < kVectors; ++i) {
            int64_t at = first + i * kLanes;
            F z = load_lanes<kPart>(scan.z.at(row) + at, part);
            store_lanes<kPart>(
                scan.y + row * scan.y_stride + at,
                f_mul(y[i], f_silu(z)),
                part);
          }
        }
      });
}

inline F f_gelu_tanh(F x) {
  // 1 + tanh(u) = 2 sigmoid(2 u)
  F cubic = f_mul(f_mul(x, x), f_mul(x, f_set(0.044715f)));
  F u = f_mul(f_set(2 * 0.79788456f), f_add(x, cubic));
  return f_mul(x, f_sigmoid(u));
}

void gated_block(const GatedBlock& block) {
  for_columns(
      block.width, [&]<int kVectors, bool kPart>(int64_t first, int64_t part) {
        for (int64_t row = 0; row < block.rows; ++row) {
          const float* u = block.u.at(row);
          F input[kVectors], recurrent[kVectors];
          for (int i = 0; i < kVectors; ++i) {
            int64_t at = first + i * kLanes;
            input[i] = load_lanes<kPart>(block.input_bias + at, part);
            recurrent[i] = load_lanes<kPart>(block.recurrent_bias + at, part);
          }
          for (int64_t k = 0; k < block.width; ++k) {
            F x = f_set(u[k]);
            const float* in = block.input_weight + k * block.width + first;
            const float* re = block.recurrent_weight + k * block.width + first;
            for (int i = 0; i < kVectors; ++i) {
              input[i] =
                  f_fma(x, load_lanes<kPart>(in + i * kLanes, part), input[i]);
              recurrent[i] = f_fma(
                  x, load_lanes<kPart>(re + i * kLanes, part), recurrent[i]);
            }
          }
          for (int i = 0; i < kVectors; ++i) {
            int64_t at = first + i * kLanes;
            F log_a = f_mul(
                load_lanes<kPart>(block.decay + at, part),
                f_sigmoid(recurrent[i]));
            F a = f_exp(log_a);
            F x = f_mul(load_lanes<kPart>(u + at, part), f_sigmoid(input[i]));
            F s = x;
            if (row > 0 || !block.reset) {
              F rest = f_sub(f_set(1), f_exp(f_add(log_a, log_a)));
              s = f_mul(x, f_sqrt(f_max(rest, f_zero())));
              s = f_fma(a, load_lanes<kPart>(block.state + at, part), s);
            }
            store_lanes<kPart>(block.state + at, s, part);
            F gate = load_lanes<kPart>(block.gate.at(row) + at, part);
            store_lanes<kPart>(
                block.y + row * block.y_stride + at,
                f_mul(s, f_gelu_tanh(gate)),
                part);
          }
        }
      });
}

void convolve(
    const float* const* rows,
    const float* taps,
    int64_t pitch,
    const float* bias,
    int count,
    int64_t channels,
    bool silu,
    float* y) {
  auto run = [&]<bool kPart>(int64_t at, int64_t part) {
    F sum = bias != nullptr ? load_lanes<kPart>(bias + at, part) : f_zero();
    for (int j = 0; j < count; ++j) {
      sum = f_fma(
          load_lanes<kPart>(taps + j * pitch + at, part),
          load_lanes<kPart>(rows[j] + at, part),
          sum);
    }
    store_lanes<kPart>(y + at, silu ? f_silu(sum) : sum, part);
  };
  int64_t at = 0;
  for (; at + kLanes <= channels; at += kLanes) {
    run.template operator()<false>(at, 0);
  }
  if (at < channels) {
    run.template operator()<true>(at, channels - at);
  }
}

template <typename Value>
inline void for_lanes(float* y, int64_t n, Value value) {
  int64_t at = 0;
  for (; at + kLanes <= n; at += kLanes) {
    f_store(y + at, value.template operator()<false>(at, 0));
  }
  if (at < n) {
    f_store_part(y + at, value.template operator()<true>(at, n - at), n - at);
  }
}

void silu_row(const float* x, float* y, int64_t n) {
  for_lanes(y, n, [&]<bool kPart>(int64_t at, int64_t part) {
    return f_silu(load_lanes<kPart>(x + at, part));
  });
}

void gate_row(float* y, const float* z, float scale, bool sigmoid, int64_t n) {
  for_lanes(y, n, [&]<bool kPart>(int64_t at, int64_t part) {
    F x = f_mul(f_set(scale), load_lanes<kPart>(z + at, part));
    F factor = sigmoid ? f_sigmoid(x) : f_silu(x);
    return f_mul(load_lanes<kPart>(y + at, part), factor);
  });
}
