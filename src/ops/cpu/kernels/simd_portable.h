// Four lanes in plain C++, for the kernel templates. Included inside an
// anonymous namespace.

constexpr int kLanes = 4;

struct F {
  float v[kLanes];
};

template <typename Lane>
inline F f_each(Lane lane) {
  F out;
  for (int i = 0; i < kLanes; ++i) {
    out.v[i] = lane(i);
  }
  return out;
}

inline F f_set(float x) {
  return f_each([&](int) { return x; });
}
inline F f_zero() {
  return f_set(0);
}
inline F f_load(const float* p) {
  return f_each([&](int i) { return p[i]; });
}
inline F f_load_part(const float* p, int64_t n) {
  return f_each([&](int i) { return i < n ? p[i] : 0.0f; });
}
inline void f_store_part(float* p, F x, int64_t n) {
  for (int i = 0; i < n; ++i) {
    p[i] = x.v[i];
  }
}
inline void f_store(float* p, F x) {
  f_store_part(p, x, kLanes);
}
inline F f_add(F a, F b) {
  return f_each([&](int i) { return a.v[i] + b.v[i]; });
}
inline F f_sub(F a, F b) {
  return f_each([&](int i) { return a.v[i] - b.v[i]; });
}
inline F f_mul(F a, F b) {
  return f_each([&](int i) { return a.v[i] * b.v[i]; });
}
inline F f_div(F a, F b) {
  return f_each([&](int i) { return a.v[i] / b.v[i]; });
}
inline F f_fma(F a, F b, F c) {
  return f_each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline F f_max(F a, F b) {
  return f_each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F f_abs(F a) {
  return f_each([&](int i) { return std::fabs(a.v[i]); });
}
inline F f_exp(F a) {
  return f_each([&](int i) { return std::exp(a.v[i]); });
}
inline F f_sqrt(F a) {
  return f_each([&](int i) { return std::sqrt(a.v[i]); });
}
inline F f_sigmoid(F x) {
  return f_div(f_set(1), f_add(f_set(1), f_exp(f_sub(f_zero(), x))));
}
