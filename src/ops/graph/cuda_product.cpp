#include "ops/graph/cuda_product.h"

#include "core/error.h"
#include "ops/graph/cuda_kernel.h"
#include "ops/graph/cuda_product_kernel.h"
#include "ops/graph/linear.h"

#include <array>

namespace mlxcel::graph {

namespace {

// Past this, unpacking the matrix for one large product is faster: the kernel
// reads the matrix once for each 16 rows.
constexpr int kMostRows = 64;

// From this many rows of a matrix on there are enough blocks for all
// multiprocessors of a large device with four warps a block and two tiles.
constexpr int kManyRows = 16384;

// What a kernel is compiled with beside its template arguments.
using Feature = unsigned;
constexpr Feature kBiases = 1, kChosen = 2, kNorm = 4, kResidual = 8;
constexpr Feature kFeatureSets = 16;

std::unique_ptr<const CudaKernel> make_kernel(unsigned features) {
  std::vector<std::string> inputs{"x", "w", "scales"};
  std::string header = cat("constexpr int kHeldValues = ", kHeldValues, ";\n");
  auto add = [&](Feature feature, const char* macro, const char* input) {
    if (features & feature) {
      header += cat("#define ", macro, "\n");
      inputs.emplace_back(input);
    }
  };
  add(kBiases, "MLXCEL_BIASES", "biases");
  add(kChosen, "MLXCEL_CHOSEN", "ids");
  add(kNorm, "MLXCEL_NORM", "norm");
  add(kResidual, "MLXCEL_RESIDUAL", "residual");
  return std::make_unique<const CudaKernel>(
      cat("product_", features),
      inputs,
      std::vector<std::string>{
          "BITS",
          "GROUP",
          "FORMAT",
          "TILES",
          "COLUMNS",
          "WARPS",
          "BLOCKS",
          "GATE"},
      kProductSource,
      header + kProductHeader);
}

const CudaKernel& kernel_for(unsigned features) {
  static const auto kernels = [] {
    std::array<std::unique_ptr<const CudaKernel>, kFeatureSets> made;
    for (unsigned i = 0; i < kFeatureSets; ++i) {
      made[i] = make_kernel(i);
    }
    return made;
  }();
  return *kernels[features];
}

// FORMAT of the kernel.
int format_of(QuantMode mode) {
  switch (mode) {
    case QuantMode::mxfp4:
      return 1;
    case QuantMode::mxfp8:
      return 2;
    case QuantMode::nvfp4:
      return 3;
    case QuantMode::none:
    case QuantMode::affine:
      break;
  }
  return 0;
}

// GATE of the kernel; 0: none.
int gate_of(Activation gate) {
  switch (gate) {
    case Activation::silu:
      return 1;
    case Activation::gelu_tanh:
      return 2;
    default:
      return 0;
  }
}

}  // namespace

bool cuda_takes(const Context& context, const DeviceMatrix& matrix, int rows) {
  return context.cuda && context.compute != mx::float32 &&
         matrix.quant.packed() && rows > 0 && rows <= kMostRows &&
         matrix.in() % 32 == 0;
}

bool cuda_takes_norm(
    const Context& context, const GraphNorm& norm, int rows, int in) {
  return context.cuda && norm.factors() && int64_t(rows) * in <= kHeldValues;
}

bool cuda_takes_gate(Activation gate) {
  return gate_of(gate) != 0;
}

mx::array cuda_product(
    const DeviceMatrix& matrix,
    const mx::array& x,
    int count,
    const mx::array* ids,
    const Fusions& fusions) {
  const Quant& quant = matrix.quant;
  mx::Dtype type = x.dtype();
  int rows = x.shape(-2), gate = gate_of(fusions.gate);
  int out = matrix.weight->shape(0) / count / (gate != 0 ? 2 : 1);

  unsigned features = 0;
  std::vector<mx::array> inputs{x, *matrix.weight, *matrix.scales};
  auto add = [&](Feature feature, const mx::array* input) {
    if (input) {
      features |= feature;
      inputs.push_back(*input);
    }
  };
  add(kBiases, matrix.biases.get());
  add(kChosen, ids);
  add(kNorm, fusions.norm ? fusions.norm->factors() : nullptr);
  add(kResidual, fusions.residual);

  bool many = gate != 0 || out >= kManyRows;
  int tiles = many ? 2 : 1, warps = many ? 4 : 8;
  int columns = !ids && rows > 8 ? 2 : 1;
  int blocks = (out + 16 * tiles - 1) / (16 * tiles);
  if (gate != 0) {
    blocks = (out + 8 * tiles - 1) / (8 * tiles);
  }
  int passes = ids ? rows : count * ((rows + 8 * columns - 1) / (8 * columns));
  mx::Shape shape = x.shape();
  shape.back() = out;
  return kernel_for(features)(
      std::move(inputs),
      {quant.bits,
       quant.group_size,
       format_of(quant.mode),
       tiles,
       columns,
       warps,
       count,
       gate},
      {.blocks = {blocks, passes, 1}, .threads = warps * 32},
      std::move(shape),
      type);
}

}  // namespace mlxcel::graph
