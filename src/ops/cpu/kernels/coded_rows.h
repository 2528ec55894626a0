// Where the eight rows of weights of a block lie, and what is fetched ahead of
// them, for coded_lanes.h. Included inside an anonymous namespace.

constexpr int kLaneOutputs = 8;

// Rows longer than this, bytes, lie too far apart for eight at once, to be
// fetched as they lie. Of one row of activations' kernel: rows in between are
// taken four at a time, and what is fetched is so far ahead at least. All
// measured.
constexpr int64_t kLongRow = 2048;
constexpr int64_t kFourRowsFrom = 768, kFourRowsTo = 4096;
constexpr int64_t kFourRowsAhead = 6144;

// Unless they are fetched as they lie: the order in which the weights of a
// block's rows are, a line of each for every vector: step by step, `rows` bytes
// from line to line.
struct LaneFetch {
  const std::byte* at;
  int64_t rows, step;
  int64_t turn;  // the byte of a row from which on `skip` is added
  int64_t skip;

  // Short rows are fetched as they lie, which the hardware foresees. Of long
  // ones, whose lines share few sets of the first cache, each is fetched a
  // short way ahead; past its end, the row of the next block. Measured, as all
  // of this.
  LaneFetch(const std::byte* block, int64_t row_bytes) : at(block) {
    constexpr int64_t kAhead = 1024, kLeast = 8192;
    int64_t next = kLaneOutputs * row_bytes;
    if (row_bytes <= kLongRow) {
      at += ceil_to(kLeast, next);
      rows = 64;
      step = kLaneOutputs * 64;
      turn = row_bytes;
      skip = 0;
    } else {
      at += kAhead;
      rows = row_bytes;
      step = 64;
      turn = row_bytes - kAhead;
      skip = next - row_bytes;
    }
  }
};

// Eight rows that lie `stride` bytes apart, reached without a pointer to each.
struct LaneRows {
  const std::byte *first, *fifth;
  int64_t stride, three;

  LaneRows(const std::byte* at, int64_t bytes)
      : first(at), fifth(at + 4 * bytes), stride(bytes), three(3 * bytes) {}
  const std::byte* operator[](int r) const {
    return (r < 4 ? first : fifth) + (r % 4 == 3 ? three : r % 4 * stride);
  }
  void advance(int64_t bytes) {
    first += bytes;
    fifth += bytes;
  }
};

inline void lane_fetch(const std::byte* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
}
// For one row of activations: the second cache needs no copy, since nothing is
// read twice.
inline void lane_fetch_once(const std::byte* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_NTA);
}

template <int kX>
inline void lane_fetch_for(const std::byte* line) {
  kX == 1 ? lane_fetch_once(line) : lane_fetch(line);
}

// Advances past the factors of 16 groups of kRows rows.
template <int kRows>
inline void lane_fetch_factors(FirstRows& ahead) {
  constexpr int64_t kBytes = kRows * 2 * kLanes;
#pragma GCC unroll 4
  for (int64_t line = 0; line < kBytes; line += 64) {
    lane_fetch_once(ahead.scales + line);
    lane_fetch_once(ahead.biases + line);
  }
  ahead.scales += kBytes;
  ahead.biases += kBytes;
}
