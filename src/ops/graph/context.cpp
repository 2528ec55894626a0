#include "ops/graph/context.h"

#include "core/error.h"
#include "ops/graph/kv_cache.h"

#include <mlx/backend/cuda/cuda.h>

#include <cstring>
#include <limits>

namespace mlxcel::graph {

namespace {

// Host copies of uploaded weights that MLX may keep for reuse.
constexpr size_t kUploadScratch = size_t(1) << 30;

mx::Device pick_device() {
  return mx::is_available(mx::Device::gpu) ? mx::Device(mx::Device::gpu)
                                           : mx::Device(mx::Device::cpu);
}

}  // namespace

mx::Dtype mlx_dtype(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return mx::bool_;
    case DType::u8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::f8_e8m0:
      return mx::uint8;
    case DType::i8:
      return mx::int8;
    case DType::u16:
      return mx::uint16;
    case DType::i16:
      return mx::int16;
    case DType::u32:
      return mx::uint32;
    case DType::i32:
      return mx::int32;
    case DType::u64:
      return mx::uint64;
    case DType::i64:
      return mx::int64;
    case DType::f16:
      return mx::float16;
    case DType::bf16:
      return mx::bfloat16;
    case DType::f32:
      return mx::float32;
    case DType::f64:
      return mx::float64;
  }
  throw CheckpointError(cat("unknown element type ", int(dtype)));
}

const mx::array& value(const Tensor& tensor) {
  if (!tensor) {
    throw ShapeError(
        "graph backend: an op was given an empty tensor",
        "every input must come from an op of the same backend");
  }
  return static_cast<const ArrayStorage*>(tensor.storage())->value;
}

int int_of(int64_t size) {
  if (size < 0 || size > std::numeric_limits<int>::max()) {
    throw ShapeError(
        cat("graph backend: an extent of ", size, " elements"),
        "the graph backend holds extents in 32 bits",
        "use --backend cpu");
  }
  return int(size);
}

SharedArray Uploader::upload(const std::vector<const WeightTensor*>& parts) {
  const WeightTensor& first = *parts.front();
  Key key{first.data, first.dtype, first.shape};
  if (parts.size() == 1 && first.owner) {
    auto known = known_.find(key);
    if (known != known_.end() && known->second.owner.lock() == first.owner) {
      if (SharedArray array = known->second.array.lock()) {
        return array;
      }
    }
  }

  mx::Shape shape;
  for (int64_t extent : first.shape) {
    shape.push_back(int_of(extent));
  }
  int64_t rows = 0;
  size_t bytes = 0;
  for (const WeightTensor* part : parts) {
    rows += part->ndim() == 0 ? 1 : part->dim(0);
    bytes += part->bytes;
  }
  if (!shape.empty()) {
    shape[0] = int_of(rows);
  }
  mx::allocator::Data memory = mx::allocator::malloc(bytes);
  auto* out = static_cast<std::byte*>(memory.buffer().raw_ptr());
  for (const WeightTensor* part : parts) {
    std::memcpy(out, part->data, part->bytes);
    out += part->bytes;
  }
  mx::array array(std::move(memory), shape, mlx_dtype(first.dtype));
  if (gpu_) {
    // Host-visible memory pages in on use; a computed result lies on the device
    // for good. The extra reference keeps the result out of the same buffer.
    mx::array host = array;
    array = mx::contiguous(mx::concatenate(
        {mx::reshape(host, {-1}), mx::zeros({1}, host.dtype())}));
    array = mx::reshape(
        mx::slice(array, {0}, {int_of(int64_t(host.size()))}), shape);
    mx::eval(array);
    if (mx::get_cache_memory() > kUploadScratch) {
      mx::clear_cache();
    }
  }
  auto shared = std::make_shared<const mx::array>(std::move(array));
  if (parts.size() == 1 && first.owner) {
    known_[key] = {first.owner, shared};
  }
  return shared;
}

mx::array Uploader::upload(const WeightTensor& tensor) {
  return *upload(std::vector<const WeightTensor*>{&tensor});
}

Context::Context(const BackendOptions& options)
    : gpu(mx::is_available(mx::Device::gpu)),
      cuda(gpu && mx::cu::is_available()),
      device(pick_device()),
      compute(gpu ? mlx_dtype(options.activation_dtype) : mx::float32),
      compute_dtype(gpu ? options.activation_dtype : DType::f32),
      uploader(gpu),
      stream_(mx::new_thread_unsafe_stream(device)) {
  if (!is_float(options.activation_dtype) ||
      options.activation_dtype == DType::f64) {
    throw UsageError(
        cat("cannot compute in ", options.activation_dtype),
        "activations are F32, F16 or BF16");
  }
  if (!gpu) {
    // MLX's compiler for CPUs runs an external compiler and keeps the results
    // in a shared temporary folder.
    mx::disable_compile();
    mx::set_cache_limit(size_t(256) << 20);
  }
}

void Context::enter() {
  if (mx::default_device() != device) {
    mx::set_default_device(device);
  }
  std::optional<mx::Stream> current = mx::peek_default_stream(device);
  if (!current || *current != stream_) {
    mx::set_default_stream(stream_);
  }
}

Tensor Context::wrap(mx::array array) const {
  int64_t rows = array.shape(0);
  int64_t cols = array.shape(1);
  DType dtype = array.dtype() == mx::float32 ? DType::f32 : compute_dtype;
  return Tensor(
      dtype, rows, cols, std::make_shared<ArrayStorage>(std::move(array)));
}

mx::array Context::to_compute(const mx::array& array) const {
  return array.dtype() == compute ? array : mx::astype(array, compute);
}

mx::array Context::scalar(float number) const {
  return mx::array(number, mx::float32);
}

mx::array Context::scale_add(
    const mx::array& x, float factor, const mx::array* y) const {
  if (factor == 1) {
    return y ? mx::add(x, *y) : x;
  }
  mx::array wide = mx::multiply(mx::astype(x, mx::float32), scalar(factor));
  if (y) {
    wide = mx::add(wide, mx::astype(*y, mx::float32));
  }
  return mx::astype(wide, x.dtype());
}

void Context::eval(std::vector<mx::array> arrays, bool wait) {
  for (GraphKvCache* cache : caches) {
    cache->append_arrays(arrays);
  }
  if (wait) {
    mx::eval(std::move(arrays));
  } else {
    mx::async_eval(std::move(arrays));
  }
}

}  // namespace mlxcel::graph
