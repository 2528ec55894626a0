// The scale of an activation row whose columns are integers up to 127 times an
// integer factor for each eight of them. Included inside an anonymous
// namespace.

// The largest factor. Groups of up to 128 codes of 5 bits fit 32 bits:
// 128 * 31 * 127 * 4096 < 2^31.
constexpr float kMostFactor = 4095;

// A row's scale t, and what turns values into multiples of it.
struct RowScale {
  explicit RowScale(float top) {
    constexpr float kSmallest = 1e-30f;  // below it 1 / t might be infinite
    bool none = top <= kSmallest;
    scale = none ? 0 : top / (127 * kMostFactor);
    steps = none ? 0 : kMostFactor / top;
  }
  float scale, steps;
};
